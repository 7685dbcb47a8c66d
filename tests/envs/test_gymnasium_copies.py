"""CopiesVectorEnv: what it gives, what it refuses, what it survives."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.errors import EnvError
from tests.envs.toys import FaultyEnv, NestedEnv, ScriptEnv, make_config, step_many


def copies(makers: list[Any], **settings: Any) -> CopiesVectorEnv:
    env = CopiesVectorEnv(lambda i: makers[i](), len(makers), "Toy-v0", make_config(**settings))
    env._faults.sleep = lambda seconds: None
    return env


def once(where: str, t: int, result: Any) -> Any:
    """A fault of the first episode only: at its step t, or at its reset."""

    def fault(env: FaultyEnv, at: str) -> Any:
        if at != where or env.resets != 1 or env.t != t:
            return None
        if isinstance(result, Exception):
            raise result
        return result

    return fault


def always(where: str, result: Any) -> Any:
    def fault(env: FaultyEnv, at: str) -> Any:
        if at == where and isinstance(result, Exception):
            raise result
        return result if at == where else None

    return fault


# What it gives.


def test_arrays_have_the_contract_s_dtypes() -> None:
    env = copies([ScriptEnv, ScriptEnv])
    assert env.reset([1, 2]).dtype == np.float32
    result = env.step(np.array([1, 2]))
    assert result.obs.shape == (2, 4) and result.obs.dtype == np.float32
    assert result.rewards.dtype == np.float32 and result.rewards.tolist() == [1, 2]
    assert result.terminateds.dtype == result.truncateds.dtype == bool
    assert result.valid is result.dropped is result.infos is None
    assert [type(e) for e in env.envs] == [ScriptEnv, ScriptEnv]


def test_the_reward_belongs_to_the_action_of_its_row() -> None:
    env = copies([lambda: ScriptEnv(0, [2])])
    env.reset([0])
    for action in range(10):
        result = env.step(np.array([action]))
        assert result.rewards[0] == action == result.obs[0, 3]
        if result.truncateds[0]:
            env.reset_done(result.truncateds)


def test_seeds_reach_their_envs_once() -> None:
    env = CopiesVectorEnv(lambda i: ScriptEnv(i, [1]), 3, "Toy-v0", make_config(), initial_seeds=[7, 8, 9])
    assert all(e.seeds == [] for e in env.envs)  # nothing is reset when made
    env.reset()
    env.step(np.zeros(3, int))
    env.reset_done(np.array([True, False, True]))
    env.reset()
    env.reset([1, 2, 3])
    assert [e.seeds for e in env.envs] == [[7, None, None, 1], [8, None, 2], [9, None, None, 3]]


def test_the_envs_go_on_where_they_are_in_other_rows() -> None:
    env = copies([lambda: ScriptEnv(0, [1]), lambda: ScriptEnv(1, [3])])
    env.reset([0, 0])
    result = env.step(np.zeros(2, int))
    obs = env.reset_done(result.truncateds)
    assert obs[:, 2].tolist() == [0, 1]


def test_stepping_after_the_end_is_an_error_and_not_a_step() -> None:
    env = copies([lambda: ScriptEnv(0, [1])])
    with pytest.raises(EnvError, match=r"before reset\(\)"):
        env.step(np.zeros(1, int))
    env.reset([0])
    env.step(np.zeros(1, int))
    with pytest.raises(EnvError, match="reset_done"):
        env.step(np.zeros(1, int))


def test_envs_can_be_left_out_of_a_step() -> None:
    env = copies([lambda: ScriptEnv(0, [1]), lambda: ScriptEnv(1, [3]), lambda: ScriptEnv(2, [3])])
    env.reset([0, 0, 0])
    env.step(np.array([5, 5, 5]))  # env 0 has ended, and nobody resets it
    result = env.step(np.array([6, 6, 6]), np.array([False, True, False]))
    assert result.valid is not None and result.valid.tolist() == [False, True, False]
    assert result.obs[:, 2:].tolist() == [[1, 5], [2, 6], [1, 5]]
    assert result.rewards.tolist() == [0, 6, 0] and not result.truncateds.any()
    env.step(np.array([7, 7, 7]), np.array([False, True, True]))
    with pytest.raises(EnvError, match="reset_done"):
        env.step(np.array([7, 7, 7]), np.array([True, False, True]))
    assert env.reset_done(np.array([True, False, False]))[:, 2].tolist() == [0, 3, 2]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, ()),
        spaces.Box(-1, 1, (2,)),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary(3),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, ())]),
    ],
)
def test_envs_get_actions_of_their_space(space: spaces.Space) -> None:
    class Picky(ScriptEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            return super().step(0)

    env = copies([Picky, Picky])
    env.reset([0, 0])
    space.seed(0)
    from headwater.envs.nested import make_gather

    env.step(make_gather(space)([space.sample(), space.sample()]))


def test_an_env_that_writes_into_its_action_does_not_reach_the_batch() -> None:
    class Writer(ScriptEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

        def step(self, action: Any) -> Any:
            action += 5
            return super().step(0)

    env = copies([Writer])
    env.reset([0])
    actions = np.zeros((1, 2), np.float32)
    env.step(actions)
    assert not actions.any()


def test_an_env_that_returns_the_same_array_again_does_not_reach_the_rows() -> None:
    class Reuser(ScriptEnv):
        buffer = np.zeros(4, np.float32)

        def _obs(self, action: Any) -> np.ndarray:
            self.buffer[:] = super()._obs(action)
            return self.buffer

    env = copies([Reuser, Reuser])
    first = env.reset([0, 0])
    result = env.step(np.array([3, 4]))
    assert first[:, 3].tolist() == [-1, -1]
    assert result.obs[0, 2] == 1


@pytest.mark.parametrize("reward", [1, True, np.float64(1), np.array(1.0), np.array([1.0])])
def test_rewards_of_any_sort(reward: Any) -> None:
    env = copies(
        [lambda: FaultyEnv(lambda e, where: (e._obs(), reward, 0, np.bool_(False), {}) if where == "step" else None)]
    )
    env.reset([0])
    assert env.step(np.zeros(1, int)).rewards.tolist() == [1.0]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(5), 3),
        (spaces.Discrete(5), np.array(3)),
        (spaces.Box(-1, 1, (2,)), [0.25, 0]),
        (spaces.Box(-1, 1, (2,)), np.array([0.25, 0])),
        (spaces.Box(0, 255, (2,), np.uint8), [200, 3]),
        (spaces.Box(-1, 1, ()), 0.25),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
)
def test_observations_of_any_sort(space: spaces.Space, value: Any) -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        return (value, {}) if where == "reset" else (value, 1.0, False, False, {})

    env = copies([lambda: FaultyEnv(fault, space=space)] * 2)
    obs = env.reset([0, 0])
    assert obs.dtype == space.dtype and obs[1].tolist() == np.asarray(value).tolist()
    result = env.step(np.zeros(2, int))
    assert result.obs.dtype == space.dtype and result.obs.tolist() == obs.tolist()


def test_infos_are_a_list_only_where_there_are_some() -> None:
    env = copies([lambda: ScriptEnv(0, [9]), lambda: ScriptEnv(1, [1])])
    env.reset([0, 0])
    assert env.step(np.zeros(2, int)).infos == [{}, {"ended": 0}]


# What it refuses.

STEP_FAULTS = [
    (ValueError("boom"), r"step\(\) raised ValueError: boom"),
    ((0, 0, 0, {}), r"tuple of 4 \(int, int, int, dict\), expected \(observation.*old gym API"),
    (5, r"step\(\) returned a int, expected"),
    ((np.zeros(2), np.nan, False, False, {}), "the reward is nan"),
    ((np.zeros(2), np.inf, False, False, {}), "the reward is inf"),
    ((np.zeros(2), None, False, False, {}), "the reward is the NoneType None"),
    ((np.zeros(2), np.zeros(2), False, False, {}), "the reward is the ndarray"),
    ((np.array([0, np.nan]), 1.0, False, False, {}), r"obs\[1\] is nan"),
    ((np.array([0, np.inf], np.float32), 1.0, False, False, {}), r"obs\[1\] is inf"),
    ((np.zeros(3), 1.0, False, False, {}), r"obs has the shape \(3,\), expected \(2,\)"),
    ((np.zeros((2, 1)), 1.0, False, False, {}), r"obs has the shape \(2, 1\)"),
    ((np.zeros(2, complex), 1.0, False, False, {}), "obs has the dtype complex128"),
    ((None, 1.0, False, False, {}), "obs has the shape"),
    (({"a": 1}, 1.0, False, False, {}), "obs has the shape"),
]


@pytest.mark.parametrize(("result", "says"), STEP_FAULTS)
@pytest.mark.parametrize("t", [1, 3])
def test_faults_of_step_name_the_env(result: Any, says: str, t: int) -> None:
    env = copies([FaultyEnv, lambda: FaultyEnv(once("step", t, result))])
    env.reset([11, 12])
    with pytest.raises(
        EnvError, match=rf"Env 'Toy-v0' \(worker 0, sub-env 1, step {t} of its episode, seed 12\): .*{says}"
    ):
        step_many(env, t)


def test_the_env_s_own_exception_is_the_cause() -> None:
    boom = KeyError("x")
    env = copies([lambda: FaultyEnv(once("step", 1, boom))])
    env.reset([0])
    with pytest.raises(EnvError, match="on_env_error='reset'") as caught:
        env.step(np.zeros(1, int))
    assert caught.value.__cause__ is boom


def test_out_of_space_observations_are_seen_on_the_first_and_every_hundredth_step() -> None:
    outside = (np.array([0.0, 5.0]), 1.0, False, False, {})
    env = copies([FaultyEnv, lambda: FaultyEnv(once("step", 1, outside))])
    env.reset([1, 2])
    with pytest.raises(EnvError, match=r"sub-env 1, step 1 .*obs\[1\] is 5.0, outside the bounds \[-1.0, 1.0\]"):
        env.step(np.zeros(2, int))
    env = copies([lambda: FaultyEnv(lambda e, w: outside if w == "step" and e.t > 1 else None, length=1000)])
    env.reset([1])
    step_many(env, 99)
    with pytest.raises(EnvError, match=r"sub-env 0, step 100 .*obs\[1\] is 5.0"):
        step_many(env, 1)
    env = copies([lambda: FaultyEnv(once("step", 2, outside))], check_env_steps=True)
    env.reset([1])
    with pytest.raises(EnvError, match="step 2 "):
        step_many(env, 2)


def test_integers_out_of_range_are_seen_on_every_step() -> None:
    env = copies([lambda: FaultyEnv(once("step", 3, (7, 1.0, False, False, {})), space=spaces.Discrete(5))])
    env.reset([1])
    with pytest.raises(EnvError, match="step 3 .*obs is 7, expected an integer from 0 to 4"):
        step_many(env, 3)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (RuntimeError("no map"), r"reset\(\) raised RuntimeError: no map"),
        (np.zeros(2), r"reset\(\) returned a ndarray, expected \(observation, info\)"),
        ((np.zeros(2), 5), r"reset\(\) returned a tuple of 2 \(ndarray, int\)"),
        ((np.zeros(3), {}), r"obs has the shape \(3,\)"),
        ((np.array([0, np.nan]), {}), r"obs\[1\] is nan"),
        ((np.array([0, 9.0]), {}), r"obs\[1\] is 9.0, outside"),
    ],
)
def test_faults_of_reset_name_the_env(result: Any, says: str) -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        if where == "reset" and isinstance(result, Exception):
            raise result
        return result if where == "reset" else None

    env = copies([FaultyEnv, lambda: FaultyEnv(fault)])
    with pytest.raises(EnvError, match=rf"\(worker 0, sub-env 1, at reset, seed 12\): .*{says}"):
        env.reset([11, 12])


def test_a_reset_without_seed_says_what_its_signature_must_be() -> None:
    class Old(FaultyEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return self._obs(), {}

    with pytest.raises(EnvError, match=r"reset\(self, \*, seed=None, options=None\)"):
        copies([Old]).reset([1])


def test_later_episodes_say_how_to_get_there() -> None:
    env = copies([lambda: FaultyEnv(lambda e, w: 5 if w == "step" and e.resets == 3 else None, length=2)])
    env.reset([42])
    with pytest.raises(EnvError, match="step 1 of its episode, seed 42 and 2 resets after it"):
        step_many(env, 5)


def test_different_spaces_are_refused() -> None:
    with pytest.raises(EnvError, match=r"sub-env 1 has the observation_space Box\(-1.0, 1.0, \(3,\)"):
        copies([FaultyEnv, lambda: FaultyEnv(space=spaces.Box(-1, 1, (3,)))])


def test_faults_in_nested_observations_name_the_key() -> None:
    class Bad(NestedEnv):
        def _obs(self) -> Any:
            obs = super()._obs()
            return {**obs, "image": obs["image"][:2]} if self.t == 2 else obs

    env = copies([NestedEnv, Bad])
    env.reset([1, 2])
    actions = {"go": np.zeros(2, int), "push": np.zeros((2, 2), np.float32)}
    env.step(actions)
    with pytest.raises(
        EnvError, match=r"sub-env 1, step 2 .*obs\['image'\] has the shape \(2, 3, 1\), expected \(3, 3, 1\)"
    ):
        env.step(actions)


# What it survives.


@pytest.mark.parametrize(("result", "says"), STEP_FAULTS)
def test_a_fault_drops_only_its_episode(result: Any, says: str, caplog: pytest.LogCaptureFixture) -> None:
    FaultyEnv.made = 0
    env = copies(
        [FaultyEnv, lambda: FaultyEnv(once("step", 2, result)) if FaultyEnv.made < 2 else FaultyEnv()],
        on_env_error="reset",
        on_bad_values="reset",
    )
    env.reset([1, 2])
    with caplog.at_level(logging.WARNING):
        results = step_many(env, 5)
    assert [r.valid is None for r in results] == [True, False, True, True, True]
    faulty = results[1]
    assert faulty.valid is not None and faulty.dropped is not None
    assert faulty.valid.tolist() == [True, False] and faulty.dropped.tolist() == [False, True]
    assert faulty.rewards.tolist() == [1, 0] and np.isfinite(faulty.obs).all()
    assert results[4].terminateds.tolist() == [True, False]  # the other env's episode is whole
    assert env.num_faults == 1
    assert "sub-env 1" in caplog.text and "dropped" in caplog.text


def test_an_env_that_raised_is_made_anew_with_a_seed_of_its_own() -> None:
    made: list[FaultyEnv] = []

    def maker() -> FaultyEnv:
        made.append(FaultyEnv(once("step", 2, ValueError("boom")) if len(made) == 1 else None))
        return made[-1]

    env = copies([maker, maker], on_env_error="reset")
    env.reset([1, 2])
    step_many(env, 4)
    assert len(made) == 3 and made[1].closed and not made[0].closed
    assert made[2].np_random_seed not in (1, 2, None) and made[2].t == 2
    assert env.envs[1] is made[2]


def test_a_fault_on_the_last_step_ends_nothing() -> None:
    bad_end = (np.array([np.nan, 0]), 1.0, True, False, {})
    env = copies([lambda: FaultyEnv(once("step", 2, bad_end), length=2)], on_bad_values="reset")
    env.reset([1])
    result = step_many(env, 2)[1]
    assert not result.terminateds.any() and result.dropped is not None and result.dropped[0]
    env.step(np.zeros(1, int))


def test_a_reset_is_tried_again() -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        return (np.array([np.nan, 0]), {}) if where == "reset" and env.resets < 3 else None

    env = copies([lambda: FaultyEnv(fault)], on_bad_values="reset")
    assert np.isfinite(env.reset([1])).all() and env.num_faults == 2


@pytest.mark.parametrize("where", ["reset", "step"])
def test_it_gives_up_after_too_many_in_a_row(where: str) -> None:
    env = copies([FaultyEnv, lambda: FaultyEnv(always(where, ValueError("boom")))], on_env_error="reset")
    waits: list[float] = []
    env._faults.sleep = waits.append
    with pytest.raises(EnvError, match=r"Gave up after 4 faults in a row .*max_env_errors_in_a_row=3.*boom"):
        env.reset([1, 2])
        step_many(env, 10)
    assert waits == [0.05, 0.1, 0.2]  # longer each time


def test_a_constructor_that_fails_later_counts_too() -> None:
    made = 0

    def maker() -> FaultyEnv:
        nonlocal made
        made += 1
        if made > 1:
            raise EnvError("no more licences")
        return FaultyEnv(always("step", ValueError("boom")))

    env = copies([maker], on_env_error="reset")
    env.reset([1])
    with pytest.raises(EnvError, match="Gave up.*no more licences"):
        env.step(np.zeros(1, int))


def test_a_whole_episode_between_faults_starts_the_count_anew() -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        return (
            (np.full(2, np.nan), 1.0, False, False, {}) if where == "step" and env.resets % 2 and env.t == 1 else None
        )

    env = copies([lambda: FaultyEnv(fault, length=2)], on_bad_values="reset", max_env_errors_in_a_row=1)
    env.reset([1])
    step_many(env, 60)
    assert env.num_faults == 20


def test_each_kind_of_fault_has_its_setting() -> None:
    env = copies([lambda: FaultyEnv(once("step", 1, ValueError("boom")))], on_bad_values="reset")
    env.reset([1])
    with pytest.raises(EnvError, match="boom"):
        env.step(np.zeros(1, int))
    env = copies([lambda: FaultyEnv(once("step", 1, (np.full(2, np.nan), 0, False, False, {})))], on_env_error="reset")
    env.reset([1])
    with pytest.raises(EnvError, match="nan"):
        env.step(np.zeros(1, int))


def test_close_closes_all_whatever_one_does(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(FaultyEnv):
        def close(self) -> None:
            raise OSError("port")

    env = copies([Stuck, FaultyEnv])
    env.close()
    assert env.envs[1].closed and "port" in caplog.text
    env.close()


def test_interrupts_are_not_faults() -> None:
    def fault(env: FaultyEnv, where: str) -> Any:
        raise KeyboardInterrupt

    env = copies([lambda: FaultyEnv(fault)], on_env_error="reset")
    with pytest.raises(KeyboardInterrupt):
        env.reset([1])


def test_gymnasium_envs_run_with_their_time_limit() -> None:
    env = CopiesVectorEnv(lambda i: gym.make("CartPole-v1", max_episode_steps=3), 2, "CartPole-v1", make_config())
    env.reset([1, 2])
    results = [env.step(np.array([0, 1])) for _ in range(3)]
    assert [r.truncateds.all() for r in results] == [False, False, True]
    env.close()
