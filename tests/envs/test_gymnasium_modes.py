"""All ways to run an env give the same transitions: copies, and vector envs in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.vector_env import VectorEnv, info_of_row
from headwater.errors import EnvError
from tests.envs.toys import NestedEnv, ScriptEnv, make_config, roll

MODES = [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def make(mode: AutoresetMode | None, makers: list[Any]) -> tuple[VectorEnv, list[Any]]:
    """A vector env over what `makers` make (copies where mode is None), and the single envs."""
    made: list[Any] = []

    def maker(index: int) -> gym.Env:
        made.append(makers[index]())
        return made[-1]

    if mode is None:
        return CopiesVectorEnv(maker, len(makers), "Script", make_config()), made
    vector = SyncVectorEnv([lambda i=i: maker(i) for i in range(len(makers))], autoreset_mode=mode)
    return GymnasiumVectorEnv(vector, "Script", make_config()), made


SCRIPT = st.tuples(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.sampled_from(["terminated", "truncated", "both"]), min_size=1, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(scripts=st.lists(SCRIPT, min_size=1, max_size=4))
def test_every_mode_gives_the_same_transitions(scripts: Any) -> None:
    makers = [lambda i=i, s=s: ScriptEnv(i, s[0], s[1]) for i, s in enumerate(scripts)]
    wanted = None
    for mode in MODES:
        env, single = make(mode, makers)
        rows = roll(env, 25)
        wanted = wanted or rows
        assert rows == wanted, mode
        for i, part in enumerate(rows):
            for obs, action, reward, next_obs, terminated, truncated in part:
                number, episode, t, _ = obs
                length = scripts[i][0][int(episode) % len(scripts[i][0])]
                kind = scripts[i][1][int(episode) % len(scripts[i][1])]
                assert (number, t < length) == (i, True)  # never from a final observation
                assert next_obs == (i, episode, t + 1, action)  # the final one at an end, never that of a reset
                assert reward == action
                ended = t + 1 == length
                assert terminated == (ended and kind != "truncated") and truncated == (ended and kind != "terminated")
        for env_, part in zip(single, rows, strict=True):
            # One reset for an episode, none at construction. The last one may be due; an env ahead has had more.
            assert env_.episode + env.autoreset_rows >= sum(row[4] or row[5] for row in part)
            assert len(env_.seeds) == env_.episode + 1


@pytest.mark.parametrize("mode", MODES)
def test_infos_belong_to_their_rows(mode: AutoresetMode | None) -> None:
    env, _ = make(mode, [lambda: ScriptEnv(0, [2]), lambda: ScriptEnv(1, [3])])
    env.reset([1, 2])
    result = env.step(np.array([0, 0]))
    assert result.infos is None
    result = env.step(np.array([0, 0]))
    assert result.truncateds.tolist() == [True, False]
    assert info_of_row(result.infos, 0).get("ended") == 0
    assert "ended" not in info_of_row(result.infos, 1)


@pytest.mark.parametrize("mode", MODES)
def test_final_observations_of_nested_spaces(mode: AutoresetMode | None) -> None:
    env, _ = make(mode, [lambda: NestedEnv(2), lambda: NestedEnv(3)])
    obs = env.reset([1, 2])
    assert obs["pose"][1].dtype == np.int64 and obs["image"].shape == (2, 3, 3, 1)
    actions = {"go": np.array([1, 2]), "push": np.array([[0.5, -0.5], [0.25, 0]], np.float32)}
    env.step(actions)
    result = env.step(actions)
    assert result.terminateds.tolist() == [True, False]
    assert result.obs["pose"][0].tolist() == [[2, -2], [2, -2]] and result.obs["pose"][0].dtype == np.float32
    assert result.obs["image"][:, 0, 0, 0].tolist() == [2, 2]
    obs = env.reset_done(result.terminateds)
    if not env.autoreset_rows:
        assert obs["pose"][1].tolist() == [0, 2]
    result = env.step(actions)
    if env.autoreset_rows:
        assert result.valid is not None and result.valid.tolist() == [False, True]
        assert result.obs["pose"][1].tolist() == [0, 3]
    else:
        assert result.valid is None and result.obs["pose"][1].tolist() == [1, 3]


@pytest.mark.parametrize("mode", MODES)
def test_results_stay_as_they_were(mode: AutoresetMode | None) -> None:
    env, _ = make(mode, [lambda: ScriptEnv(0, [2])])
    obs = env.reset([1])
    first = env.step(np.array([4]))
    before = first.obs.copy(), obs.copy()
    second = env.step(np.array([5]))
    final = second.obs.copy()
    env.reset_done(second.truncateds)
    env.step(np.array([6]))
    assert np.array_equal(first.obs, before[0]) and np.array_equal(obs, before[1])
    assert np.array_equal(second.obs, final)


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_caller_may_cut_an_episode(mode: AutoresetMode | None) -> None:
    env, _ = make(mode, [lambda: ScriptEnv(0, [9]), lambda: ScriptEnv(1, [9])])
    assert env.can_reset_rows
    env.reset([1, 2])
    env.step(np.array([0, 0]))
    obs = env.reset_done(np.array([True, False]))
    assert obs[:, 1:3].tolist() == [[1, 0], [0, 1]]
    result = env.step(np.array([0, 0]))
    assert result.valid is None and result.obs[:, 1:3].tolist() == [[1, 1], [0, 2]]


def test_the_native_cartpole_can_be_cut_by_its_own_autoreset() -> None:
    env = GymnasiumVectorEnv(gym.make_vec("CartPole-v1", num_envs=3), "CartPole-v1", make_config())
    env.reset([1, 2, 3])
    last = env.step(np.zeros(3, int)).obs
    assert np.array_equal(env.reset_done(np.array([False, True, False])), last)
    result = env.step(np.zeros(3, int))
    assert result.valid is not None and result.valid.tolist() == [True, False, True]
    assert np.abs(result.obs[1]).max() < 0.05 and result.rewards[1] == 0
    assert env.step(np.zeros(3, int)).valid is None


class OneSeedEnv(gym.vector.VectorEnv):
    """A native vector env without masked resets."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = gym.spaces.Box(-1, 1, (1,))
    single_action_space = gym.spaces.Discrete(2)
    obs: Any = np.zeros((2, 1), np.float32)
    rewards: Any = np.ones(2, np.int32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seed = seed
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        return self.obs, self.rewards, np.zeros(2, bool), np.zeros(2, bool), {}


def test_a_native_env_with_one_seed_gets_the_first() -> None:
    native = OneSeedEnv()
    GymnasiumVectorEnv(native, "one", make_config()).reset([41, 42])
    assert native.seed == 41


def test_a_native_env_that_cannot_be_cut_says_so() -> None:
    env = GymnasiumVectorEnv(OneSeedEnv(), "one", make_config())
    env.reset([1, 2])
    assert not env.can_reset_rows
    with pytest.raises(EnvError, match="vectorization='sync'"):
        env.reset_done(np.array([True, False]))


def test_rewards_of_any_number_dtype_are_float32() -> None:
    env = GymnasiumVectorEnv(OneSeedEnv(), "one", make_config())
    env.reset([1, 2])
    assert env.step(np.zeros(2, int)).rewards.dtype == np.float32


@pytest.mark.parametrize("declared", [None, "Sometimes"])
def test_an_undeclared_autoreset_mode_is_refused(declared: Any) -> None:
    native = OneSeedEnv()
    native.metadata = {} if declared is None else {"autoreset_mode": declared}
    with pytest.raises(EnvError, match="AutoresetMode"):
        GymnasiumVectorEnv(native, "one", make_config())


def test_the_mode_may_be_declared_by_its_name() -> None:
    native = OneSeedEnv()
    native.metadata = {"autoreset_mode": "NextStep"}
    assert GymnasiumVectorEnv(native, "one", make_config()).autoreset_rows


def test_same_step_without_the_final_observation_is_refused() -> None:
    class Forgetful(OneSeedEnv):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

        def step(self, actions: Any) -> Any:
            return self.obs, self.rewards, np.array([False, True]), np.zeros(2, bool), {}

    env = GymnasiumVectorEnv(Forgetful(), "forgetful", make_config())
    env.reset([1, 2])
    with pytest.raises(EnvError, match="sub-env 1.*final_obs"):
        env.step(np.zeros(2, int))


def test_same_step_with_batched_final_observations() -> None:
    class Batched(OneSeedEnv):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

        def step(self, actions: Any) -> Any:
            final = np.array([[0.25], [0.5]], np.float32)
            return self.obs, self.rewards, np.array([False, True]), np.zeros(2, bool), {"final_obs": final}

    env = GymnasiumVectorEnv(Batched(), "batched", make_config())
    env.reset([1, 2])
    result = env.step(np.zeros(2, int))
    assert result.obs.ravel().tolist() == [0, 0.5]
    assert env.reset_done(result.terminateds).ravel().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("obs", np.zeros((2, 2), np.float32), r"shape \(2, 2\), expected \(2, 1\)"),
        ("obs", np.zeros((2, 1), complex), "dtype complex128"),
        ("rewards", np.zeros(3), r"rewards have the shape \(3,\)"),
        ("obs", np.array([[0], [np.nan]], np.float32), r"sub-env 1.*obs\[0\] is nan"),
        ("obs", np.array([[7], [0]], np.float32), r"sub-env 0.*obs\[0\] is 7.0, outside the bounds"),
        ("rewards", np.array([0, np.inf]), "sub-env 1.*reward is inf"),
    ],
)
def test_bad_values_of_native_envs_name_the_sub_env(what: str, value: Any, says: str) -> None:
    native = OneSeedEnv()
    env = GymnasiumVectorEnv(native, "one", make_config())
    env.reset([1, 2])
    setattr(native, what, value)
    with pytest.raises(EnvError, match=says):
        env.step(np.zeros(2, int))


