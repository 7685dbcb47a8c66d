"""The command as a user runs it: trainings of a second, their files, their errors, and how they are stopped."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headwater.checkpoint import load_checkpoint
from headwater.cli.main import app
from headwater.errors import EnvError
from headwater.telemetry import RunLock

SMALL = ["--set", "num_envs_per_worker=4", "--set", "train_batch_size=128", "--set", "sgd_minibatch_size=64"]
SMALL += ["--set", "num_sgd_iter=2", "--seed", "1"]
CARTPOLE = ["train", "PPO", "--env", "CartPole-v1", *SMALL]

ENVS = """
import time
import gymnasium, numpy as np

class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps % 10 == 0, False, {}

class Breaks(Base):
    def step(self, action):
        if self.steps >= 100:
            raise ValueError("the wheel came off")
        return super().step(action)

class Explodes(Base):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 1e38 if self.steps > 64 else 1.0, *rest

class SlowToMake(Base):
    def __init__(self):
        print("making", flush=True)
        time.sleep(60)

class SlowToClose(Base):
    def close(self):
        time.sleep(60)

class Slow(Base):
    def step(self, action):
        if self.steps >= 64:
            time.sleep(0.5)
        return super().step(action)
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def start(*arguments: str) -> subprocess.Popen[str]:
    Path("toys.py").write_text(ENVS)
    return subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def run_dir() -> Path:
    (found,) = Path("runs/PPO").glob("*/*")
    return found


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir() / "result.jsonl").read_text().splitlines()]


def checkpoints() -> list[str]:
    return sorted(path.name for path in (run_dir() / "checkpoints").glob("checkpoint_*"))


def test_a_training_says_where_its_files_are_and_what_to_do_next() -> None:
    result = run(*CARTPOLE, "--stop-iters", "3", "--checkpoint-freq", "2")
    assert result.exit_code == 0, result.output
    directory = run_dir()
    assert f"files in {directory}" in result.stdout and "train batch: 128 rows" in result.stdout
    assert "Done after iteration 3: training_iteration 3 >= 3" in result.stdout
    for line in ("Evaluate:", "Record:", "Resume:"):
        assert f"{directory}" in next(text for text in result.stdout.splitlines() if text.startswith(line))
    assert [row["training_iteration"] for row in results()] == [1, 2, 3]
    assert checkpoints() == ["checkpoint_000002", "checkpoint_000003"]
    assert json.loads((directory / "params.json").read_text())["num_envs_per_worker"] == 4
    assert result.stderr == ""


def test_every_way_to_say_a_setting_and_the_later_wins() -> None:
    Path("f.yaml").write_text(
        "CartPole-v1: {num_envs_per_worker: 4, train_batch_size: 128, sgd_minibatch_size: 64, num_sgd_iter: 1, seed: 7,"
        " lr: 1e-4, gamma: 0.9, model: {fcnet_hiddens: [8]}, stop: {training_iteration: 1}, run: PPO}"
    )
    sets = ["--set", "lr=2e-4", "--set", "model.fcnet_activation=relu"]
    result = run("train", "--config", "f.yaml", *sets, "--seed", "9", "--local-dir", "elsewhere", "--quiet")
    assert result.exit_code == 0, result.output
    directory = Path(result.stdout.strip())
    assert directory.parts[:3] == ("elsewhere", "PPO", "CartPole-v1")
    params = json.loads((directory / "params.json").read_text())
    assert (params["lr"], params["gamma"], params["seed"]) == (2e-4, 0.9, 9)
    assert params["model"]["fcnet_hiddens"] == [8] and params["model"]["fcnet_activation"] == "relu"


def test_json_lines_are_results_and_the_last_names_the_files() -> None:
    result = run(*CARTPOLE, "--stop-timesteps", "2e2", "--json")
    *rows, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2]
    assert last["run"]["logdir"] == str(run_dir())
    assert Path(last["run"]["checkpoint"]).name == "checkpoint_000002"
    assert last["run"]["stopped"].startswith("timesteps_total ")


