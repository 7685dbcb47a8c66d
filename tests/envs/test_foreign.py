from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headwater.envs.adapters import make_env
from headwater.envs.env_context import EnvContext
from headwater.envs.foreign import as_known_env, creator_of_scheme, make_envpool
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.envs.old_gym import OldApiEnv, tell
from headwater.envs.vector_env import make_vector_env
from headwater.errors import ConfigError, EnvError, MissingExtraError
from headwater.registry import env_creator_for
from tests.envs.toys import ScriptEnv, make_config

# Old Gym.


class Old:
    """The old API with Gymnasium's spaces: three steps, cut where `cut`."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, cut: bool = False) -> None:
        self.cut, self.seeds, self.closed = cut, [], False

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> np.ndarray:
        self.t = 0
        return np.zeros(1, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        self.t += 1
        done = self.t == 3
        return np.full(1, self.t, np.float32), 1.0, done, {"TimeLimit.truncated": True} if done and self.cut else {}

    def render(self, mode: str = "human") -> Any:
        return mode

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("cut", [False, True])
def test_the_old_api_with_new_spaces_needs_no_package(cut: bool, caplog: pytest.LogCaptureFixture) -> None:
    tell.cache_clear()
    made: list[Old] = []

    def creator(context: EnvContext) -> Any:
        made.append(Old(cut))
        return made[-1]

    with caplog.at_level(logging.WARNING, "headwater"):
        env = make_vector_env(creator, "old", 2, make_config(), EnvContext(), seeds=[5, 6])
    assert [record.getMessage() for record in caplog.records] == [
        "Env 'old' is of the old Gym API and runs through OldApiEnv. "
        "Its `done` counts as a true end unless info['TimeLimit.truncated'] says otherwise."
    ]
    env.reset()
    assert [each.seeds for each in made] == [[5], [6]]
    for _ in range(3):
        result = env.step(np.zeros(2, int))
    assert result.obs.tolist() == [[3], [3]]
    assert (result.terminateds.all(), result.truncateds.all()) == (not cut, cut)
    env.close()
    assert all(each.closed for each in made)
    wrapped = OldApiEnv(made[0])
    assert wrapped.render() == "rgb_array" and wrapped.unwrapped is made[0]


def test_whatever_is_known_stays_as_it_is() -> None:
    class Own(MultiAgentEnv):
        observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any: ...

        def step(self, actions: Any) -> Any: ...

    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    for env in (ScriptEnv(), Own(), vector, None, 3, object()):
        assert as_known_env(env, "x") is env


# What there is of gym that shimmy and these tests touch; the package itself takes its place where it is installed.
GYM = """
import sys, types
class Env:
    metadata = {}
    render_mode = None
    unwrapped = property(lambda self: self)
    def close(self): pass
class _Space:
    pass
spaces = types.ModuleType("gym.spaces")
for name in ("Discrete", "Box", "MultiDiscrete", "MultiBinary", "Tuple", "Dict", "Sequence", "Graph", "Text"):
    setattr(spaces, name, type(name, (_Space,), {"__module__": "gym.spaces"}))
class Discrete(spaces.Discrete):
    def __init__(self, n): self.n = n
class Box(spaces.Box):
    def __init__(self, low, high, shape):
        import numpy as np
        self.low, self.high, self.shape, self.dtype = np.full(shape, low), np.full(shape, high), shape, np.float32
spaces.Discrete, spaces.Box, Space = Discrete, Box, _Space
wrappers = types.ModuleType("gym.wrappers")
sys.modules.update({"gym.spaces": spaces, "gym.wrappers": wrappers})
"""
CONVERT = """
import gym, numpy as np
from headwater.config import TrainerConfig
from headwater.envs.env_context import EnvContext
from headwater.envs.vector_env import make_vector_env

class V21(gym.Env):
    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)
    def reset(self):
        self.t = 0
        return np.zeros(2, np.float32)
    def step(self, action):
        self.t += 1
        return np.full(2, self.t, np.float32), 1.0, self.t == 2, {"TimeLimit.truncated": self.t == 2}

class V26(V21):
    def reset(self, *, seed=None, options=None):
        super().reset()
        return np.full(2, seed, np.float32), {}
    def step(self, action):
        obs, reward, done, info = super().step(action)
        return obs, reward, done, False, info

