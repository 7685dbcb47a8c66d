"""Action masks in the policies of all frameworks, with the library's networks and with the user's own (case P19)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.errors import ConfigError
from headwater.policy.distributions import Categorical
from headwater.policy.encoded_space import EncodedSpace, joined, one_part
from tests.frameworks.policies import FRAMEWORKS, make_policy

RNG = np.random.default_rng(0)
FIVE = spaces.Discrete(5)


def space_of(choices: int) -> Any:
    return joined([spaces.Box(-1, 1, (2,)), one_part("action_mask", (choices,), 0, 1)])


def rows_of(mask: list[int], count: int) -> np.ndarray:
    observations = RNG.normal(size=(count, 2))
    return np.concatenate([observations, np.tile(mask, (count, 1))], 1).astype(np.float32)


def own_model(framework: str) -> type:
    """A model of the user's own in a framework, that knows nothing of masks: one matrix for outputs and value."""
    if framework == "torch":
        import torch

        class Torch(torch.nn.Module):
            def __init__(
                self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str
            ) -> None:
                super().__init__()
                self.dense = torch.nn.Linear(obs_space.shape[0], num_outputs + 1)

            def forward(self, obs: Any) -> Any:
                outputs = self.dense(obs)
                return outputs[:, :-1], outputs[:, -1]

        return Torch
    if framework == "tf2":
        import tensorflow as tf

        class Tf(tf.Module):
            def __init__(
                self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str
            ) -> None:
                super().__init__()
                self.kernel = tf.Variable(tf.random.normal((obs_space.shape[0], num_outputs + 1)))

            def __call__(self, obs: Any) -> Any:
                outputs = obs @ self.kernel
                return outputs[:, :-1], outputs[:, -1]

        return Tf
    import jax

    class Jax:
        def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str) -> None:
            self.shape = (obs_space.shape[0], num_outputs + 1)

        def init(self, key: Any, obs: Any) -> Any:
            return {"kernel": jax.random.normal(key, self.shape)}

        def apply(self, parameters: Any, obs: Any) -> Any:
            outputs = obs @ parameters["kernel"]
            return outputs[:, :-1], outputs[:, -1]

    return Jax


def without_preference(policy: Any) -> None:
    """Set the weights of the outputs to 0, so that all logits are equal."""
    weights = policy.get_weights()
    policy.set_weights({name: value * ("policy/out" not in name) for name, value in weights.items()})


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("acting", ["numpy", "framework"])
def test_two_of_five(framework: str, acting: str) -> None:
    policy = make_policy(space_of(5), FIVE, framework=framework, acting=acting)
    without_preference(policy)
    rows = rows_of([0, 1, 0, 0, 1], 100_000)
    for _ in range(10):
        actions, _, extra = policy.compute_actions(rows, explore=True)
        assert np.isin(actions, [1, 4]).all() and 0.49 < (actions == 1).mean() < 0.51
    np.testing.assert_allclose(extra["action_logp"], -0.693147, atol=1e-5)
    inputs = extra["action_dist_inputs"][:1]
    dist = policy.dist_class(inputs)
    np.testing.assert_allclose(dist.entropy(), 0.693147, atol=1e-5)
    other = policy.dist_class(np.where(inputs < -1e30, inputs, [[0, 1, 2, 3, 4]]).astype(np.float32))
    np.testing.assert_allclose(dist.kl(other), np.log(np.cosh(1.5)), atol=1e-5)  # of 1/2, 1/2 and sigmoid(-3, 3)
    assert float(policy.logp(inputs, np.array([0]))[0]) < -1e6

    weights = policy.get_weights()
    policy.set_weights(weights | {"policy/out/bias": np.array([1e6, 0, 0, 0, 1], np.float32)})
    assert (policy.compute_actions(rows[:10], explore=False)[0] == 4).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("memory", [None, "lstm"])
def test_masked_logits_have_no_gradient(framework: str, memory: str | None) -> None:
    """Nor has padding, whose mask allows nothing."""
    policy = make_policy(space_of(5), FIVE, framework=framework, model={"memory": memory, "memory_size": 8})
    without_preference(policy)
    rows = rows_of([0, 1, 0, 1, 1], 24)
    actions, _, extra = policy.compute_actions(rows)
    batch: dict[str, Any] = {
        "obs": rows, "actions": actions, "vf_preds": np.zeros(24, np.float32), "value_targets": np.ones(24, np.float32),
        "action_dist_inputs": extra["action_dist_inputs"], "action_logp": extra["action_logp"],
        "advantages": RNG.normal(size=24).astype(np.float32),
    }  # fmt: skip
    if memory is not None:
        batch = {name: column.reshape(4, 6, *column.shape[1:]) for name, column in batch.items()}
        batch["mask"] = np.arange(6) < np.array([6, 2, 5, 1])[:, None]
        for column in batch.values():
            column[~batch["mask"]] = 0
        batch["state_in"] = np.zeros((4, policy.state_size), np.float32)
    gradients, stats = policy.compute_gradients(batch)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    kernel, bias = gradients["policy/out/kernel"], gradients["policy/out/bias"]
    assert not kernel[:, [0, 2]].any() and not bias[[0, 2]].any() and kernel[:, [1, 3, 4]].any(0).all()
    assert stats["entropy"] == pytest.approx(np.log(3), abs=1e-5) and np.isfinite(stats["kl"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_models_of_ones_own_are_masked_too(framework: str) -> None:
    space = spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([2, 3])])
    policy = make_policy(space_of(5), space, framework=framework, model={"custom_model": own_model(framework)})
    rows = rows_of([0, 1, 1, 0, 1], 500)
    (_, choices), _, extra = policy.compute_actions(rows, explore=True)
    assert (choices[:, 0] == 1).all() and set(choices[:, 1]) == {0, 2}
    assert np.isfinite(extra["action_logp"]).all()
    (_, choices), *_ = policy.compute_actions(rows, explore=False)
    assert (choices[:, 0] == 1).all() and np.isin(choices[:, 1], [0, 2]).all()
    inputs = extra["action_dist_inputs"]
    assert (inputs[:, [2, 5]] < -1e37).all() and (np.abs(inputs[:, [0, 1, 3, 4, 6]]) < 1e3).all()


def test_a_distribution_of_other_inputs_cannot_be_masked() -> None:
    class TwoInputs(Categorical):
        @staticmethod
        def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
            return 2

    with pytest.raises(ConfigError, match="TwoInputs takes 2 inputs, but the action mask has 3 entries"):
        make_policy(space_of(3), spaces.Discrete(3), model={"custom_action_dist": TwoInputs})


def test_random_steps_keep_to_the_mask() -> None:
    space = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,))})
    exploration = {"type": "StochasticSampling", "random_timesteps": 10}
    policy = make_policy(space_of(3), space, exploration_config=exploration, acting="numpy")
    policy.set_weights({name: value * 50 for name, value in policy.get_weights().items()})
    actions, _, _ = policy.compute_actions(rows_of([1, 0, 1], 10_000), explore=True, timestep=9)
    counts = np.bincount(actions["b"], minlength=3)
    assert counts[1] == 0 and 4800 < counts[0] < 5200
    np.testing.assert_allclose(actions["a"].std(0), 1, atol=0.05)
    assert isinstance(policy.observation_space, EncodedSpace)
