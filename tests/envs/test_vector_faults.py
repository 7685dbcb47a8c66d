"""Faults of vector envs: what is dropped, what goes on, when it gives up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.errors import EnvError
from tests.envs.test_gymnasium_modes import OneSeedEnv
from tests.envs.toys import FaultyEnv, make_config, step_many

MODES = list(AutoresetMode)
SURVIVE = {"on_env_error": "reset", "on_bad_values": "reset"}


def sync(mode: AutoresetMode, faults: list[Any], length: int = 5, **settings: Any) -> GymnasiumVectorEnv:
    """A SyncVectorEnv of FaultyEnvs; only those made first have faults."""
    left = list(faults)

    def make() -> SyncVectorEnv:
        fns = [lambda: FaultyEnv(left.pop(0) if left else None, length) for _ in faults]
        return SyncVectorEnv(fns, autoreset_mode=mode)

    env = GymnasiumVectorEnv(make(), "Toy-v0", make_config(**settings), make)
    env._faults.sleep = lambda seconds: None
    return env


def nan_at(t: int) -> Any:
    nan = np.full(2, np.nan, np.float32)
    return lambda env, where: (
        (nan, 1.0, False, False, {}) if where == "step" and env.t == t and env.resets == 1 else None
    )


def raise_at(t: int, where: str = "step", resets: int = 1) -> Any:
    def fault(env: FaultyEnv, at: str) -> None:
        if at == where and env.t == t and env.resets == resets:
            raise ValueError("boom")

    return fault


@pytest.mark.parametrize("mode", MODES)
def test_bad_values_drop_one_episode(mode: AutoresetMode) -> None:
    env = sync(mode, [None, nan_at(2)], **SURVIVE)
    env.reset([1, 2])
    results = step_many(env, 5)
    bad = results[1]
    assert bad.valid is not None and bad.dropped is not None
    assert bad.valid.tolist() == [True, False] and bad.dropped.tolist() == [False, True]
    assert np.isfinite(bad.obs).all() and bad.rewards.tolist() == [1, 0]
    assert all(r.valid is None for r in (results[0], *results[2:]))
    assert results[4].terminateds.tolist() == [True, False] and env.num_faults == 1


@pytest.mark.parametrize("mode", MODES)
def test_bad_values_at_an_episodes_end_drop_it_too(mode: AutoresetMode) -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        if where == "step" and env.t == 2 and env.resets == 1:
            return np.full(2, np.nan, np.float32), 1.0, True, False, {}
        return None

    env = sync(mode, [None, fault], **SURVIVE)
    env.reset([1, 2])
    results = step_many(env, 5)
    bad = results[1]
    assert bad.valid is not None and bad.dropped is not None
    assert bad.valid.tolist() == [True, False] and bad.dropped.tolist() == [False, True]
    assert not bad.terminateds.any() and np.isfinite(bad.obs).all()
    assert all(r.valid is None for r in (results[0], *results[2:])) and env.num_faults == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_error_drops_all_episodes_and_makes_all_anew(mode: AutoresetMode) -> None:
    env = sync(mode, [None, raise_at(2)], **SURVIVE)
    env.reset([1, 2])
    results = step_many(env, 7)
    bad = results[1]
    assert bad.valid is not None and bad.dropped is not None
    assert not bad.valid.any() and bad.dropped.all() and not bad.rewards.any()
    assert [r.valid is None for r in results] == [True, False, True, True, True, True, True]
    assert results[6].terminateds.all()  # five steps after it


def test_an_env_that_was_only_being_reset_loses_nothing() -> None:
    env = sync(AutoresetMode.NEXT_STEP, [None, raise_at(2)], length=9, **SURVIVE)
    first = env._env.envs[0]  # type: ignore[attr-defined]
    first.length = 1
    env.reset([1, 2])
    assert env.step(np.zeros(2, int)).terminateds.tolist() == [True, False]
    env.reset_done(np.array([True, False]))
    bad = env.step(np.zeros(2, int))
    assert bad.dropped is not None and bad.dropped.tolist() == [False, True]


def test_an_error_in_a_masked_reset_is_told_by_the_next_step() -> None:
    env = sync(AutoresetMode.DISABLED, [raise_at(0, "reset", 2), None], length=2, **SURVIVE)
    env._env.envs[1].length = 9  # type: ignore[attr-defined]
    env.reset([1, 2])
    done = step_many_without_reset(env, 2)
    obs = env.reset_done(done)
    told = env.step(np.zeros(2, int))
    assert told.dropped is not None and told.dropped.tolist() == [False, True]
    assert told.valid is not None and not told.valid.any() and np.array_equal(told.obs, obs)
    assert env.step(np.zeros(2, int)).valid is None


def step_many_without_reset(env: GymnasiumVectorEnv, num_steps: int) -> np.ndarray:
    for _ in range(num_steps):
        result = env.step(np.zeros(2, int))
    return result.terminateds | result.truncateds


@pytest.mark.parametrize("fault", [nan_at(2), raise_at(2)])
def test_by_default_a_fault_stops(fault: Any) -> None:
    env = sync(AutoresetMode.NEXT_STEP, [None, fault])
    env.reset([1, 2])
    with pytest.raises(EnvError, match=r"Env 'Toy-v0' \(worker 0, .*in step 2 of the vector env"):
        step_many(env, 3)


def test_it_gives_up() -> None:
    env = sync(AutoresetMode.NEXT_STEP, [raise_at(1)] * 40, **SURVIVE)
    env.reset([1] * 40)
    env._make_env = lambda: SyncVectorEnv([lambda: FaultyEnv(raise_at(1))] * 40)
    with pytest.raises(EnvError, match="Gave up after 4 faults in a row.*boom"):
        step_many(env, 9)


def test_a_vector_env_that_cannot_be_made_anew_says_so() -> None:
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: FaultyEnv(raise_at(1))]), "Toy-v0", make_config(**SURVIVE))
    env._faults.sleep = lambda seconds: None
    env.reset([1])
    with pytest.raises(EnvError, match="boom.*cannot be made anew"):
        env.step(np.zeros(1, int))


def test_bad_values_of_an_env_without_masked_resets_reset_all() -> None:
    native = OneSeedEnv()
    env = GymnasiumVectorEnv(native, "one", make_config(**SURVIVE))
    env._faults.sleep = lambda seconds: None
    env.reset([1, 2])
    native.rewards = np.array([1, np.nan])
    result = env.step(np.zeros(2, int))
    assert result.dropped is not None and result.dropped.all()
    native.rewards = np.ones(2)
    assert env.step(np.zeros(2, int)).valid is None


def test_close_survives_an_env_that_does_not(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(OneSeedEnv):
        def close(self, **kwargs: Any) -> None:
            raise OSError("port")

    env = GymnasiumVectorEnv(Stuck(), "one", make_config())
    env.close()
    assert "close() raised OSError: port" in caplog.text
