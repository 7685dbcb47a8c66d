"""Policies with memory on the sampling path: what is remembered is what happened since the episode began.

The policy here counts the steps of its episode, so that in `CounterEnv`, which observes just that number, its state
before each row must equal the observation; its values are that number plus 1, as `LinearCritic`'s are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class, postprocess_ppo
from headwater.callbacks import DefaultCallbacks
from headwater.data.sample_batch import SampleBatch
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.numpy.policy import NumpyPolicy
from headwater.policy.network import Network
from headwater.registry import env_creator_for
from headwater.sampling.rollout_worker import RolloutWorker
from tests.sampling.test_env_faults import Faulty
from tests.sampling.test_rollout_worker import MODES
from tests.sampling.test_rollout_worker import make_worker as make_worker_without_memory
from tests.toy_envs import CounterEnv, RandomLengthEnv


class CountingNetwork:
    """Counts the steps since the state was zero, in both columns of its state; the second counts downwards."""

    def __init__(self, num_outputs: int) -> None:
        self.num_outputs = num_outputs
        self.seen: list[np.ndarray] = []

    def forward(self, obs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.seen.append(state.copy())
        after = state + np.array([1, -1], np.float32)
        after.flags.writeable = False  # as some frameworks' arrays are
        return np.zeros((len(obs), self.num_outputs), np.float32), after[:, 0], after

    def values(self, obs: np.ndarray, state: np.ndarray) -> np.ndarray:
        return state[:, 0] + 1


class CountingPolicy(NumpyPolicy):
    """Remembers how long its episode is; acts at random."""

    postprocess_trajectory = postprocess_ppo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.acting_network = CountingNetwork(self.num_outputs)

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"steps": (), "steps_down": (1,)}


def make_worker(
    env: Any,
    num_envs: int = 1,
    rows: int = 30,
    max_seq_len: int = 4,
    policy_class: Any = CountingPolicy,
    **settings: Any,
) -> RolloutWorker:
    base = {
        "num_envs_per_worker": num_envs, "train_batch_size": rows, "sgd_minibatch_size": 0, "gamma": 0.9, "lambda": 0.5,
        "seed": 0, "vf_clip_param": None, "model": {"max_seq_len": max_seq_len},
    }  # fmt: skip
    config = PPOConfig(**{**base, **settings})
    env_id, creator = env_creator_for(env)
    return RolloutWorker(env_creator=creator, env_id=env_id, policy_class=policy_class, config=config)


def rows_of(batch: SampleBatch) -> dict[str, np.ndarray]:
    """The real rows of a batch in sequences."""
    return {name: column[batch["mask"]] for name, column in batch.items() if name != "state_in"}


def check_sequences(batch: SampleBatch, length: int) -> None:
    """What holds of every batch from a `CounterEnv`."""
    mask, lengths = batch["mask"], batch["mask"].sum(1)
    assert batch.in_sequences and mask.shape[1] == length and batch.count == mask.sum()
    assert (lengths > 0).all() and (mask == (np.arange(length) < lengths[:, None])).all()
    for name, column in batch.items():
        if name not in ("state_in", "mask"):
            assert not column[~mask].any(), name
    np.testing.assert_array_equal(batch["state_in"][:, 0], batch["obs"][:, 0, 0])
    np.testing.assert_array_equal(batch["state_in"][:, 1], -batch["obs"][:, 0, 0])
    np.testing.assert_array_equal(batch["vf_preds"][mask], batch["obs"][..., 0][mask] + 1)
    for i, steps in enumerate(lengths):
        np.testing.assert_array_equal(np.diff(batch["obs"][i, :steps, 0]), 1.0)
        assert len(set(batch["eps_id"][i, :steps])) == 1
        assert not (batch["terminateds"] | batch["truncateds"])[i, : steps - 1].any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize(("length", "end"), [(3, "truncated"), (7, "terminated"), (5, "both"), (2, "truncated")])
def test_the_memory_is_that_of_the_episode(mode: str, num_envs: int, batch_mode: str, length: int, end: str) -> None:
    """The same rows, and by its values the same advantages, as without memory; each state is what it must be."""
    settings = {"rows": 24 * num_envs, "batch_mode": batch_mode}
    env = MODES[mode](num_envs, length=length, end=end)
    worker, plain = make_worker(env, num_envs, **settings), make_worker_without_memory(env, num_envs, **settings)
    for _ in range(3):
        batch, expected = worker.sample(), plain.sample()
        check_sequences(batch, 4)
        rows = rows_of(batch)
        assert batch.count == expected.count
        for name in ("obs", "rewards", "terminateds", "truncateds", "eps_id", "unroll_id", "vf_preds"):
            np.testing.assert_array_equal(rows[name], expected[name], err_msg=name)
        for name in ("advantages", "value_targets"):
            np.testing.assert_allclose(rows[name], expected[name], atol=1e-6, err_msg=name)
    worker.stop()
    plain.stop()


def test_a_batch_by_heart() -> None:
    worker = make_worker(lambda context: CounterEnv(5, "terminated"), rows=8, max_seq_len=3)
    batch = worker.sample()
    assert batch["obs"][..., 0].tolist() == [[0, 1, 2], [3, 4, 0], [0, 0, 0], [1, 2, 0]]
    assert batch["mask"].tolist() == [[True] * 3, [True, True, False], [True, False, False], [True, True, False]]
    assert batch["state_in"].tolist() == [[0, 0], [3, -3], [0, 0], [1, -1]]
    assert batch["terminateds"].tolist() == [[False] * 3, [False, True, False], [False] * 3, [False] * 3]
    assert (batch.count, batch.num_rows) == (8, 4)
    assert worker.sample()["obs"][..., 0].tolist() == [[3, 4, 0], [0, 0, 0], [1, 2, 3], [4, 0, 0], [0, 0, 0]]
    worker.stop()


def test_a_fragment_cut_in_mid_episode_is_bootstrapped_with_its_memory_and_goes_on() -> None:
    """Case P7."""
    worker = make_worker(lambda context: CounterEnv(5, "terminated"), rows=2)
    first, second, third = (worker.sample() for _ in range(3))
    np.testing.assert_allclose(first["advantages"], [[2.565, 1.7]], atol=1e-5)
    assert (second["obs"][..., 0].tolist(), second["state_in"][:, 0].tolist()) == ([[2, 3]], [2])
    assert (third["obs"][..., 0].tolist(), third["state_in"][:, 0].tolist()) == ([[4, 0], [0, 0]], [4, 0])
    assert [(m.episode_length, m.episode_reward) for m in worker.get_metrics()] == [(5, 5.0)]
    worker.stop()


@pytest.mark.parametrize("max_seq_len", [1, 5, 100])
def test_full_sequences_are_views(max_seq_len: int) -> None:
    worker = make_worker(lambda context: CounterEnv(1000), 2, rows=40, max_seq_len=max_seq_len)
    for start in (0, 20):
        batch = worker.sample()
        length = min(max_seq_len, 20)
        check_sequences(batch, length)
        assert batch["mask"].all() and batch["obs"].base is not None
        assert batch["state_in"][: 20 // length, 0].tolist() == list(range(start, start + 20, length))
    worker.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_horizon_ends_what_is_remembered(mode: str, batch_mode: str) -> None:
    worker = make_worker(MODES[mode](2, length=50), 2, rows=48, batch_mode=batch_mode, horizon=6)
    for _ in range(2):
        batch = worker.sample()
        check_sequences(batch, 4)
        assert set(rows_of(batch)["obs"][:, 0]) == {0, 1, 2, 3, 4, 5}
    worker.stop()


@pytest.mark.parametrize("fault", ["raises", "nan_obs"])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_nothing_is_remembered_of_a_lost_episode(fault: str, batch_mode: str) -> None:
    made = []

    def create(context: Any) -> Faulty:
        made.append(Faulty(fault if context.vector_index == 1 and len(made) < 2 else "none"))
        return made[-1]

    worker = make_worker(create, 2, rows=60, on_env_error="reset", on_bad_values="reset", batch_mode=batch_mode)
    batch = worker.sample()
    assert worker.env.num_faults == 1
    check_sequences(batch, 4)
    check_sequences(worker.sample(), 4)
    worker.stop()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_each_evaluated_episode_begins_without_memories(mode: AutoresetMode) -> None:
    worker = make_worker(
        lambda context: SyncVectorEnv([lambda n=n: CounterEnv(n) for n in (2, 5, 11)], autoreset_mode=mode), 3, rows=3,
        in_evaluation=True, batch_mode="complete_episodes", rollout_fragment_length=1,
    )  # fmt: skip
    network = worker.for_policy("default_policy").acting_network
    for round_number in range(3):
        network.seen.clear()
        worker.sampler.restart(round_number)
        assert sorted(m.episode_length for m in worker.sample_episodes(7)) == [2, 2, 2, 5, 5, 11, 11]
        assert not network.seen[0].any()
        assert np.stack(network.seen)[..., 0].max() == 10
    worker.stop()


def test_after_an_exception_nothing_is_remembered() -> None:
    class Raises(DefaultCallbacks):
        steps = 0

        def on_episode_step(self, **kwargs: Any) -> None:
            self.steps += 1
            if self.steps == 9:
                raise RuntimeError("boom")

    worker = make_worker(MODES["copies"](2, length=100), 2, rows=10, callbacks=Raises)
    with pytest.raises(RuntimeError, match="boom"):
        worker.sample()
    batch = worker.sample()
    check_sequences(batch, 3)
    assert batch["obs"][:, 0, 0].tolist() == [0, 3] * 2
    worker.stop()


def test_callbacks_see_rows_of_one_episode_and_then_sequences() -> None:
    class Watch(DefaultCallbacks):
        pieces: list[SampleBatch] = []
        batches: list[SampleBatch] = []

        def on_postprocess_trajectory(self, *, postprocessed_batch: SampleBatch, **kwargs: Any) -> None:
            assert not postprocessed_batch.in_sequences and len(set(postprocessed_batch["eps_id"])) == 1
            postprocessed_batch["rewards"] *= 10
            self.pieces.append(postprocessed_batch)

        def on_sample_end(self, *, samples: SampleBatch, **kwargs: Any) -> None:
            self.batches.append(samples)

    worker = make_worker(lambda context: CounterEnv(5), rows=8, callbacks=Watch)
    batch = worker.sample()
    assert [piece.count for piece in Watch.pieces] == [5, 3] and Watch.batches[0] is batch
    assert set(rows_of(batch)["rewards"]) == {10.0}
    worker.stop()


MEMORIES = ("lstm", "gru", "attention")


def learning_worker(
    memory: str, env: Any = lambda context: RandomLengthEnv(), num_envs: int = 3, rows: int = 60, **settings: Any
) -> RolloutWorker:
    model = {"memory": memory, "memory_size": 8, "max_seq_len": 6, "attention_window": 9, "fcnet_hiddens": [8]}
    policy_class = get_policy_class(PPOConfig())
    return make_worker(env, num_envs, rows, policy_class=policy_class, model=model, **settings)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("acting", ["numpy", "framework"])
def test_sequences_say_what_acting_said(memory: str, batch_mode: str, acting: str) -> None:
    """The network over the sequences, from the states kept, gives what it gave step by step: ratios are 1 at first."""
    worker = learning_worker(memory, batch_mode=batch_mode, acting=acting)
    policy: Any = worker.for_policy("default_policy")
    network = Network(policy.description, NUMPY_OPS)
    for _ in range(3):
        batch = worker.sample()
        inputs, values, _ = network.forward(policy.get_weights(), batch["obs"], batch["state_in"], batch["mask"])
        real = batch["mask"].ravel()
        expected = batch["action_dist_inputs"].reshape(len(real), -1)[real]
        np.testing.assert_allclose(inputs[real], expected, atol=1e-5)
        np.testing.assert_allclose(values[real], batch["vf_preds"].ravel()[real], atol=1e-5)
    worker.stop()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("learned", [False, True])
def test_a_resumed_sampler_goes_on_with_its_memory_bit_for_bit(memory: str, learned: bool) -> None:
    first, second = (learning_worker(memory, "CartPole-v1") for _ in range(2))
    batch = first.sample()
    if learned:
        first.learn_on_batch(batch, 2, 20)
    second.set_state(first.get_state())
    for _ in range(2):
        expected, batch = first.sample(), second.sample()
        assert expected.keys() == batch.keys() and expected["state_in"].any()
        assert all(np.array_equal(batch[name], expected[name]) for name in batch)
    first.stop()
    second.stop()


def follow(act: Callable[..., Any], batch: SampleBatch) -> None:
    """Act through the rows of a batch with states carried by hand; the values must be those of the sampler."""
    state = None
    for row in SampleBatch(rows_of(batch)).rows():
        _, state, extra = act(row["obs"], state)
        np.testing.assert_allclose(extra["vf_preds"], row["vf_preds"], atol=1e-5)
        if row["terminateds"] or row["truncateds"]:
            state = None


@pytest.mark.parametrize("memory", MEMORIES)
def test_acting_by_hand_with_a_state(memory: str) -> None:
    worker = learning_worker(memory, num_envs=1, rows=50, batch_mode="complete_episodes")
    policy, batch = worker.for_policy("default_policy"), worker.sample()

    def by_worker(observation: Any, state: Any) -> Any:
        _, states, extra = worker.compute_actions([observation], states=None if state is None else [state])
        return None, states[0], {name: value[0] for name, value in extra.items()}

    follow(by_worker, batch)
    follow(policy.compute_single_action, batch)

    state, logps = None, []
    for row in SampleBatch(rows_of(batch)).rows():
        actions, obs = row["actions"][None], row["obs"][None]
        logps.append(policy.compute_log_likelihoods(actions, obs, state)[0])
        state = policy.compute_actions(obs, state)[1]
        if row["terminateds"] or row["truncateds"]:
            state = None
    np.testing.assert_allclose(logps, rows_of(batch)["action_logp"], atol=1e-5)
    worker.stop()
