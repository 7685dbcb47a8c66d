"""External envs under the real sampler: what reaches the batch, and what does not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater import PPOTrainer
from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
from headwater.data.sample_batch import SampleBatch
from headwater.envs.base_env import LoggedAction
from headwater.envs.external_env import EpisodeLost, ExternalEnv, ExternalMultiAgentEnv
from headwater.errors import EnvError
from headwater.sampling.rollout_worker import RolloutWorker

OBS, ACTIONS = spaces.Box(-100, 100, (1,)), spaces.Discrete(3)


def external(script: Callable[[Any], None], kind: type = ExternalEnv, **kwargs: Any) -> Any:
    class Scripted(kind):  # type: ignore[misc, valid-type]
        def run(self) -> None:
            script(self)

    return Scripted(ACTIONS, OBS, **kwargs)


@pytest.fixture
def worker() -> Iterator[Callable[..., RolloutWorker]]:
    made: list[RolloutWorker] = []

    def make(env: Any, length: int, **settings: Any) -> RolloutWorker:
        config = PPOConfig(
            seed=0, num_envs_per_worker=1, train_batch_size=length, sgd_minibatch_size=length,
            rollout_fragment_length=length, **settings,
        )  # fmt: skip
        made.append(RolloutWorker(env_creator=lambda ctx: env, policy_class=get_policy_class(config), config=config))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def run_forever(env: Any, length: int = 1, **start: Any) -> None:
    while True:
        episode = env.start_episode(**start)
        for _ in range(length):
            env.get_action(episode, [0.0])
            env.log_returns(episode, 0.0)
        env.end_episode(episode, [0.0])


def test_ten_interleaved_episodes(worker: Any) -> None:
    """Rows are each episode's own, in order, with its rewards, actions and final observation's value behind them."""
    told: dict[int, list[Any]] = {k: [] for k in range(1, 10)}

    def script(env: Any) -> None:
        rng = random.Random(1)
        names = {k: env.start_episode() for k in range(10)}
        env.end_episode(names.pop(0), [0.0])  # without any action
        while names:
            k = rng.choice(sorted(names))
            if len(told[k]) == k:
                env.end_episode(names.pop(k), [50.0], truncated=k % 2 == 0)
                continue
            obs = 10.0 * k + len(told[k])
            action = env.get_action(names[k], [obs])
            reward = rng.random()
            env.log_returns(names[k], reward)
            told[k].append((obs, int(action), reward))
        run_forever(env)

    made = worker(external(script), 45)
    batch = made.sample()
    pieces: dict[int, Any] = {}
    for piece in batch.split_by_episode():
        k = int(piece[SampleBatch.OBS][0, 0]) // 10
        if k:
            pieces[k] = piece
    metrics = made.get_metrics()
    while len(pieces) < 9 or not all(piece.count == k for k, piece in pieces.items()):
        more = made.sample()
        for piece in more.split_by_episode():
            k = int(piece[SampleBatch.OBS][0, 0]) // 10
            if k:
                pieces[k] = SampleBatch.concat_samples([pieces[k], piece]) if k in pieces else piece
        metrics += made.get_metrics()
    for k, piece in pieces.items():
        obs, actions, rewards = zip(*told[k], strict=True)
        assert piece[SampleBatch.OBS][:, 0].tolist() == list(obs)
        assert piece[SampleBatch.ACTIONS].tolist() == list(actions)
        np.testing.assert_allclose(piece[SampleBatch.REWARDS], rewards, rtol=1e-6)
        ends = piece[SampleBatch.TERMINATEDS], piece[SampleBatch.TRUNCATEDS]
        assert [bool(flags[-1]) for flags in ends] == [k % 2 == 1, k % 2 == 0]
    returns = sorted(round(m.episode_reward, 4) for m in metrics if m.episode_reward)
    assert returns == sorted(round(sum(step[2] for step in steps), 4) for steps in told.values())


def test_logged_actions_keep_what_they_were_drawn_from(worker: Any) -> None:
    drawn = LoggedAction(2, np.array([0.5, -1.0, 2.0], np.float32))

    def script(env: Any) -> None:
        episode = env.start_episode()
        env.log_action(episode, [1.0], 1)
        env.log_returns(episode, 1.0)
        env.log_action(episode, [2.0], drawn)
        env.log_returns(episode, 2.0)
        env.get_action(episode, [3.0])
        env.end_episode(episode, [4.0])
        run_forever(env)

    batch = worker(external(script), 3).sample()
    assert batch[SampleBatch.OBS][:3, 0].tolist() == [1.0, 2.0, 3.0]
    assert batch[SampleBatch.ACTIONS][:2].tolist() == [1, 2]
    assert batch[SampleBatch.REWARDS][:3].tolist() == [1.0, 2.0, 0.0]
    assert batch[SampleBatch.ACTION_DIST_INPUTS][1].tolist() == [0.5, -1.0, 2.0]


def test_what_is_not_trained_on_and_what_is_lost_is_in_no_batch(worker: Any) -> None:
    def script(env: Any) -> None:
        watched, lost = env.start_episode(training_enabled=False), env.start_episode()
        for _ in range(3):
            for episode, obs in ((watched, [7.0]), (lost, [9.0])):
                env.get_action(episode, obs)
                env.log_returns(episode, 100.0)
        env.end_episode(watched, [7.0])
        env.abandon_episode(lost, "no reason")
        run_forever(env, length=4)

    made = worker(external(script), 8, batch_mode="complete_episodes")
    batch = made.sample()
    assert batch.count >= 8 and set(batch[SampleBatch.OBS][:, 0]) == {0.0}
    assert {m.episode_reward for m in made.get_metrics()} == {0.0}


def test_many_threads_make_one_batch(worker: Any) -> None:
    def script(env: Any) -> None:
        threads = [threading.Thread(target=run_forever, args=(env, 5), daemon=True) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def quiet(env: Any) -> None:
        hook, threading.excepthook = threading.excepthook, lambda args: None  # they end when the env is stopped
        try:
            script(env)
        finally:
            threading.excepthook = hook

    made = worker(external(quiet), 200)
    for _ in range(3):
        batch = made.sample()
        assert 200 <= batch.count < 240
    assert all(m.episode_length == 5 for m in made.get_metrics())


def test_agents_of_two_policies(worker: Any) -> None:
    def script(env: Any) -> None:
        while True:
            episode = env.start_episode()
            env.get_action(episode, {"a": [1.0], "b": [2.0]})
            env.log_returns(episode, {"a": 1.0, "b": 2.0}, terminateds={"a": True})
            env.get_action(episode, {"a": [3.0], "b": [4.0]})
            env.log_returns(episode, {"b": 3.0})
            env.end_episode(episode, {"b": [5.0]})

    settings = {"multiagent": {"policies": ["a", "b"], "policy_mapping_fn": {"a": "a", "b": "b"}}}
    made = worker(external(script, ExternalMultiAgentEnv), 20, **settings)
    batches = made.sample().policy_batches
    assert set(batches["a"][SampleBatch.OBS][:, 0]) == {1.0} and set(batches["a"][SampleBatch.REWARDS]) == {1.0}
    assert set(batches["b"][SampleBatch.OBS][:, 0]) == {2.0, 4.0} and set(batches["b"][SampleBatch.REWARDS]) == {
        2.0,
        3.0,
    }
    assert batches["a"][SampleBatch.TERMINATEDS].all()
    assert {m.episode_reward for m in made.get_metrics()} == {6.0}


def test_a_bad_value_costs_one_episode_where_the_run_goes_on(worker: Any) -> None:
    caught: list[BaseException] = []

    def script(env: Any) -> None:
        bad = env.start_episode()
        env.get_action(bad, [0.0])
        try:
            env.get_action(bad, [np.nan])
        except EpisodeLost as error:
            caught.append(error)
        run_forever(env)

    made = worker(external(script), 4, on_bad_values="reset")
    assert made.sample().count >= 4
    assert "gave it up" in str(caught[0])


def test_errors_in_run_end_the_training(made: list[Any]) -> None:
    def script(env: Any) -> None:
        env.get_action(env.start_episode(), [0.0])
        raise ZeroDivisionError("the simulator burst")

    trainer = PPOTrainer({"num_envs_per_worker": 1}, env=lambda ctx: external(script), logger_creator=False)
    made.append(trainer)
    with pytest.raises(EnvError, match="the simulator burst"):
        trainer.train()


def test_evaluation_counts_whole_episodes(worker: Any) -> None:
    made = worker(external(lambda env: run_forever(env, length=3)), 4)
    for _ in range(2):
        assert [m.episode_length for m in made.sample_episodes(5)] == [3] * 5
