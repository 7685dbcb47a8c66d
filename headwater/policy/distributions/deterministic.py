"""Deterministic: the network's output is the action (DDPG, TD3, and a Box policy without noise)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, RandomSource, Shape
from headwater.policy.distributions.distribution import ActionDistribution, require_width


class Deterministic(ActionDistribution):
    """All probability on one action for each row: the inputs themselves.

    There is no density to speak of: by convention `logp`, `entropy` and `kl` are 0 for every action, so that
    losses which add them are left unchanged.

    Args:
        inputs: [B, A], the actions.
        model: see ActionDistribution.
        action_shape: the shape of one action, of A entries; (A,) by default.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyDeterministic
        >>> dist = NumpyDeterministic(np.array([[0.5, -0.5]]))
        >>> dist.sample().tolist(), dist.sampled_action_logp().tolist()
        ([[0.5, -0.5]], [0.0])
    """

    def __init__(self, inputs: Array, model: Any = None, action_shape: Sequence[int] | None = None) -> None:
        self._action_shape = None if action_shape is None else tuple(action_shape)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        if self._action_shape is not None:
            require_width(self, inputs, math.prod(self._action_shape), f"actions of shape {self._action_shape}")
        self.inputs = inputs

    @property
    def action_shape(self) -> Shape:
        return (self.ops.shape(self.inputs)[-1],) if self._action_shape is None else self._action_shape

    def _sample(self, rng: RandomSource | None) -> Array:
        return self._deterministic_sample()

    def _deterministic_sample(self) -> Array:
        return self.ops.reshape(self.inputs, (*self._batch_shape(), *self.action_shape))

    def logp(self, actions: Array) -> Array:
        """[B]: zeros."""
        self._as_actions(actions)
        return self.ops.zeros(self._batch_shape(), self.inputs)

    def entropy(self) -> Array:
        """[B]: zeros."""
        return self.ops.zeros(self._batch_shape(), self.inputs)

    def kl(self, other: Self) -> Array:
        """[B]: zeros."""
        return self.ops.zeros(self._batch_shape(), self.inputs)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return math.prod(action_space.shape)
