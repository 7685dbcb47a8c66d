import logging
import os
import subprocess
import sys
import time

import pytest

from headwater.errors import ConfigError, HeadwaterError
from headwater.telemetry import RunLogger, open_run, read_results
from tests.telemetry.sample_results import make_result


def test_a_run_writes_everything_into_a_directory_of_its_own(tmp_path):
    with open_run({"local_dir": str(tmp_path), "tensorboard": True}, "PPO", "CartPole-v1", 1) as run:
        run.on_result(make_result(1))
        logging.getLogger("headwater.test").warning("something to note")
        assert run.run_dir.parent.parent.parent == tmp_path
        with pytest.raises(HeadwaterError, match="in use"):
            RunLogger(run.run_dir)
    run.close()
    logging.getLogger("headwater.test").warning("after the end")
    names = {"params.json", "env.json", "result.jsonl", "progress.csv", "tb", "log.txt"}
    assert names <= set(os.listdir(run.run_dir)) and run.num_write_errors == 0
    log = (run.run_dir / "log.txt").read_text()
    assert "WARNING headwater.test: something to note" in log and "after" not in log


def test_tensorboard_is_a_setting(tmp_path):
    with RunLogger(tmp_path, {"tensorboard": False}) as run:
        run.on_result(make_result(1))
    assert not (tmp_path / "tb").exists()


def test_the_names_of_curves_are_a_setting(tmp_path):
    from tests.telemetry.test_tensorboard import read

    with RunLogger(tmp_path, {"tensorboard_tags": "sb3"}) as run:
        run.on_result(make_result(2, 20.5))
    assert read(tmp_path / "tb")["rollout/ep_rew_mean"][0][1] == 20.5


def test_a_resumed_run_has_each_iteration_once(tmp_path):
    with RunLogger(tmp_path, {}) as run:
        for iteration in range(1, 6):
            run.on_result(make_result(iteration))
    with RunLogger(tmp_path, {}) as run:
        run.on_restore(3, 3 * 1024)
        run.on_result(make_result(4))
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2, 3, 4]


def test_a_failed_start_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    handlers = list(logging.getLogger("headwater").handlers)
    with pytest.raises(ConfigError, match="cannot be written to"):
        RunLogger(tmp_path / "file" / "run")
    with pytest.raises(ValueError, match="tags is one of"):
        RunLogger(tmp_path / "run", {"tensorboard_tags": "wandb"})
    assert logging.getLogger("headwater").handlers == handlers
    RunLogger(tmp_path / "run").close()


def test_no_file_stays_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        with RunLogger(tmp_path / str(number), {}) as run:
            run.on_result(make_result(1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_log_that_cannot_be_written_is_silent(tmp_path, capfd):
    os.symlink("/dev/full", tmp_path / "log.txt")
    with RunLogger(tmp_path, {}):
        logging.getLogger("headwater.test").warning("lost")
    assert "Traceback" not in capfd.readouterr().err


SHOWN = """
import logging, sys
from headwater.telemetry import RunLogger
{before}
with RunLogger(sys.argv[1], {{}}), RunLogger(sys.argv[2], {{}}):
    logging.getLogger("headwater.test").warning("the disk is full")
    logging.getLogger("headwater.test").info("not for the terminal")
"""


@pytest.mark.parametrize("before", ["", "logging.basicConfig(format='mine: %(message)s')"])
def test_warnings_are_seen_once_on_the_terminal_as_well(tmp_path, before):
    command = [sys.executable, "-c", SHOWN.format(before=before), str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ("mine: " if before else "") + "the disk is full\n"


def test_a_result_costs_little(tmp_path):
    with RunLogger(tmp_path, {}) as run:
        run.on_result(make_result(1, 1.0))
        seconds = []
        for iteration in range(2, 102):
            started = time.perf_counter()
            run.on_result(make_result(iteration, 200.5))
            seconds.append(time.perf_counter() - started)
    assert sorted(seconds)[50] < 0.001  # 0.2 ms where this was written; an iteration of CartPole takes 30
