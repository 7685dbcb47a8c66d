"""RemoteVectorEnv: envs as actors, in their own time; those that die, hang or raise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headwater import PPOTrainer
from headwater.engines.ray import RayEngine
from headwater.envs.base_env import AGENT_ID, ASYNC_RESET_RETURN, LostEpisode, Poll
from headwater.envs.remote_vector_env import RemoteVectorEnv
from headwater.errors import EnvError
from tests.envs.multi_agent_toys import UNEQUAL, Script
from tests.envs.toys import make_config

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module", autouse=True)
def ray_of_all() -> Iterator[None]:
    """One Ray for all tests of the module."""
    engine = RayEngine(init_args={"num_cpus": 2, "object_store_memory": 80 * 1024 * 1024})
    engine.start()
    yield
    engine.shutdown()


class Gate(gym.Env):
    """Waits in `step` until a file is there; an action of 2 raises, 3 ends its process."""

    def __init__(self, index: int, folder: str) -> None:
        self.index, self.folder = index, Path(folder)
        self.observation_space = spaces.Box(-9, 9, (2,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.array([self.index, 0], np.float32), {"seed": seed}

    def step(self, action: Any) -> Any:
        if action == 2:
            raise ZeroDivisionError("the simulator broke")
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        while action == 1 and not (self.folder / f"go{self.index}").exists():
            time.sleep(0.005)
        self.t += 1
        return np.array([self.index, self.t], np.float32), float(self.t), False, self.t == 3, {}


def remote(tmp_path: Path, num_envs: int = 2, wait_ms: float = 0, **settings: Any) -> RemoteVectorEnv:
    config = make_config(**{"sample_timeout_s": 60.0, **settings})
    folder = str(tmp_path)
    env = RemoteVectorEnv(lambda i: Gate(i, folder), num_envs, None, wait_ms, env_id="Gate", config=config)
    env.start_episodes(list(range(10, 10 + num_envs)))
    return env


def poll_until(env: RemoteVectorEnv, wanted: set[int]) -> dict[int, Poll]:
    """Polls until each of the envs has been in one."""
    found: dict[int, Poll] = {}
    while not wanted <= set(found):
        poll = env.poll()
        found |= {index: poll for index in poll.obs}
    return found


def test_envs_are_polled_as_they_become_ready(tmp_path: Path) -> None:
    env = remote(tmp_path)
    assert env.observation_space_of(AGENT_ID).shape == (2,) and not env.is_multi_agent and env.get_unwrapped() == []
    polls = poll_until(env, {0, 1})
    assert polls[1].obs[1][AGENT_ID].tolist() == [1, 0] and polls[1].infos[1][AGENT_ID] == {"seed": 11}
    assert polls[0].rewards[0] == {}
    env.send_actions({0: {AGENT_ID: 1}, 1: {AGENT_ID: 0}})  # 0 waits at its gate
    for t in (1, 2):
        poll = env.poll()
        assert list(poll.obs) == [1] and poll.rewards[1] == {AGENT_ID: float(t)}
        env.send_actions({1: {AGENT_ID: 0}})
    assert env.poll().truncateds[1]["__all__"], "one env goes through its episode while the other takes its time"
    assert env.try_reset(1) == ASYNC_RESET_RETURN
    assert env.poll().obs[1][AGENT_ID].tolist() == [1, 0]
    (tmp_path / "go0").touch()
    poll = env.poll()
    assert list(poll.obs) == [0] and poll.obs[0][AGENT_ID].tolist() == [0, 1]
    env.stop()
    env.stop()


def test_ready_ones_may_wait_for_others(tmp_path: Path) -> None:
    env = remote(tmp_path, wait_ms=20_000)
    assert set(env.poll().obs) == {0, 1}, "both came in the time, and no time was waited in vain"
    env.stop()


def test_a_killed_actor_loses_its_episode_only(tmp_path: Path) -> None:
    env = remote(tmp_path)
    poll_until(env, {0, 1})
    before = env.pids
    env.send_actions({0: {AGENT_ID: 3}, 1: {AGENT_ID: 0}})
    polls = poll_until(env, {0, 1})
    assert isinstance(polls[0].obs[0], LostEpisode) and "its actor died" in polls[0].obs[0].reason
    assert polls[1].obs[1][AGENT_ID].tolist() == [1, 1]
    env.send_actions({1: {AGENT_ID: 0}})
    polls = poll_until(env, {0, 1})
    assert polls[0].obs[0][AGENT_ID].tolist() == [0, 0] and polls[0].infos[0][AGENT_ID]["seed"] not in (None, 10)
    assert env.num_faults == 1 and env.pids[0] != before[0] and env.pids[1] == before[1]
    env.stop()


def test_an_env_that_raises_ends_the_run_or_its_episode(tmp_path: Path) -> None:
    env = remote(tmp_path)
    poll_until(env, {0, 1})
    env.send_actions({1: {AGENT_ID: 2}})
    with pytest.raises(EnvError, match=r"'Gate' .*sub-env 1, step 1.*last seed 11.*ZeroDivisionError"):
        env.poll()
    env.stop()
    env = remote(tmp_path, on_env_error="reset")
    poll_until(env, {0, 1})
    env.send_actions({1: {AGENT_ID: 2}})
    assert isinstance(env.poll().obs[1], LostEpisode) and env.num_faults == 1
    assert env.poll().obs[1][AGENT_ID].tolist() == [1, 0]
    env.stop()


def test_an_env_that_hangs_is_replaced(tmp_path: Path) -> None:
    env = remote(tmp_path, sample_timeout_s=20.0)
    poll_until(env, {0, 1})
    env._timeout_s = 0.3
    env.send_actions({0: {AGENT_ID: 1}})
    reason = poll_until(env, {0})[0].obs[0].reason
    assert "step() has not come back for 0.3 s" in reason
    env._timeout_s = 20.0
    assert poll_until(env, {0})[0].obs[0][AGENT_ID].tolist() == [0, 0]
    env.stop()


def test_envs_of_several_agents() -> None:
    env = RemoteVectorEnv(
        lambda i: Script(UNEQUAL), 1, True, env_id="Script", config=make_config(sample_timeout_s=60.0)
    )
    assert env.is_multi_agent and env.possible_agents == ["a", "b", "c"]
    env.start_episodes([3])
    assert sorted(env.poll().obs[0]) == ["a", "b"]
    env.send_actions({0: {"a": 1, "b": 2}})
    poll = env.poll()
    assert poll.rewards[0] == {"a": 1.0, "b": 10.0} and sorted(poll.obs[0]) == ["a", "c"]
    env.stop()


def test_an_env_that_cannot_be_made() -> None:
    def make_env(index: int) -> Any:
        raise OSError("no licence")

    with pytest.raises(EnvError, match="'Broken': an actor could not be started.*"):
        RemoteVectorEnv(make_env, 1, env_id="Broken", config=make_config(sample_timeout_s=60.0))


def test_ppo_trains_through_a_kill() -> None:
    config = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 0,
              "remote_worker_envs": True}  # fmt: skip
    with PPOTrainer(config, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.train()
        pids = trainer.workers.local_worker().env.pids
        os.kill(pids[1], signal.SIGKILL)
        result = trainer.train()
        assert result["num_env_faults"] == 1 and result["info"]["num_steps_trained"] >= 128
    for pid in pids:  # an ended process may stay a moment, until its parent has looked
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists()
