"""Faulty envs through the whole sampler: what is lost, what is counted, and what never reaches a batch or a filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater.data.sample_batch import SampleBatch
from headwater.errors import EnvError
from tests.sampling.test_rollout_worker import MODES, make_worker
from tests.toy_envs import CounterEnv


class Faulty(CounterEnv):
    """Counts to 10; in its n-th step overall it raises, or returns something bad."""

    def __init__(self, fault: str, at: int = 14, again: bool = False) -> None:
        super().__init__(10, "terminated")
        self.fault, self.at, self.again, self.steps = fault, at, again, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, *rest = super().step(action)
        if self.steps == self.at or (self.again and self.steps >= self.at):
            if self.fault == "raises":
                raise OSError("the simulator went away")
            if self.fault == "nan_reward":
                reward = float("nan")
            if self.fault == "nan_obs":
                obs = obs * np.nan
            if self.fault == "inf_obs":
                obs = obs + np.inf
            if self.fault == "wrong_shape":
                obs = np.zeros(3, np.float32)
        return obs, reward, *rest


FAULTS = ["raises", "nan_reward", "nan_obs", "inf_obs", "wrong_shape"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stops_the_run_and_names_the_env(fault: str) -> None:
    worker = make_worker(lambda context: Faulty(fault if context.vector_index == 1 else "none"), 2, rows=60)
    with pytest.raises(EnvError) as raised:
        worker.sample()
    message = str(raised.value)
    assert "sub-env 1" in message and "step 4" in message
    if fault == "raises":
        assert "OSError" in message and "the simulator went away" in message
    worker.stop()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_survived_fault_loses_its_episode_only(fault: str, batch_mode: str) -> None:
    made = []

    def create(context: Any) -> Faulty:
        # A rebuilt env is a new object, which must not fail again.
        env = Faulty(fault if context.vector_index == 1 and len(made) < 2 else "none")
        made.append(env)
        return env

    worker = make_worker(
        create, 2, rows=60, on_env_error="reset", on_bad_values="reset", batch_mode=batch_mode,
        observation_filter="MeanStdFilter",
    )  # fmt: skip
    batch = worker.sample()
    assert batch.count >= 60 and worker.env.num_faults == 1
    [obs_filter] = worker.filters.values()
    assert np.isfinite(obs_filter.rs.mean).all() and np.isfinite(obs_filter.rs.std).all()
    np.testing.assert_array_equal(batch[SampleBatch.REWARDS], 1.0)
    assert np.isfinite(batch[SampleBatch.OBS]).all() and np.isfinite(batch[SampleBatch.ADVANTAGES]).all()
    for episode in batch.split_by_episode():
        # Nothing of the lost episode is left: each that ends is whole, each that does not stands at a fragment's end.
        whole = bool(episode[SampleBatch.TERMINATEDS][-1])
        assert episode.count == 10 if whole else episode.count < 10
    assert all(m.episode_length == 10 and m.episode_reward == 10.0 for m in worker.get_metrics())
    worker.stop()


class SpoiltVector(SyncVectorEnv):
    """Counters; in some steps, sub-env 1 shows something that is no number."""

    def __init__(self, mode: AutoresetMode, bad: float) -> None:
        super().__init__([lambda: CounterEnv(10)] * 2, autoreset_mode=mode)
        self.bad, self.steps = bad, 0

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        self.steps += 1
        if self.steps in (7, 29):
            obs = obs.copy()
            obs[1] = self.bad
        return obs, *rest


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -5.0])
def test_bad_values_of_vector_envs_reach_neither_a_batch_nor_a_filter(
    mode: AutoresetMode, batch_mode: str, bad: float
) -> None:
    worker = make_worker(
        lambda context: SpoiltVector(mode, bad), 2, rows=60, on_bad_values="reset", batch_mode=batch_mode,
        observation_filter="MeanStdFilter", check_env_steps=True,
    )  # fmt: skip
    batch = worker.sample()
    [obs_filter] = worker.filters.values()
    assert worker.env.num_faults == 2
    assert 0 <= obs_filter.rs.mean[0] <= 9 and 60 <= obs_filter.rs.n <= batch.count + 20
    for episode in batch.split_by_episode():
        # The filter changes the observations as it goes, but never their order in time.
        assert (np.diff(episode[SampleBatch.OBS][:, 0]) > 0).all()
        assert episode.count == 10 if episode[SampleBatch.TRUNCATEDS][-1] else episode.count < 10
    assert all(m.episode_length == 10 and m.episode_reward == 10.0 for m in worker.get_metrics())
    worker.stop()


def test_faults_without_end_stop_the_run() -> None:
    worker = make_worker(
        lambda context: Faulty("raises", at=1, again=True), 1, rows=30, on_env_error="reset", max_env_errors_in_a_row=3
    )
    with pytest.raises(EnvError, match="3"):
        worker.sample()
    worker.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_horizon_truncates_and_resets(mode: str, batch_mode: str) -> None:
    env = MODES[mode](2, length=50, end="terminated")
    worker = make_worker(env, 2, rows=40, horizon=4, batch_mode=batch_mode)
    batch = worker.sample()
    for episode in batch.split_by_episode():
        np.testing.assert_array_equal(episode[SampleBatch.OBS][:, 0], [0, 1, 2, 3])
        np.testing.assert_array_equal(episode[SampleBatch.TRUNCATEDS], [False, False, False, True])
        assert not episode[SampleBatch.TERMINATEDS].any()
        # lambda 0.5, gamma 0.9, V(obs) = obs + 1: the value of observation 4 bootstraps.
        np.testing.assert_allclose(episode[SampleBatch.ADVANTAGES][-1], 1 + 0.9 * 5 - 4, atol=1e-5)
    assert {m.episode_length for m in worker.get_metrics()} == {4}
    worker.stop()


class Huge(CounterEnv):
    """Observes float64 numbers; from its fifth step on one that is finite there, but not in float32."""

    def __init__(self) -> None:
        super().__init__(10)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.array([0.0, 1e100 if self.t >= 5 else 1.0]), *rest


def test_what_float32_cannot_hold_is_refused_by_name() -> None:
    worker = make_worker(lambda context: Huge(), 1, rows=30, observation_filter="MeanStdFilter")
    with pytest.raises(EnvError, match=r"obs\[1\] is 1e\+100.*float32"):
        worker.sample()
    [obs_filter] = worker.filters.values()
    assert np.isfinite(obs_filter.rs.mean).all()
    worker.stop()