def test_a_masked_reset_may_give_the_rows_of_the_mask_alone() -> None:
    class Pool(OneSeedEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.seed = seed
            return np.full((1 if options else 2, 1), 0.5, np.float32), {}

    Pool.__module__ = "envpool.toy"
    pool = Pool()
    env = GymnasiumVectorEnv(pool, "pool", make_config())
    env.reset([1, 2])
    assert pool.seed is None and env.can_reset_rows  # it takes its seed when it is made
    env.step(np.zeros(2, int))
    assert env.reset_done(np.array([False, True])).ravel().tolist() == [0, 0.5]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_ale_s_own_vector_env(mode: AutoresetMode) -> None:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    native = gym.make_vec("ALE/Breakout-v5", 2, max_num_frames_per_episode=40, autoreset_mode=mode)
    env = GymnasiumVectorEnv(native, "ALE/Breakout-v5", make_config())
    assert env.reset([1, 2]).shape == (2, 4, 84, 84)
    lengths, running = [], np.zeros(2, int)
    for _ in range(40):
        result = env.step(np.array([1, 2]))
        running += 1 if result.valid is None else result.valid
        done = result.terminateds | result.truncateds
        if done.any():
            env.reset_done(done)
            lengths += running[done].tolist()
            running[done] = 0
    assert set(lengths) == {10}  # 40 frames, four to a step, no reset among them
    cut = env.reset_done(np.array([True, False]))
    assert cut.shape == (2, 4, 84, 84)
    env.close()
