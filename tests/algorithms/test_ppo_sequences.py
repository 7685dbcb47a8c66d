"""PPO over sequences: padding reaches neither the standardised advantages nor loss, statistics and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.algorithms.ppo.loss import ppo_loss
from headwater.data.sample_batch import SampleBatch
from headwater.execution.rollout_ops import StandardizeFields
from headwater.frameworks.numpy.distributions import NumpyCategorical
from headwater.frameworks.numpy.ops import NUMPY_OPS
from tests.frameworks.policies import FRAMEWORKS, make_policy

MEMORIES = ("lstm", "gru", "attention")
MASK = np.array([[True, True, False, False, False], [True] * 5])


def sequences(policy: Any, seed: int = 0) -> SampleBatch:
    """Two sequences of 2 and 5 steps, padded to 5; the second continues an episode."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=(2, 5, *shape)).astype(np.float32)

    state = rng.uniform(-0.5, 0.5, (2, policy.state_size)).astype(np.float32)
    state[0] = 0.0
    batch = {
        "obs": normal(4), "actions": rng.integers(0, 3, (2, 5)), "action_dist_inputs": normal(3),
        "action_logp": -np.abs(normal()), "vf_preds": normal(), "advantages": normal(), "value_targets": normal(),
        "state_in": state, "mask": MASK,
    }  # fmt: skip
    for name, column in batch.items():
        if name not in ("state_in", "mask"):
            column[~MASK] = 0
    return SampleBatch(batch)


def spoiled(batch: SampleBatch, value: float) -> SampleBatch:
    columns = {name: np.array(column) for name, column in batch.items()}
    for name in ("obs", "action_dist_inputs", "action_logp", "vf_preds", "advantages", "value_targets"):
        columns[name][~MASK] = value
    columns["actions"][~MASK] = 2
    return SampleBatch(columns)


@pytest.mark.parametrize("padding", [0.0, -50.0, np.nan, np.inf])
def test_p20_advantages_are_standardised_over_real_rows(padding: float) -> None:
    mask = np.array([[True, False, False], [True, True, True]])
    advantages = np.array([[1.0, padding, padding], [2.0, 3.0, 4.0]], np.float32)
    batch = SampleBatch({"advantages": advantages, "mask": mask, "state_in": np.zeros((2, 1), np.float32)})
    found = StandardizeFields(["advantages"])(batch)["advantages"]
    assert found.shape == (2, 3)
    assert found[mask] == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], abs=1e-6)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_p22_padding_carries_no_loss(framework: str, memory: str) -> None:
    policy = make_policy(
        framework=framework, model={"memory": memory, "max_seq_len": 5}, kl_coeff=0.2, entropy_coeff=0.01
    )
    batch = sequences(policy)
    gradients, stats = policy.compute_gradients(batch)
    assert np.isfinite(list(stats.values())).all()
    assert stats["grad_gnorm"] > 0
    for padding in (1e9, np.nan):
        again, others = policy.compute_gradients(spoiled(batch, padding))
        assert others == stats
        assert all(np.array_equal(gradient, again[name]) for name, gradient in gradients.items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_p22_means_are_over_the_seven_real_rows(framework: str) -> None:
    policy = make_policy(framework=framework, model={"memory": "lstm", "max_seq_len": 5}, kl_coeff=0.2)
    batch = sequences(policy)
    _, stats = policy.compute_gradients(batch)
    inputs, values = np.zeros((2, 5, 3), np.float32), np.zeros((2, 5), np.float32)
    for i, length in enumerate((2, 5)):
        state = batch["state_in"][i : i + 1]
        for t in range(length):
            (inputs[i, t],), (values[i, t],), state = policy.acting_network.forward(batch["obs"][i : i + 1, t], state)
    rows = {name: column[MASK] for name, column in batch.items() if name not in ("state_in", "mask")}
    _, expected = ppo_loss(
        NUMPY_OPS, NumpyCategorical(inputs[MASK]), NumpyCategorical(rows["action_dist_inputs"]), values[MASK], rows,
        policy.coefficients, policy.config,
    )  # fmt: skip
    for name, value in expected.items():
        assert stats[name] == pytest.approx(float(value), rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_learning_from_sequences(framework: str, memory: str) -> None:
    """What must be remembered is learned; minibatches are of whole sequences."""
    policy = make_policy(
        spaces.Box(-1, 1, (1,)), framework=framework, lr=1e-2, max_bad_updates_in_a_row=1,
        model={"memory": memory, "memory_size": 16, "fcnet_hiddens": [16], "attention_heads": 2, "attention_window": 8},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    first = rng.choice([-1.0, 1.0], 32).astype(np.float32)
    obs = np.zeros((32, 6, 1), np.float32)
    obs[:, 0, 0] = first
    mask = np.ones((32, 6), bool)
    mask[::3, 4:] = False
    targets = np.repeat(first[:, None], 6, 1)
    batch = SampleBatch(
        {
            "obs": obs, "actions": np.zeros((32, 6), int), "action_dist_inputs": np.zeros((32, 6, 3), np.float32),
            "action_logp": np.full((32, 6), -np.log(3), np.float32), "vf_preds": np.zeros((32, 6), np.float32),
            "advantages": np.zeros((32, 6), np.float32), "value_targets": targets, "mask": mask,
            "state_in": np.zeros((32, policy.state_size), np.float32),
        }
    )  # fmt: skip
    assert policy.compute_gradients(batch)[1]["vf_loss"] > 0.5
    losses = [policy.learn_on_batch(batch, 4, 40)["vf_loss"] for _ in range(12)]
    assert losses[-1] < 0.1
