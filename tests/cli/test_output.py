from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from headwater.cli.output import reporting_errors
from headwater.errors import ConfigError


def test_an_error_of_the_user_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("lr: must be at least 0")
    error.add_note("Files: runs/x")
    with pytest.raises(typer.Exit) as exit_info, reporting_errors(debug=False):
        raise error
    assert exit_info.value.exit_code == 1
    assert capsys.readouterr().err == "headwater: lr: must be at least 0\nFiles: runs/x\n"


def test_an_unexpected_error_is_one_message_that_names_debug(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reporting_errors(debug=False):
        raise ZeroDivisionError("a\n   b")
    text = capsys.readouterr().err
    assert text == "headwater: unexpected ZeroDivisionError: a b\nRun again with --debug for the traceback.\n"


@pytest.mark.parametrize("error", [ConfigError("x"), ZeroDivisionError("x"), KeyboardInterrupt()])
def test_debug_lets_the_traceback_through(error: BaseException) -> None:
    with pytest.raises(type(error)), reporting_errors(debug=True):
        raise error


def test_exits_pass_and_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit_info, reporting_errors(debug=False):
        raise typer.Exit(7)
    assert exit_info.value.exit_code == 7
    with pytest.raises(typer.Exit) as exit_info, reporting_errors(debug=False):
        raise KeyboardInterrupt
    assert exit_info.value.exit_code == 130


def test_a_closed_pipe_silences_and_the_work_goes_on() -> None:
    code = (
        "import sys, time\nfrom headwater.cli.output import say\n"
        "say('first')\ntime.sleep(0.5)\n"
        "for i in range(2000): say('x' * 100)\n"
        "print('worked to its end', file=sys.stderr)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "first\n"
    child.stdout.close()
    err = child.stderr.read()
    assert child.wait(timeout=30) == 0 and err == "worked to its end\n"
    child.stderr.close()
