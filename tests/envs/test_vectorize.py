"""make_vector_env: from what a user has to a VectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater.envs import make_vector_env
from headwater.envs.env_context import EnvContext
from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.vector_env import VectorEnv
from headwater.errors import ConfigError, EnvError, UnsupportedSpaceError
from headwater.registry import env_creator_for
from tests.envs.toys import FaultyEnv, ScriptEnv, make_config, roll


def make(spec: Any, num_envs: int = 3, env_config: Any = None, **settings: Any) -> VectorEnv:
    names = ("seeds", "validate_env", "global_index_offset")
    given = {name: settings.pop(name) for name in names if name in settings}
    env_id, creator = env_creator_for(spec)
    context = EnvContext(env_config, worker_index=1, num_workers=2)
    return make_vector_env(creator, env_id, num_envs, make_config(**settings), context, **given)


def kind(env: VectorEnv) -> str:
    if isinstance(env, CopiesVectorEnv):
        return "copies"
    assert isinstance(env, GymnasiumVectorEnv)
    return type(env._env).__name__


@pytest.mark.parametrize(
    ("spec", "settings", "wanted"),
    [
        ("CartPole-v1", {}, "CartPoleVectorEnv"),
        ("gymnasium:CartPole-v1", {}, "CartPoleVectorEnv"),
        ("CartPole-v1", {"vectorization": "native"}, "CartPoleVectorEnv"),
        ("CartPole-v1", {"vectorization": "sync"}, "copies"),
        ("CartPole-v1", {"num_envs": 1}, "copies"),
        ("CartPole-v1", {"num_envs": 1, "vectorization": "native"}, "CartPoleVectorEnv"),
        ("CartPole-v1", {"horizon": 20}, "CartPoleVectorEnv"),
        ("Acrobot-v1", {}, "copies"),
        (ScriptEnv, {}, "copies"),
        (lambda context: gym.make("CartPole-v1"), {}, "copies"),
    ],
)
def test_how_an_env_is_vectorised(spec: Any, settings: Any, wanted: str) -> None:
    env = make(spec, **settings)
    assert kind(env) == wanted
    assert env.num_envs == settings.get("num_envs", 3)
    env.close()


def test_env_config_reaches_native_envs_and_copies() -> None:
    for how in ("sync", "native"):
        env = make("CartPole-v1", env_config={"sutton_barto_reward": True, "max_episode_steps": 2}, vectorization=how)
        env.reset([1, 2, 3])
        assert not env.step(np.zeros(3, int)).rewards.any()
        assert env.step(np.zeros(3, int)).truncateds.all()


def test_native_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="'Acrobot-v1' has no vector entry point"):
        make("Acrobot-v1", vectorization="native")
    with pytest.raises(ConfigError, match="no vector entry point"):
        make(ScriptEnv, vectorization="native")


def test_a_native_env_with_a_missing_package_says_so() -> None:
    pytest.importorskip("gymnasium.envs.registration")
    gym.register("Missing-v0", entry_point=ScriptEnv, vector_entry_point="headwater_no_such_package.module:Env")
    with pytest.raises(EnvError, match="needs a package that is not installed.*vectorization='sync'"):
        make("Missing-v0")
    assert kind(make("Missing-v0", vectorization="sync")) == "copies"
    gym.registry.pop("Missing-v0")


def test_a_native_env_that_does_not_know_the_env_config_says_so() -> None:
    with pytest.raises(EnvError, match="could not be made: TypeError.*'colour'"):
        make("CartPole-v1", env_config={"colour": "red"})


def test_no_env_is_made_twice_or_reset() -> None:
    made: list[ScriptEnv] = []
    contexts: list[EnvContext] = []

    def creator(context: EnvContext) -> gym.Env:
        contexts.append(context)
        made.append(ScriptEnv())
        return made[-1]

    env = make(creator, env_config={"a": 1}, seeds=[5, 6, 7], global_index_offset=10)
    assert len(made) == 3 and all(e.seeds == [] for e in made)
    assert contexts == [{"a": 1}] * 3
    assert [(c.worker_index, c.vector_index, c.num_workers) for c in contexts] == [(1, 10, 2), (1, 11, 2), (1, 12, 2)]
    env.reset()
    assert [e.seeds for e in made] == [[5], [6], [7]] and len(made) == 3


@pytest.mark.parametrize("how", ["sync", "native"])
def test_validate_env_runs_wherever_an_env_is_made(how: str) -> None:
    seen: list[Any] = []
    make("CartPole-v1", vectorization=how, validate_env=lambda env, context: seen.append((env, context.vector_index)))
    assert len(seen) == (3 if how == "sync" else 1)

    def refuse(env: Any, context: EnvContext) -> None:
        raise ValueError("no lunar landers")

    with pytest.raises(EnvError, match="refused by validate_env: ValueError: no lunar landers"):
        make("CartPole-v1", vectorization=how, validate_env=refuse)


def test_a_failing_constructor_names_env_and_config() -> None:
    def creator(context: EnvContext) -> gym.Env:
        if context.vector_index == 2:
            raise OSError("no display")
        return ScriptEnv()

    with pytest.raises(
        EnvError, match=r"worker 1, sub-env 2\) could not be made.*OSError: no display.*\{'map': 3\}"
    ) as e:
        make(creator, env_config={"map": 3})
    assert isinstance(e.value.__cause__, OSError)


def test_what_is_no_env_is_refused() -> None:
    class Duck:
        observation_space = action_space = None

        def reset(self) -> None: ...

        def step(self, action: Any) -> None: ...

    with pytest.raises(EnvError, match=r"Duck, expected a gymnasium.Env. Derive the env from gymnasium.Env"):
        make(lambda context: Duck())

    class OldGym(Duck):
        pass

    OldGym.__module__ = "gym.envs"
    with pytest.raises(EnvError, match="old gym package"):
        make(lambda context: OldGym())


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Sequence(gym.spaces.Discrete(2))])
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_unsupported_spaces_are_refused_when_made(space: gym.Space, which: str) -> None:
    class Odd(ScriptEnv):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, which, gym.spaces.Dict({"a": space}))

    with pytest.raises(UnsupportedSpaceError, match=r"\['a'\]"):
        make(Odd)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_creator_may_return_a_vector_env(mode: AutoresetMode) -> None:
    def creator(context: EnvContext) -> SyncVectorEnv:
        return SyncVectorEnv([lambda i=i: ScriptEnv(i, [2, 4]) for i in range(3)], autoreset_mode=mode)

    env = make(creator)
    assert kind(env) == "SyncVectorEnv"
    assert roll(env, 9) == roll(make(lambda c: ScriptEnv(c.vector_index, [2, 4])), 9)
    with pytest.raises(
        ConfigError, match="vector env of 3 envs, but num_envs_per_worker is 5: set num_envs_per_worker=3"
    ):
        make(creator, num_envs=5)


def test_a_creator_may_return_our_own_vector_env() -> None:
    class Own(VectorEnv):
        num_envs = 3
        observation_space = gym.spaces.Box(-1, 1, (1,))
        action_space = gym.spaces.Discrete(2)
        env_id = "own"

        def reset(self, seeds: Any = None) -> Any:
            return np.zeros((3, 1), np.float32)

        def step(self, actions: Any, active: Any = None) -> Any: ...

        def reset_done(self, mask: np.ndarray) -> Any: ...

    own = Own()
    assert make(lambda context: own) is own
    assert not own.has_state and own.get_state() is None and list(own.envs) == []
    assert own.start_episodes([1, 2, 3]).shape == (3, 1)
    with pytest.raises(NotImplementedError, match="Own cannot go on"):
        own.set_state({})
    own.close()


def test_gymnasium_s_passive_checker_is_taken_out() -> None:
    env = make("Acrobot-v1")
    assert isinstance(env, CopiesVectorEnv)
    assert "PassiveEnvChecker" not in str(env._sub_envs.envs[0]) and "TimeLimit" in str(env._sub_envs.envs[0])


@pytest.mark.parametrize("spec", ["CartPole-v1", "Acrobot-v1"])
def test_seeds_make_runs_repeat_and_differ(spec: str) -> None:
    first = [make(spec, seeds=seeds).reset() for seeds in ([1, 2, 3], [1, 2, 3], [4, 5, 6])]
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])
    assert len({tuple(row) for row in first[0].tolist()}) == 3


def test_classes_get_the_env_config_and_faults_name_the_worker() -> None:
    env = make(lambda context: FaultyEnv(lambda e, where: 5 if where == "step" else None))
    env.reset([1, 2, 3])
    with pytest.raises(EnvError, match="worker 1, sub-env 0"):
        env.step(np.zeros(3, int))
