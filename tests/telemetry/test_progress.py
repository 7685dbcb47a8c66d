import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest

from headwater.telemetry.progress import make_display
from tests.telemetry.sample_results import make_result

STOP = {"timesteps_total": 102_400, "episode_reward_mean": 475.0}


def test_plain_lines_come_now_and_then_and_at_the_end():
    stream = io.StringIO()
    with make_display("live", STOP, stream) as display:  # no terminal
        now = 0.0
        display._clock = lambda: now
        for iteration in range(1, 51):
            now += 0.1
            display.update(make_result(iteration, float(iteration)))
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [f"iteration {number}" for number in (1, 21, 41, 50)]
    for part in (
        "steps 51,200",
        "return 50",
        "min 50",
        "length 50",
        "kl 0.0071",
        "entropy 0.5312",
        "policy loss -0.0123",
    ):
        assert f" {part} " in lines[-1]
    assert "policy loss -0.0123" in lines[-1] and "value loss 12.5" in lines[-1] and "expl. var. 0.812" in lines[-1]
    assert "50% of steps 102,400" in lines[-1] and "10% of return 475" in lines[-1] and "\x1b" not in stream.getvalue()


def test_what_is_unknown_is_left_out():
    stream = io.StringIO()
    with make_display("plain", {}, stream) as display:
        display.update({**make_result(1), "info": {}})
        display.update({})
    assert "nan" not in stream.getvalue() and "return" not in stream.getvalue()


def test_the_last_evaluation_stays_in_view():
    stream = io.StringIO()
    with make_display("plain", {}, stream) as display:
        display.update(make_result(1))
        display.update(make_result(2, evaluation={"episode_reward_mean": 1234.5}))
        display.update(make_result(3))
    assert "evaluation 1,234" in stream.getvalue().splitlines()[-1]


def test_json_has_each_result_on_a_line():
    stream = io.StringIO()
    with make_display("json", STOP, stream) as display:
        for iteration in range(1, 4):
            display.update(make_result(iteration))
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3] and rows[0]["episode_reward_mean"] is None
    assert all("config" not in row for row in rows)


def test_quiet_is_quiet_and_a_process_may_have_no_console(monkeypatch):
    stream = io.StringIO()
    with make_display("quiet", STOP, stream) as display:
        display.update(make_result(1))
    assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stdout", None)
    with make_display("live", STOP) as display:
        display.update(make_result(1))
    with pytest.raises(ValueError, match="mode is one of"):
        make_display("loud")


@pytest.fixture
def terminal(monkeypatch):
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    master, slave = pty.openpty()
    stream = open(slave, "w")  # noqa: SIM115
    yield master, stream
    for close in (stream.close, lambda: os.close(master)):
        with contextlib.suppress(OSError):
            close()


def read_terminal(master):
    os.set_blocking(master, False)
    text = b""
    while True:
        try:
            text += os.read(master, 65536)
        except BlockingIOError:
            return text.decode()


def test_the_live_display_shows_the_run_and_leaves_the_last_result(terminal):
    master, stream = terminal
    display = make_display("live", STOP, stream)
    assert "first iteration" in read_terminal(master)
    display.update(make_result(1, 21.5))
    shown = read_terminal(master)
    for part in (
        "1,024",
        "21.5",
        "0.0071",
        "0.5312",
        "-0.0123",
        "12.5",
        "0.812",
        "1% of steps 102,400",
        "of return 475",
    ):
        assert part in shown
    display.update(make_result(2, 22.5))
    assert read_terminal(master) == ""  # too soon
    display.close()
    end = read_terminal(master)
    assert "22.5" in end and end.rstrip("\r\n").endswith("\x1b[?25h")  # the cursor is back


def test_the_live_display_costs_little(terminal):
    master, stream = terminal
    with make_display("live", STOP, stream) as display:
        display.update(make_result(1, 20.0))
        started = time.perf_counter()
        for iteration in range(2, 102):
            display.update(make_result(iteration, 20.0))
        assert (time.perf_counter() - started) / 100 < 0.001
        read_terminal(master)


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_terminal_that_closes_is_no_end(terminal, mode):
    master, stream = terminal
    display = make_display(mode, STOP, stream)
    os.close(master)
    for iteration in range(1, 4):
        display._due = 0.0
        display.update(make_result(iteration, 20.0))
    display.close()
    assert display._stream.gone


def test_a_closed_stream_is_no_end():
    stream = io.StringIO()
    display = make_display("json", STOP, stream)
    stream.close()
    display.update(make_result(1))
    display.close()


PIPED = """
import sys
from headwater.telemetry.progress import make_display
from tests.telemetry.sample_results import make_result
with make_display(sys.argv[1], {}) as display:
    for iteration in range(1, 3000):
        display._due = 0.0
        display.update(make_result(iteration, 1.0))
print("a line of another part", flush=False)
sys.stderr.write("the end")
"""


@pytest.mark.parametrize("mode", ["json", "live"])
def test_a_broken_pipe_is_no_storm(mode, request):
    process = subprocess.Popen(
        [sys.executable, "-c", PIPED, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=request.config.rootpath,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "the end"
    process.stderr.close()
    assert process.wait() == 0


def test_a_full_disk_under_the_output_is_no_end(request):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PIPED, "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=request.config.rootpath,
        )
    assert done.returncode == 0 and done.stderr.count("No space left on device") == 1
    assert "Traceback" not in done.stderr and done.stderr.endswith("the end")
