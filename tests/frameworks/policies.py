"""Policies and batches that the tests of frameworks share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from headwater.algorithms.ppo.config import PPOConfig
from headwater.algorithms.ppo.loss import ppo_loss
from headwater.policy.policy_template import build_policy

torch.set_num_threads(1)

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

PPOPolicy: Any = build_policy("PPOPolicy", loss=ppo_loss, coefficients=("kl_coeff", "entropy_coeff"))


def make_policy(
    obs_space: spaces.Box = VECTOR, action_space: spaces.Space | None = None, seed: int = 1, **settings: Any
):
    """A PPO policy in torch."""
    config = PPOConfig(**{"seed": seed, "device": "cpu", **settings})
    return PPOPolicy(obs_space, spaces.Discrete(3) if action_space is None else action_space, config)


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
