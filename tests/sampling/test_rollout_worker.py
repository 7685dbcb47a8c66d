"""What a worker samples: the right rows, values, ids and metrics in every vectorisation and batch mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
from headwater.callbacks import DefaultCallbacks
from headwater.data.sample_batch import SampleBatch
from headwater.registry import env_creator_for
from headwater.sampling.rollout_worker import RolloutWorker
from tests.toy_envs import CounterEnv, EchoEnv, LinearCritic, RandomLengthEnv, counter_vector

MODES: dict[str, Callable[..., Any]] = {
    "copies": lambda n, **kwargs: lambda context: CounterEnv(**kwargs),
    "next_step": lambda n, **kwargs: lambda context: counter_vector(AutoresetMode.NEXT_STEP, n, **kwargs),
    "same_step": lambda n, **kwargs: lambda context: counter_vector(AutoresetMode.SAME_STEP, n, **kwargs),
    "disabled": lambda n, **kwargs: lambda context: counter_vector(AutoresetMode.DISABLED, n, **kwargs),
}


def make_worker(env: Any, num_envs: int = 1, rows: int = 30, **settings: Any) -> RolloutWorker:
    base = {
        "num_envs_per_worker": num_envs, "train_batch_size": rows, "sgd_minibatch_size": 0, "gamma": 0.9, "lambda": 0.5,
        "seed": 0, "model": {"custom_model": LinearCritic}, "vf_clip_param": None,
    }  # fmt: skip
    config = PPOConfig(**{**base, **settings})
    env_id, creator = env_creator_for(env)
    return RolloutWorker(env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config)


def sample(env: Any, num_envs: int = 1, rows: int = 30, **settings: Any) -> SampleBatch:
    worker = make_worker(env, num_envs, rows, **settings)
    try:
        return worker.sample()
    finally:
        worker.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize(
    ("length", "end", "advantages"),
    [
        (3, "truncated", [2.889, 2.42, 1.6]),  # the value of the final observation bootstraps
        (3, "terminated", [2.16, 0.8, -2.0]),
        (3, "both", [2.16, 0.8, -2.0]),  # an end at the limit is an end
        (2, "terminated", [1.35, -1.0]),
        (2, "truncated", [2.565, 1.7]),  # nothing leaks into the next episode
    ],
)
def test_advantages_of_whole_episodes(
    mode: str, num_envs: int, batch_mode: str, length: int, end: str, advantages: list[float]
) -> None:
    env = MODES[mode](num_envs, length=length, end=end)
    batch = sample(env, num_envs, rows=6 * length * num_envs, batch_mode=batch_mode)
    episodes = [e for e in batch.split_by_episode() if e.count == length]
    assert len(episodes) >= 6 * num_envs
    for episode in episodes:
        np.testing.assert_allclose(episode[SampleBatch.ADVANTAGES], advantages, atol=1e-5)
        np.testing.assert_allclose(
            episode[SampleBatch.VALUE_TARGETS], np.add(advantages, np.arange(length) + 1), atol=1e-5
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_no_row_is_a_reset(mode: str, num_envs: int) -> None:
    worker = make_worker(MODES[mode](num_envs, length=3), num_envs, rows=30 * num_envs)
    batches = [worker.sample() for _ in range(2)]
    rows = Counter()
    for batch in batches:
        assert batch.count == 30 * num_envs
        np.testing.assert_array_equal(batch[SampleBatch.REWARDS], 1.0)
        rows.update(zip(batch[SampleBatch.OBS][:, 0].tolist(), batch[SampleBatch.TRUNCATEDS].tolist(), strict=True))
    assert rows == {(0.0, False): 20 * num_envs, (1.0, False): 20 * num_envs, (2.0, True): 20 * num_envs}
    metrics = worker.get_metrics()
    assert {(m.episode_length, m.episode_reward) for m in metrics} == {(3, 3.0)} and len(metrics) == 20 * num_envs
    worker.stop()


def test_rows_are_at_least_those_asked_for_in_next_step_mode() -> None:
    def ragged(context: Any) -> SyncVectorEnv:
        lengths = [2, 3, 5, 11]
        return SyncVectorEnv([lambda n=n: CounterEnv(n) for n in lengths], autoreset_mode=AutoresetMode.NEXT_STEP)

    worker = make_worker(ragged, 4, rows=80)
    for _ in range(5):
        batch = worker.sample()
        assert 80 <= batch.count < 84
        for episode in batch.split_by_episode():
            np.testing.assert_array_equal(np.diff(episode[SampleBatch.OBS][:, 0]), 1.0)
            assert not (episode[SampleBatch.TRUNCATEDS][:-1]).any()
    worker.stop()


def test_a_fragment_cut_in_mid_episode_is_bootstrapped_and_goes_on() -> None:
    worker = make_worker(lambda context: CounterEnv(5, "terminated"), 1, rows=2)
    first, second, third = (worker.sample() for _ in range(3))
    np.testing.assert_allclose(first[SampleBatch.ADVANTAGES], [2.565, 1.7], atol=1e-5)
    np.testing.assert_array_equal(second[SampleBatch.OBS][:, 0], [2.0, 3.0])
    np.testing.assert_array_equal(third[SampleBatch.OBS][:, 0], [4.0, 0.0])
    assert first[SampleBatch.EPS_ID][0] == third[SampleBatch.EPS_ID][0] != third[SampleBatch.EPS_ID][1]
    [episode] = worker.get_metrics()
    assert (episode.episode_length, episode.episode_reward) == (5, 5.0)
    worker.stop()


ECHO_MODES: dict[str, Callable[[Any], Any]] = {
    "copies": lambda context: EchoEnv(),
    **{
        mode.name.lower(): lambda context, mode=mode: SyncVectorEnv([EchoEnv] * 2, autoreset_mode=mode)
        for mode in AutoresetMode
    },
}


@pytest.mark.parametrize("mode", ECHO_MODES)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_reward_belongs_to_its_action(mode: str, batch_mode: str) -> None:
    worker = make_worker(ECHO_MODES[mode], 2, rows=40, batch_mode=batch_mode)
    for _ in range(3):
        batch = worker.sample()
        assert len(np.unique(batch[SampleBatch.ACTIONS])) > 5
        np.testing.assert_array_equal(batch[SampleBatch.REWARDS], batch[SampleBatch.ACTIONS])
        assert (batch[SampleBatch.OBS][:, 0] < 7).all()
    worker.stop()


def test_complete_episodes_are_whole_fresh_and_enough() -> None:
    worker = make_worker(lambda context: CounterEnv(7), 3, rows=40, batch_mode="complete_episodes")
    for _ in range(2):
        batch = worker.sample()
        episodes = batch.split_by_episode()
        assert batch.count >= 40 and all(e.count == 7 and e[SampleBatch.OBS][0, 0] == 0 for e in episodes)
    assert len({int(e) for e in batch[SampleBatch.EPS_ID]}) == len(episodes)
    worker.stop()


def test_the_env_gets_clipped_actions_and_the_batch_keeps_the_sampled_ones() -> None:
    space = spaces.Box(-0.1, 0.1, (1,), np.float32)
    worker = make_worker(lambda context: EchoEnv(action_space=space), 1, rows=100, normalize_actions=False)
    batch = worker.sample()
    sent = np.concatenate(worker.env.envs[0].actions)
    assert np.abs(sent).max() <= np.float32(0.1)
    assert (np.abs(batch[SampleBatch.ACTIONS]) > 0.1).mean() > 0.5
    policy = worker.for_policy("default_policy")
    logp = policy.compute_log_likelihoods(batch[SampleBatch.ACTIONS], batch[SampleBatch.OBS])
    np.testing.assert_allclose(logp, batch[SampleBatch.ACTION_LOGP], atol=1e-5)
    np.testing.assert_allclose(np.clip(batch[SampleBatch.ACTIONS][:, 0], -0.1, 0.1), sent, atol=1e-6)
    worker.stop()


def test_actions_are_mapped_the_same_way_everywhere() -> None:
    space = spaces.Box(np.array([300.0, -np.inf, 0.0], np.float32), np.array([500.0, np.inf, np.inf], np.float32))
    worker = make_worker(lambda context: EchoEnv(action_space=space), 1, rows=8, explore=False)
    policy = worker.for_policy("default_policy")
    weights = policy.get_weights()
    [name] = [key for key in weights if weights[key].size >= 3]
    for output, expected in ((0.0, [400.0, 0.0, 0.0]), (1.0, [500.0, 1.0, 1.0])):
        outputs = np.zeros_like(weights[name])
        outputs[:3] = output
        policy.set_weights({**weights, name: outputs})
        worker.env.envs[0].actions.clear()
        worker.sample()
        np.testing.assert_allclose(worker.env.envs[0].actions[-1], expected, atol=1e-4)
        [action], _, _ = worker.compute_actions([np.zeros(1, np.float32)], explore=False)
        np.testing.assert_allclose(action, expected, atol=1e-4)
        evaluator = make_worker(
            lambda context: EchoEnv(action_space=space), 1, rows=8, explore=False, in_evaluation=True,
            batch_mode="complete_episodes", rollout_fragment_length=1,
        )  # fmt: skip
        evaluator.restore(worker.save())
        evaluator.sample_episodes(1)
        np.testing.assert_allclose(evaluator.env.envs[0].actions, [expected] * 7, atol=1e-4)
        evaluator.stop()
    worker.stop()


def first_obs(seed: int, num_envs: int, **settings: Any) -> np.ndarray:
    worker = make_worker(lambda context: RandomLengthEnv(), num_envs, rows=8 * num_envs, seed=seed, **settings)
    batch = worker.sample()
    worker.stop()
    return batch[SampleBatch.OBS]


def test_each_env_has_its_own_seed() -> None:
    obs = first_obs(42, 6)
    assert len(np.unique(obs[::8, 0])) == 6
    np.testing.assert_array_equal(obs, first_obs(42, 6))
    assert not np.array_equal(obs, first_obs(43, 6))
    evaluated = first_obs(42, 6, in_evaluation=True, batch_mode="complete_episodes", rollout_fragment_length=1)
    assert not set(obs[:, 0]) & set(evaluated[:, 0])


def test_envs_of_several_workers_share_neither_seeds_nor_noise() -> None:
    config = PPOConfig(
        num_envs_per_worker=3, train_batch_size=48, rollout_fragment_length=8, sgd_minibatch_size=0, seed=42
    )
    env_id, creator = env_creator_for(lambda context: RandomLengthEnv())
    first, actions, episodes = [], [], []
    for index in (1, 2):
        worker = RolloutWorker(
            env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config,
            worker_index=index, num_workers=2,
        )  # fmt: skip
        batch = worker.sample()
        first += batch[SampleBatch.OBS][::8, 0].tolist()
        actions += [tuple(row) for row in batch[SampleBatch.ACTIONS].reshape(3, 8)]
        episodes += batch[SampleBatch.EPS_ID].reshape(3, 8).tolist()
        worker.stop()
    assert len(set(first)) == 6 and len(set(actions)) == 6
    assert not {e for row in episodes[:3] for e in row} & {e for row in episodes[3:] for e in row}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_evaluation_of_vector_envs_runs_whole_episodes_and_no_other(mode: AutoresetMode) -> None:
    worker = make_worker(
        lambda context: SyncVectorEnv([lambda n=n: CounterEnv(n) for n in (2, 5, 11)], autoreset_mode=mode), 3, rows=3,
        in_evaluation=True, batch_mode="complete_episodes", rollout_fragment_length=1,
        observation_filter="MeanStdFilter",
    )  # fmt: skip
    for round_number in range(3):
        worker.sampler.restart(round_number)
        episodes = worker.sample_episodes(7)
        assert sorted(m.episode_length for m in episodes) == [2, 2, 2, 5, 5, 11, 11]
        assert all(m.episode_length == m.episode_reward for m in episodes)
    assert worker.filters["default_policy"].rs.n == 0, "evaluation must leave the statistics alone"
    worker.stop()


def test_sampled_actions_of_an_evaluation_depend_on_its_round_only() -> None:
    def evaluate(*rounds: int) -> list[Any]:
        worker = make_worker(
            lambda context: EchoEnv(), 2, rows=2, in_evaluation=True, batch_mode="complete_episodes",
            rollout_fragment_length=1,
        )  # fmt: skip
        for round_number in rounds:
            worker.sampler.restart(round_number)
            episodes = worker.sample_episodes(4)
        worker.stop()
        return [m.episode_reward for m in episodes]

    assert evaluate(1, 2, 3) == evaluate(3) != evaluate(2)


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8])
def test_evaluation_runs_exactly_the_episodes_asked_for(num_envs: int) -> None:
    RandomLengthEnv.log.clear()
    worker = make_worker(
        lambda context: RandomLengthEnv(), num_envs, rows=num_envs, in_evaluation=True,
        batch_mode="complete_episodes", rollout_fragment_length=1,
    )  # fmt: skip
    for round_number in range(3):
        RandomLengthEnv.log.clear()
        worker.sampler.restart(round_number)
        episodes = worker.sample_episodes(5)
        assert len(episodes) == 5 == RandomLengthEnv.log.count(("end", ""))
        assert all(m.episode_length == m.episode_reward for m in episodes)
    worker.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("horizon", [None, 5])
def test_a_filter_counts_each_row_once(mode: str, batch_mode: str, horizon: int | None) -> None:
    worker = make_worker(
        MODES[mode](2, length=10), 2, rows=40, observation_filter="MeanStdFilter", batch_mode=batch_mode,
        horizon=horizon,
    )  # fmt: skip
    worker.sample()
    worker.sample()
    [obs_filter] = worker.filters.values()
    assert obs_filter.rs.n == 80
    length = horizon or 10
    np.testing.assert_allclose(obs_filter.rs.mean, (length - 1) / 2)
    np.testing.assert_allclose(obs_filter.rs.std, np.std(np.tile(np.arange(length), 80 // length), ddof=1))
    worker.stop()


@pytest.mark.parametrize("mode", MODES)
def test_after_an_exception_sampling_begins_with_a_reset(mode: str) -> None:
    class Raises(DefaultCallbacks):
        steps = 0

        def on_episode_step(self, **kwargs: Any) -> None:
            self.steps += 1
            if self.steps == 9:
                raise RuntimeError("boom")

    worker = make_worker(MODES[mode](2, length=100), 2, rows=10, callbacks=Raises)
    with pytest.raises(RuntimeError, match="boom"):
        worker.sample()
    assert worker.sample()["obs"][:, 0].tolist() == [0, 1, 2, 3, 4] * 2
    worker.stop()


@pytest.mark.parametrize("takes_over", [True, False])
def test_evaluation_filters_by_the_statistics_that_it_was_given_or_else_by_its_own(takes_over: bool) -> None:
    config = PPOConfig(
        num_envs_per_worker=2, train_batch_size=20, sgd_minibatch_size=0, seed=0,
        observation_filter="MeanStdFilter", synchronize_filters=takes_over,
    ).for_evaluation()  # fmt: skip
    env_id, creator = env_creator_for(lambda context: CounterEnv(length=5))
    worker = RolloutWorker(env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config)
    worker.sample_episodes(4)
    assert worker.filters["default_policy"].rs.n == (0 if takes_over else 20)
    worker.stop()


def test_a_filter_sees_the_same_in_sampling_and_acting() -> None:
    worker = make_worker(MODES["copies"](1, length=10), 1, rows=20, observation_filter="MeanStdFilter", model={})
    worker.sample()
    [obs_filter] = worker.filters.values()
    raw = np.array([[7.0]], np.float32)
    expected = worker.for_policy("default_policy").compute_actions(obs_filter(raw, update=False), explore=False)[2]
    _, _, extra = worker.compute_actions(list(raw), explore=False)
    np.testing.assert_array_equal(extra["action_dist_inputs"], expected["action_dist_inputs"])
    assert obs_filter.rs.n == 20
    worker.stop()


def test_padding_does_not_enter_what_is_standardized() -> None:
    worker = make_worker(MODES["copies"](1, length=10), 1, rows=6)
    seen = []
    worker.learn_on_batch = lambda batch, *args: seen.append(batch["x"])  # type: ignore[method-assign]
    batch = SampleBatch({"x": np.array([1, -50, 2, 3, np.nan, 4], np.float32), "mask": np.array([1, 0, 1, 1, 0, 1])})
    worker.sample = lambda: batch  # type: ignore[method-assign]
    worker.sample_and_learn(6, 1, 0, ["x"])
    np.testing.assert_allclose(seen[0], [-1.341641, 0, -0.447214, 0.447214, 0, 1.341641], atol=1e-6)
    worker.stop()


def test_clipped_rewards_are_learned_from_and_raw_ones_reported() -> None:
    for clip, learned in ((True, 1.0), (3.0, 3.0), (None, 7.0)):
        worker = make_worker(lambda context: PaysSeven(3), 1, rows=6, clip_rewards=clip)
        assert set(worker.sample()[SampleBatch.REWARDS]) == {learned}
        assert {m.episode_reward for m in worker.get_metrics()} == {21.0}
        worker.stop()


class PaysSeven(CounterEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 7.0, *rest