class PassiveEnvChecker(gym.Env):  # as gym.make puts around
    def __init__(self, env):
        self.env, self.observation_space, self.action_space = env, env.observation_space, env.action_space
    def reset(self, *, seed=None, options=None):
        raise AttributeError("module 'numpy' has no attribute 'bool8'")

ended, cut = (True, False), (False, True)
for make, first, ends in ((V21, 0, cut), (V26, 7, ended), (lambda: PassiveEnvChecker(V26()), 7, ended)):
    env = make_vector_env(lambda context: make(), "g", 1, TrainerConfig(), EnvContext())
    assert env.reset([7]).tolist() == [[first] * 2]
    env.step(np.zeros(1, int))
    result = env.step(np.zeros(1, int))
    assert result.obs.tolist() == [[2, 2]] and (result.terminateds[0], result.truncateds[0]) == ends, result
"""


def test_envs_of_the_package_gym_run_through_shimmy(tmp_path: Path) -> None:
    pytest.importorskip("shimmy")
    if importlib.util.find_spec("gym") is None:
        (tmp_path / "gym.py").write_text(GYM)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CONVERT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "'g' is of the old Gym API and runs through shimmy's GymV21CompatibilityV0" in done.stderr
    assert "runs through shimmy's GymV26CompatibilityV0.\n" in done.stderr


def fake_of(package: str, **attributes: Any) -> Any:
    return type("Env", (), {"__module__": package + ".core", "reset": lambda self: 0, **attributes})()


@pytest.mark.skipif(importlib.util.find_spec("gym") is not None, reason="gym is installed")
def test_without_gym_the_remedy_is_named() -> None:
    pytest.importorskip("shimmy")
    with pytest.raises(EnvError, match=r"'mine' is of the old gym package.*pip install gym. Or derive"):
        as_known_env(fake_of("gym"), "mine")
    with pytest.raises(EnvError, match="old gym package"):  # only its spaces are gym's
        as_known_env(type("Env", (), {"observation_space": fake_of("gym"), "reset": lambda self: 0})(), "mine")


def test_without_shimmy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shimmy", None)
    for package in ("gym", "dm_control"):
        with pytest.raises(MissingExtraError, match=r"headwater\[shimmy\]"):
            as_known_env(fake_of(package), "mine")


@pytest.mark.skipif(importlib.util.find_spec("dm_control") is not None, reason="dm_control is installed")
def test_without_dm_control_the_extra_is_named() -> None:
    pytest.importorskip("shimmy")
    dm_env = pytest.importorskip("dm_env")

    class Catch(dm_env.Environment):
        def reset(self) -> Any: ...

        def step(self, action: Any) -> Any: ...

        def observation_spec(self) -> Any: ...

        def action_spec(self) -> Any: ...

    with pytest.raises(EnvError, match=r"'catch' is a dm_env.Environment.*pip install 'shimmy\[dm-control\]'"):
        as_known_env(Catch(), "catch")


# EnvPool.


def test_envpools_rows_are_transitions_only() -> None:
    pytest.importorskip("envpool")
    raw = make_envpool("CartPole-v1", 8, max_episode_steps=20)
    assert isinstance(raw, gymnasium.vector.VectorEnv) and raw.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env = GymnasiumVectorEnv(raw, "envpool:CartPole-v1", make_config(check_env_steps=True))
    single = gymnasium.make("CartPole-v1", max_episode_steps=20).unwrapped
    rng = np.random.default_rng(0)
    obs = env.reset(list(range(8)))
    lengths, counts, fillers = np.zeros(8, int), {"terminated": 0, "truncated": 0}, 0
    for _ in range(150):
        actions = rng.integers(0, 2, 8)
        result = env.step(actions)
        valid = np.ones(8, bool) if result.valid is None else result.valid
        fillers += int((~valid).sum())
        lengths += valid
        for i in range(8):
            if valid[i]:  # every row that counts is a step of CartPole's, final observations included
                single.reset()
                single.state = obs[i].astype(float)
                expected, _, terminated, *_ = single.step(int(actions[i]))
                np.testing.assert_allclose(result.obs[i], expected, rtol=1e-4, atol=1e-5)
                at_limit = lengths[i] == 20  # where EnvPool does not say whether it also ended
                assert (result.terminateds[i], result.truncateds[i]) == (terminated and not at_limit, at_limit)
                assert result.rewards[i] == 1
            else:
                assert np.abs(result.obs[i]).max() <= 0.05 and not (result.terminateds[i] or result.truncateds[i])
        counts["terminated"] += int(result.terminateds.sum())
        counts["truncated"] += int(result.truncateds.sum())
        ended = result.terminateds | result.truncateds
        lengths[ended] = 0
        obs = env.reset_done(ended) if ended.any() else result.obs
    assert min(counts.values()) > 0 and fillers >= sum(counts.values()) - 8
    env.close()
    env.close()


def test_envpool_is_seeded_by_reset() -> None:
    pytest.importorskip("envpool")
    env = GymnasiumVectorEnv(make_envpool("CartPole-v1", 3), "pool", make_config())
    first, again, other = (env.reset(seeds).copy() for seeds in ([1, 2, 3], [1, 2, 3], [1, 2, 2**31 + 9]))
    assert (first == again).all() and (first[:2] == other[:2]).all() and (first[2] != other[2]).any()
    assert (env.reset(None) != other).all()  # goes on
    unseeded = [make_envpool("CartPole-v1", 3).reset()[0] for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).all()
    seeded = [make_envpool("CartPole-v1", 3, seed=4).reset(seed=seed)[0] for seed in (None, 4)]
    assert (seeded[0] == seeded[1]).all() and (seeded[0][0] != seeded[0][1]).any()


def test_single_envs_of_envpool_are_reset_for_a_horizon() -> None:
    pytest.importorskip("envpool")
    env = GymnasiumVectorEnv(make_envpool("CartPole-v1", 3), "pool", make_config())
    env.reset([1, 2, 3])
    assert env.can_reset_rows
    for _ in range(2):
        before = env.step(np.ones(3, int)).obs.copy()
    after = env.reset_done(np.array([False, True, False]))
    assert (after[[0, 2]] == before[[0, 2]]).all() and np.abs(after[1]).max() <= 0.05 and (after[1] != before[1]).all()
    result = env.step(np.zeros(3, int))
    assert result.valid is None and np.abs(result.obs[1] - after[1]).max() < 0.5


def test_a_run_makes_pools_by_name() -> None:
    pytest.importorskip("envpool")
    _, creator = env_creator_for("envpool:CartPole-v1")
    for context in (EnvContext({"max_episode_steps": 9}, num_envs=4), EnvContext({"num_envs": 4})):
        env = make_env(creator, "envpool:CartPole-v1", 4, make_config(remote_worker_envs=False), context)
        assert isinstance(env, GymnasiumVectorEnv) and env.reset([1, 2, 3, 4]).shape == (4, 4)
        env.close()
    with pytest.raises(ConfigError, match="num_envs_per_worker=3"):
        make_env(creator, "pool", 4, make_config(remote_worker_envs=False), EnvContext({"num_envs": 3}))


def test_envpool_names_what_it_cannot_make() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(EnvError, match=r"no env 'envpool:CartPol-v1'.*Did you mean CartPole-v1"):
        make_envpool("CartPol-v1", 2)
    with pytest.raises(EnvError, match=r"batch_size=1 returns some of the 2 envs"):
        make_envpool("CartPole-v1", 2, batch_size=1)
    with pytest.raises(EnvError, match=r"'envpool:CartPole-v1' could not be made with the settings .*'level': 3"):
        make_envpool("CartPole-v1", 2, level=3)
    with pytest.raises(EnvError, match=r"step\(\) was called before reset"):
        make_envpool("CartPole-v1", 2).step(np.zeros(2, int))


def test_without_envpool_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r"headwater\[envpool\]"):
        make_envpool("CartPole-v1", 2)


def test_schemes() -> None:
    pytest.importorskip("pettingzoo")
    env = creator_of_scheme("pettingzoo", "tictactoe_v3")(EnvContext({"screen_height": 200}))
    assert isinstance(env, MultiAgentEnv) and env.unwrapped.screen_height == 200
    with pytest.raises(ConfigError, match="'zoo' in 'zoo:x' is no scheme"):
        creator_of_scheme("zoo", "x")
