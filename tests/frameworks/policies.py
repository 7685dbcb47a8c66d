"""Policies and batches that the tests of frameworks share."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.algorithms.ppo.config import PPOConfig
from headwater.algorithms.ppo.loss import ppo_loss
from headwater.policy.policy_template import build_policy

PACKAGES = {"torch": "torch", "tf2": "tensorflow", "jax": "jax"}
FRAMEWORKS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]

VECTOR = spaces.Box(-1, 1, (4,))
NESTED = spaces.Dict(
    {
        "push": spaces.Box(-1, 1, (2,)),
        "turn": spaces.Discrete(3, start=1),
        "pair": spaces.Tuple([spaces.MultiDiscrete([2, 4]), spaces.Box(-1, 1, ())]),
    }
)
ACTION_SPACES = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (3,)),
    "box_2d": spaces.Box(-1, 1, (2, 2)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "nested": NESTED,
}

# Values that make each update bad.
BAD_COLUMNS = [
    {"advantages": np.nan},
    {"advantages": np.inf},
    {"value_targets": 1e30},
    {"value_targets": 1e20},
    {"action_logp": np.nan},
]


@functools.cache
def policy_class(framework: str = "torch") -> Any:
    """A policy with PPO's loss, without its postprocessing."""
    return build_policy("PPOPolicy", loss=ppo_loss, framework=framework, coefficients=("kl_coeff", "entropy_coeff"))


def make_policy(
    obs_space: spaces.Box = VECTOR,
    action_space: spaces.Space | None = None,
    seed: int = 1,
    framework: str = "torch",
    **settings: Any,
):
    """A PPO policy on the CPU."""
    config = PPOConfig(**{"seed": seed, "device": "cpu", "framework": framework, **settings})
    space = spaces.Discrete(3) if action_space is None else action_space
    return policy_class(framework)(obs_space, space, config)


def flat_actions(actions: Any, rows: int) -> np.ndarray:
    """Nested actions as the one column [B, A] that a train batch holds; others as they are."""
    if not isinstance(actions, dict | tuple):
        return actions
    children = [actions[key] for key in sorted(actions)] if isinstance(actions, dict) else list(actions)
    columns = [flat_actions(child, rows).reshape(rows, -1).astype(np.float32) for child in children]
    return np.concatenate(columns, axis=1)


def make_obs(space: spaces.Box, rows: int, seed: int = 0) -> np.ndarray:
    """Random encoded observations."""
    rng = np.random.default_rng(seed)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (rows, *space.shape), dtype=np.uint8)
    return rng.normal(size=(rows, *space.shape)).astype(np.float32)


def make_batch(policy: Any, rows: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    """A train batch sampled by `policy`, with random advantages and targets."""
    rng = np.random.default_rng([seed, 1])
    obs = make_obs(policy.observation_space, rows, seed)
    actions, _, extra = policy.compute_actions(obs, explore=True)
    return {
        "obs": obs,
        "actions": flat_actions(actions, rows),
        "action_dist_inputs": extra["action_dist_inputs"],
        "action_logp": extra["action_logp"],
        "vf_preds": extra["vf_preds"],
        "advantages": rng.normal(size=rows).astype(np.float32),
        "value_targets": rng.normal(size=rows).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
    }


def weights_equal(a: dict, b: dict) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def same_state(a: Any, b: Any) -> bool:
    """Nested dicts of arrays and JSON values, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


def spoil(batch: dict, **columns: float) -> dict:
    """A batch some of whose columns hold one value everywhere."""
    return batch | {name: np.full_like(batch[name], value) for name, value in columns.items()}