def test_a_resumed_run_goes_on_in_its_directory() -> None:
    assert run(*CARTPOLE, "--stop-iters", "2", "--quiet").exit_code == 0
    directory = str(run_dir())
    again = run("train", "--resume", directory)
    assert again.exit_code == 0 and "training_iteration 2 >= 2 already" in again.stdout
    more = run("train", "--resume", directory, "--stop-iters", "4", "--set", "lr=1e-5")
    assert more.exit_code == 0 and "from iteration 2" in more.stdout, more.output
    assert [row["training_iteration"] for row in results()] == [1, 2, 3, 4]
    assert [row["info"]["learner"]["default_policy"]["cur_lr"] for row in results()[2:]] == [1e-5, 1e-5]
    assert json.loads((run_dir() / "stop.json").read_text()) == {"training_iteration": 4}


def test_a_resumed_run_equals_one_that_never_stopped() -> None:
    assert run(*CARTPOLE, "--stop-iters", "4", "--quiet", "--local-dir", "whole").exit_code == 0
    assert run(*CARTPOLE, "--stop-iters", "2", "--quiet").exit_code == 0
    assert run("train", "--resume", str(run_dir()), "--stop-iters", "4").exit_code == 0
    (whole,) = Path("whole/PPO").glob("*/*/checkpoints/checkpoint_000004")
    tensors = [path / "state.safetensors" for path in (whole, run_dir() / "checkpoints/checkpoint_000004")]
    assert tensors[0].read_bytes() == tensors[1].read_bytes()


