from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from headwater.cli.signals import StopSignals

CHILD = """
import signal, sys, time
from headwater.cli.signals import StopSignals
{before}
with StopSignals() as signals:
    print("ready", flush=True)
    until = time.monotonic() + 20
    while time.monotonic() < until and (signals.received is None or {stubborn}):
        time.sleep(0.01)
print("saved", flush=True)
sys.exit(signals.exit_status)
"""


def start(before: str = "", stubborn: bool = False) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(before=before, stubborn=stubborn)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_waits_for_a_safe_point(number: signal.Signals, status: int) -> None:
    child = start()
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert child.returncode == status and out == "saved\n"
    assert f"{number.name}: stopping after this iteration" in err


def test_a_second_ctrl_c_stops_at_once() -> None:
    child = start(stubborn=True)
    child.send_signal(signal.SIGTERM)
    assert child.stderr is not None
    assert "SIGTERM" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)  # only an impatient Ctrl-C ends it
    time.sleep(0.1)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130 and out == "" and "stopped at once" in err


def test_an_ignored_hangup_stays_ignored() -> None:
    child = start("signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    child.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == 143


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGINT) != before
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
    assert signals.received == signal.SIGTERM and signals.exit_status == 143


def test_a_forked_env_process_ignores_ctrl_c_and_obeys_termination() -> None:
    with StopSignals() as signals:
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
            os._exit(7)
        _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM and signals.received is None


BLOCK = """
import sys, time
from headwater.cli.signals import OutOfPatience, StopSignals
with StopSignals() as signals:
    try:
        with signals.limiting_patience({patience}):
            print("ready", flush=True)
            {body}
    except OutOfPatience:
        pass
    try:
        with signals.limiting_patience(0.1):
            time.sleep(30)
    except OutOfPatience:
        print("left", flush=True)
sys.exit(signals.exit_status)
"""


def run_block(body: str, patience: float) -> tuple[int, str, str, float]:
    """Exit status, output, errors and seconds of a process that gets SIGTERM within a block of limited patience."""
    command = [sys.executable, "-c", BLOCK.format(body=body, patience=patience)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    began = time.monotonic()
    child.terminate()
    out, err = child.communicate(timeout=20)
    return child.returncode, out, err, time.monotonic() - began


def test_a_block_that_takes_too_long_is_broken_off_and_so_is_one_after_the_signal() -> None:
    status, out, err, seconds = run_block("time.sleep(30)", 0.2)
    assert (status, out) == (143, "left\n") and "stopped at once" not in err
    assert 0.2 < seconds < 10


def test_code_that_catches_everything_cannot_keep_the_process() -> None:
    stubborn = "while True:\n                try: time.sleep(30)\n                except BaseException: pass"
    status, out, err, seconds = run_block(stubborn, 0.1)
    assert (status, out) == (143, "") and "stopped at once" in err and seconds < 10
