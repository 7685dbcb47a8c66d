import re
import signal
import subprocess
import sys

import pytest

from headwater.errors import ConfigError, HeadwaterError
from headwater.telemetry.run_dir import RunLock, make_run_dir


def test_the_path_says_what_runs(tmp_path):
    run_dir = make_run_dir(tmp_path / "runs", "PPO", "CartPole-v1", 7)
    assert run_dir.is_dir() and run_dir.parent == tmp_path / "runs" / "PPO" / "CartPole-v1"
    assert re.fullmatch(r"\d{8}T\d{6}Z-s7-[0-9a-f]{6}", run_dir.name)
    assert len({make_run_dir(tmp_path, "PPO", "CartPole-v1", 7) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    "env_id, name",
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("my.module:Env-v0", "my.module-Env-v0"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("env\x00\n né", "env-n"),
        ("<function <lambda> at 0x7f>", "function-lambda-at-0x7f"),
        ("x" * 300, "x" * 80),
    ],
)
def test_any_env_id_makes_a_safe_name(tmp_path, env_id, name):
    run_dir = make_run_dir(tmp_path, "PPO", env_id, None)
    assert run_dir.parent.name == name and run_dir.parent.parent.parent == tmp_path


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_run_dir("~/runs", "PPO", "E", 1).parent == tmp_path / "runs" / "PPO" / "E"


def test_a_place_that_takes_no_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", "/proc/nowhere"):
        with pytest.raises(ConfigError, match="local_dir=.*Set local_dir to a directory that you may write to"):
            make_run_dir(place, "PPO", "E", 1)


def test_a_read_only_directory_is_named():
    with pytest.raises(ConfigError, match="/proc/self cannot be written to"):
        RunLock("/proc/self")


def test_two_runs_in_one_directory_are_refused(tmp_path):
    lock = RunLock(tmp_path)
    with pytest.raises(HeadwaterError, match=f"{tmp_path} is in use by another run"):
        RunLock(tmp_path)
    lock.release()
    RunLock(tmp_path).release()


HOLDER = """
import sys
from headwater.telemetry.run_dir import RunLock
lock = RunLock(sys.argv[1])
print("held", flush=True)
input()
"""


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(HeadwaterError, match="in use"):
        RunLock(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    RunLock(tmp_path).release()


def test_where_nothing_can_be_locked_a_warning_is_all(tmp_path, monkeypatch, caplog):
    import filelock

    def refuse(self, timeout):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    RunLock(tmp_path).release()
    assert "cannot be locked" in caplog.text