def test_rows_after_the_checkpoint_are_made_again() -> None:
    assert (
        run(*CARTPOLE, "--stop-iters", "3", "--checkpoint-freq", "2", "--set", "checkpoint_at_end=false").exit_code == 0
    )
    assert checkpoints() == ["checkpoint_000002"]
    assert run("train", "--resume", str(run_dir()), "--stop-iters", "5").exit_code == 0
    assert [row["training_iteration"] for row in results()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Name an algorithm"),
        (["train", "PPO"], "Name an env"),
        (["train", "PPPO", "--env", "CartPole-v1"], "Did you mean PPO"),
        (["train", "PPO", "--env", "CartPoll-v1"], "Did you mean CartPole-v1"),
        ([*CARTPOLE, "--set", "lerning_rate=1"], "no such setting"),
        ([*CARTPOLE, "--set", "lr=fast"], "lr: must be a number"),
        ([*CARTPOLE, "--set", "gamma=1.5"], "gamma: must be at most 1"),
        ([*CARTPOLE, "--set", "lr"], "is not KEY=VALUE"),
        ([*CARTPOLE, "--set", "stop.x=1"], "no such setting"),
        ([*CARTPOLE, "--config", "none.yaml"], "Cannot read the settings in none.yaml"),
        (["train", "--resume", "nowhere"], "no checkpoint or run directory at nowhere"),
        (["train", "--resume", "."], "has no checkpoint"),
        (["train", "PPO", "--resume", "."], "PPO was given as an argument"),
        (["train", "--resume", ".", "--env", "CartPole-v1"], "CartPole-v1 was given by --env"),
        (["evaluate", "nowhere"], "no checkpoint or run directory at nowhere"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("headwater: ") and message in result.stderr
    assert "Traceback" not in result.stderr and not Path("runs").exists()


def test_usage_errors_exit_with_two() -> None:
    for arguments in (["train", "--nonsense"], ["nonsense"], ["train", "--stop-iters", "x"], ["evaluate"]):
        result = run(*arguments)
        assert result.exit_code == 2 and "Traceback" not in result.output


def test_evaluation_runs_exactly_what_was_asked() -> None:
    assert run(*CARTPOLE, "--stop-iters", "2", "--checkpoint-freq", "1", "--quiet").exit_code == 0
    directory = str(run_dir())
    before = sorted(Path("runs").rglob("*"))
    first, second = (run("evaluate", directory, "--episodes", "7", "--seed", "3", "--json") for _ in range(2))
    assert first.exit_code == 0, first.output
    summary = json.loads(first.stdout)
    assert summary["episodes"] == 7 == len(summary["returns"]) == len(summary["lengths"])
    assert summary["return_mean"] == sum(summary["returns"]) / 7
    assert summary["returns"] == json.loads(second.stdout)["returns"]
    assert summary["returns"] != json.loads(run("evaluate", directory, "--episodes", "7", "--json").stdout)["returns"]
    one = run("evaluate", f"{directory}/checkpoints/checkpoint_000001", "--episodes", "2", "--explore")
    assert "iteration 1, sampled actions" in one.stdout and "episodes 2 " in one.stdout
    assert json.loads(run("evaluate", directory, "--best", "--json").stdout)["training_iteration"] in (1, 2)
    assert sorted(Path("runs").rglob("*")) == before, "an evaluation leaves no files"


def test_episodes_are_recorded() -> None:
    pytest.importorskip("moviepy")
    assert run(*CARTPOLE, "--stop-iters", "1", "--quiet").exit_code == 0
    result = run("evaluate", str(run_dir()), "--episodes", "2", "--record", "videos", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["returns"]) == 2
    videos = sorted(Path("videos").glob("*.mp4"))
    assert len(videos) == 2 and all(video.stat().st_size > 1000 for video in videos)


def test_what_keeps_videos_from_being_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moviepy")
    Path("toys.py").write_text(ENVS)
    monkeypatch.syspath_prepend(os.getcwd())
    assert run(*CARTPOLE, "--stop-iters", "1", "--quiet").exit_code == 0
    Path("file").touch()
    result = run("evaluate", str(run_dir()), "--record", "file")
    assert result.exit_code == 1 and "file is a file; name a directory" in result.stderr
    made = run("train", "PPO", "--env", "toys:Breaks", *SMALL, "--stop-iters", "1", "--quiet").stdout.strip()
    result = run("evaluate", made, "--record", "videos")
    assert result.exit_code == 1 and "does not take render_mode" in result.stderr
    assert "Let it take render_mode=None" in result.stderr


def test_recording_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    assert run(*CARTPOLE, "--stop-iters", "1", "--quiet").exit_code == 0
    result = run("evaluate", str(run_dir()), "--record", "videos")
    assert result.exit_code == 1 and "headwater[video]" in result.stderr


def test_a_failing_env_is_one_message_and_what_was_learned_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("toys.py").write_text(ENVS)
    monkeypatch.syspath_prepend(os.getcwd())
    result = run("train", "PPO", "--env", "toys:Breaks", *SMALL)
    assert result.exit_code == 1 and "Traceback" not in result.stderr, result.output
    assert "the wheel came off" in result.stderr and "toys:Breaks" in result.stderr
    assert f"Files:      {run_dir()}" in result.stderr and "--resume" in result.stderr
    assert [row["training_iteration"] for row in results()] == [1, 2, 3]
    state, meta = load_checkpoint(run_dir() / "checkpoints/checkpoint_000003")
    assert meta["iteration"] == 3 and state["worker"]
    debug = run("train", "--resume", str(run_dir()), "--debug")
    assert debug.exit_code == 1 and isinstance(debug.exception, EnvError)


def test_updates_that_stay_bad_end_the_run_with_its_last_good_checkpoint() -> None:
    explode = ["--set", "max_bad_updates_in_a_row=3", "--set", "standardize_advantages=false"]
    child = start("train", "PPO", "--env", "toys:Explodes", *SMALL, *explode, "--set", "clip_rewards=null")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1 and "Traceback" not in err and "updates" in err
    (name,) = checkpoints()
    state, _ = load_checkpoint(run_dir() / "checkpoints" / name)
    weights = state["worker"]["policies"]["default_policy"]["weights"]
    assert all(np.isfinite(weight).all() for weight in weights.values())


def test_ctrl_c_finishes_the_iteration_and_saves() -> None:
    child = start(*CARTPOLE, "--json")
    assert child.stdout is not None
    json.loads(child.stdout.readline())
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "Traceback" not in err
    assert "SIGINT: stopping after this iteration" in err
    last = json.loads(out.splitlines()[-1])["run"]
    assert last["stopped"] == "stopped by SIGINT"
    iteration = results()[-1]["training_iteration"]
    assert checkpoints() == [f"checkpoint_{iteration:06d}"]
    load_checkpoint(Path(last["checkpoint"]))


def test_an_iteration_that_takes_too_long_is_broken_off_and_what_was_learned_is_saved() -> None:
    child = start("train", "PPO", "--env", "toys:Slow", *SMALL, "--json")
    assert child.stdout is not None
    child.stdout.readline(), child.stdout.readline()  # the third iteration takes a minute
    time.sleep(0.5)
    began = time.monotonic()
    child.terminate()
    out, err = child.communicate(timeout=30)
    assert time.monotonic() - began < 10 and child.returncode == 143 and "Traceback" not in err
    assert checkpoints() == ["checkpoint_000002"]
    load_checkpoint(run_dir() / "checkpoints/checkpoint_000002")


def test_an_env_that_is_slow_to_make_or_close_does_not_hold_up_the_end() -> None:
    for env, shown in (("toys:SlowToMake", "making"), ("toys:SlowToClose", "training_iteration")):
        child = start("train", "PPO", "--env", env, *SMALL, "--json")
        assert child.stdout is not None and shown in child.stdout.readline()
        began = time.monotonic()
        child.terminate()
        out, err = child.communicate(timeout=30)
        assert time.monotonic() - began < 10 and child.returncode == 143 and "Traceback" not in err
    assert "closing the envs takes too long" in err
    load_checkpoint(Path(json.loads(out.splitlines()[-1])["run"]["checkpoint"]))


def test_a_second_interrupt_stops_at_once_and_leaves_nothing_damaged() -> None:
    child = start("train", "PPO", "--env", "toys:Slow", *SMALL, "--json", "--checkpoint-freq", "1")
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline(), child.stdout.readline()
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    while "SIGINT" not in child.stderr.readline():
        pass
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=5)
    assert child.returncode == 130 and "stopped at once" in err
    for name in checkpoints():
        load_checkpoint(run_dir() / "checkpoints" / name)
    assert [row["training_iteration"] for row in results()] == [1, 2]


def test_a_closed_pipe_does_not_end_the_training() -> None:
    child = start(*CARTPOLE, "--stop-iters", "60")
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    err = child.stderr.read()
    assert child.wait(timeout=60) == 0 and err == ""
    assert results()[-1]["training_iteration"] == 60 and checkpoints() == ["checkpoint_000060"]
    child.stderr.close()


def test_a_last_save_that_fails_is_told_and_the_status_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    import headwater.storage.checkpoint_files as files

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_synced", fail)
    result = run(*CARTPOLE, "--stop-iters", "1")
    assert result.exit_code == 1 and "No space left" in result.stderr and f"{run_dir()}" in result.stderr
    assert not list((run_dir() / "checkpoints").glob("*"))


def test_a_full_disk_is_told_and_ends_only_what_cannot_be_saved() -> None:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    command = [sys.executable, "-m", "headwater", *CARTPOLE, "--stop-iters", "8", "--checkpoint-freq", "3"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_files, check=False)
    assert done.returncode == 1 and "iteration 8" in done.stdout and "Traceback" not in done.stderr
    for iteration in (3, 6):
        assert done.stderr.count(f"Iteration {iteration} could not be saved; training goes on") == 1
    for file in ("result.jsonl", "TensorBoard"):
        assert done.stderr.count(f"{file} cannot be written") == 1, done.stderr
    assert done.stderr.splitlines()[-1].endswith("none was saved")
    assert list((run_dir() / "checkpoints").iterdir()) == [], "nothing half-written is left"


def test_a_run_directory_belongs_to_one_process() -> None:
    assert run(*CARTPOLE, "--stop-iters", "1", "--quiet").exit_code == 0
    lock = RunLock(run_dir())
    result = run("train", "--resume", str(run_dir()), "--stop-iters", "2")
    lock.release()
    assert result.exit_code == 1 and "in use by another run" in result.stderr
    assert len(results()) == 1
