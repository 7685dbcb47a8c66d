"""Envs in processes of their own: the same rows, errors by name, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from headwater.envs.async_envs import CheckedEnv
from headwater.envs.env_context import EnvContext
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.vector_env import make_vector_env
from headwater.errors import EnvError
from tests.envs.toys import FaultyEnv, NestedEnv, ScriptEnv, make_config, roll, step_many

# Gymnasium tells the traceback of a sub-env's error as a warning.
pytestmark = pytest.mark.filterwarnings("ignore:.*(Worker|Traceback|Raising the last):UserWarning")

SURVIVE = {"on_env_error": "reset", "on_bad_values": "reset"}


def make(creator: Any, num_envs: int = 2, **settings: Any) -> GymnasiumVectorEnv:
    config = make_config(vectorization="async", **settings)
    env = make_vector_env(creator, "Toy-v0", num_envs, config, EnvContext(), seeds=list(range(num_envs)))
    assert isinstance(env, GymnasiumVectorEnv)
    env._faults.sleep = lambda seconds: None
    return env


def test_it_gives_the_rows_of_copies() -> None:
    def creator(context: EnvContext) -> ScriptEnv:
        return ScriptEnv(context.vector_index, [2, 5, 1], ["truncated", "terminated", "both"])

    env = make(creator, 3)
    copies = make_vector_env(creator, "Toy-v0", 3, make_config(vectorization="sync"), EnvContext())
    assert roll(env, 20) == roll(copies, 20)
    env.close()
    assert not multiprocessing.active_children()
    env.close()


def test_nested_spaces() -> None:
    env = make(lambda context: NestedEnv(2))
    env.reset()
    actions = {"go": np.array([1, 2]), "push": np.zeros((2, 2), np.float32)}
    env.step(actions)
    result = env.step(actions)
    assert result.terminateds.all() and result.obs["pose"][0].tolist() == [[2, -2], [2, -2]]
    env.close()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda e, where: 1 / 0 if where == "step" else None, r"step\(\) raised ZeroDivisionError"),
        (lambda e, where: (np.zeros(2), 0, False, {}) if where == "step" else None, "old gym API"),
        (lambda e, where: (np.zeros(1), 0.0, False, False, {}) if where == "step" else None, r"the shape \(1,\)"),
        (lambda e, where: (np.full(2, 7), 0.0, False, False, {}) if where == "step" else None, r"obs\[0\] is 7"),
        (lambda e, where: (np.zeros(2), "a", False, False, {}) if where == "step" else None, "the reward is the str"),
        (lambda e, where: 5 if where == "reset" else None, r"reset\(\) returned a int"),
    ],
)
def test_errors_name_the_sub_env(fault: Any, says: str) -> None:
    env = make(lambda context: FaultyEnv(fault if context.vector_index == 1 else None))
    with pytest.raises(EnvError, match=rf"sub-env 1, .*seed 1\): .*{says}"):
        env.reset()
        env.step(np.zeros(2, int))
    env.close()
    assert not multiprocessing.active_children()


def test_an_infinite_reward_is_refused() -> None:
    fault = lambda e, where: (np.zeros(2), np.inf, False, False, {}) if where == "step" else None  # noqa: E731
    env = make(lambda context: FaultyEnv(fault if context.vector_index == 1 else None))
    env.reset()
    with pytest.raises(EnvError, match="sub-env 1, .*reward is inf"):
        env.step(np.zeros(2, int))
    env.close()


def die(env: FaultyEnv, where: str) -> None:
    if where == "step" and env.t == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # the kernel's way to end it, as with a crash


def test_a_native_crash_is_an_error_that_names_the_process() -> None:
    env = make(lambda context: FaultyEnv(die if context.vector_index == 1 else None))
    env.reset()
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=rf"sub-env 1 with exit code -{int(signal.SIGKILL)}"):
        env.step(np.zeros(2, int))
    env.close()
    assert not multiprocessing.active_children()


def test_a_crash_can_be_survived(tmp_path: Path) -> None:
    mark = tmp_path / "crashed"

    def die_once(env: FaultyEnv, where: str) -> None:
        if where == "step" and env.t == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    env = make(lambda context: FaultyEnv(die_once if context.vector_index == 1 else None), **SURVIVE)
    env.reset()
    results = step_many(env, 7)
    assert [r.dropped is not None for r in results] == [False, True, False, False, False, False, False]
    assert results[6].terminateds.all()
    assert len(multiprocessing.active_children()) == 2
    env.close()
    assert not multiprocessing.active_children()


def test_a_constructor_that_fails() -> None:
    def creator(context: EnvContext) -> FaultyEnv:
        raise OSError("no display")

    with pytest.raises(EnvError, match="OSError: no display"):
        make(creator)

    def only_there(context: EnvContext) -> FaultyEnv:
        if multiprocessing.parent_process() is not None:
            raise OSError("no display")
        return FaultyEnv()

    with pytest.raises(EnvError, match="'Toy-v0'.*sub-env [01].*OSError: no display"):
        make(only_there)

    def dies_there(context: EnvContext) -> FaultyEnv:
        if multiprocessing.parent_process() is not None:
            os._exit(3)
        return FaultyEnv()

    with pytest.raises(EnvError, match="processes could not be started.*vectorization='sync'"):
        make(dies_there)


def test_a_hanging_close_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(FaultyEnv):
        def close(self) -> None:
            if multiprocessing.parent_process() is not None:
                time.sleep(60)

    monkeypatch.setattr("headwater.envs.gymnasium_vector.CLOSE_TIMEOUT_S", 0.3)
    env = make(lambda context: Hangs())
    env.reset()
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start < 5 and not multiprocessing.active_children()


DRIVER = """
import os, signal, sys, time
import numpy as np
from tests.envs.test_async_envs import make
from tests.envs.toys import FaultyEnv
signal.signal(signal.SIGTERM, lambda *a: None)
if __name__ == "__main__":
    env = make(lambda context: FaultyEnv(), 3)
    env.reset()
    print(*[p.pid for p in env._env.unwrapped.processes], flush=True)
    if sys.argv[1] == "interrupt":
        signal.signal(signal.SIGINT, lambda *a: None)
        os.killpg(0, signal.SIGINT)  # as Ctrl-C does
        time.sleep(0.3)
        print(env.step(np.zeros(3, int)).rewards.tolist(), flush=True)
        env.close()
    else:
        time.sleep(60)
"""


def test_ctrl_c_leaves_the_envs_to_the_driver() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", DRIVER, "interrupt"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=root, start_new_session=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[1] == "[1.0, 1.0, 1.0]"
    assert "KeyboardInterrupt" not in answer.stderr


def test_the_envs_end_with_a_killed_driver() -> None:
    root = Path(__file__).parents[2]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, "wait"], stdout=subprocess.PIPE, text=True, cwd=root)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 3
    driver.kill()
    driver.wait()
    driver.stdout.close()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(_alive(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_checked_env_leaves_good_envs_alone() -> None:
    env = CheckedEnv(ScriptEnv(0, [2]), "Toy-v0", 0, 0)
    obs, info = env.reset(seed=3)
    assert obs[2] == 0 and info == {"started": 0}
    assert [env.step(1)[3] for _ in range(2)] == [False, True]


def test_a_reward_may_be_an_array_of_one() -> None:
    def pays(env: FaultyEnv, where: str) -> Any:
        return (env._obs(), np.array([0.5]), False, False, {}) if where == "step" else None

    env = make(lambda context: FaultyEnv(pays))
    env.reset()
    assert env.step(np.zeros(2, np.int64)).rewards.tolist() == [0.5, 0.5]
    env.close()
