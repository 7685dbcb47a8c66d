"""DiagGaussian: independent normal numbers, for unbounded actions or ones that are clipped on their way to the env."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.distribution import ActionDistribution

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class DiagGaussian(ActionDistribution):
    """Normal(mean, exp(log_std)) in each of A dimensions; inputs hold the means, then the logarithms of the deviations.

    With z = (x - mean) / std, summed over the A dimensions:
    logp = -z^2/2 - log_std - log(2 pi)/2, entropy = log_std + log(2 pi e)/2,
    KL(1||2) = log_std2 - log_std1 + (std1^2 + (mean1 - mean2)^2) / (2 std2^2) - 1/2.

    Args:
        inputs: [B, 2A].
        model: see ActionDistribution.
        action_shape: the shape of one action, of A entries; (A,) by default.

    Raises:
        DistributionError: the inputs' width is odd, or action_shape has not A entries.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyDiagGaussian
        >>> dist = NumpyDiagGaussian(np.zeros((1, 4)))
        >>> dist.logp(np.array([[0.0, 1.0]])).round(4).tolist(), dist.entropy().round(4).tolist()
        ([-2.3379], [2.8379])
    """

    def __init__(self, inputs: Array, model: Any = None, action_shape: Sequence[int] | None = None) -> None:
        self._action_shape = None if action_shape is None else tuple(action_shape)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        width = self.ops.shape(inputs)[-1]
        entries = width // 2 if self._action_shape is None else math.prod(self._action_shape)
        if width != 2 * entries or entries == 0:
            raise DistributionError(
                f"{type(self).__name__} takes a mean and a log_std for each entry of an action, but its inputs have "
                f"width {width}"
                + (f" and its actions the shape {self._action_shape}" if self._action_shape else "")
                + ": the network's output width must be required_model_output_shape(action_space, model_config)"
            )
        self.inputs = inputs
        self.mean, self.log_std = self.ops.split(inputs, (entries, entries))

    @property
    def action_shape(self) -> Shape:
        return (self.ops.shape(self.mean)[-1],) if self._action_shape is None else self._action_shape

    def _sample(self, rng: RandomSource | None) -> Array:
        """Reparameterised: gradients flow to mean and log_std."""
        return self._shaped(self._draw(rng))

    def _deterministic_sample(self) -> Array:
        return self._shaped(self.mean)

    def logp(self, actions: Array) -> Array:
        """[B]: log-density of actions [B, *action_shape] or [B, A]."""
        return self.ops.sum(self._normal_logp(self._flat(actions)), -1)

    def entropy(self) -> Array:
        return self.ops.sum(self.log_std, -1) + self._entries * (0.5 + _HALF_LOG_2PI)

    def kl(self, other: Self) -> Array:
        ops = self.ops
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * ops.exp(-other.log_std)
        terms = 0.5 * (ops.exp(2.0 * log_ratio) + ops.square(distance)) - log_ratio
        return ops.clip(ops.sum(terms, -1) - 0.5 * self._entries, 0.0)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return 2 * math.prod(action_space.shape)

    @property
    def _entries(self) -> int:
        return self.ops.shape(self.mean)[-1]

    def _draw(self, rng: RandomSource | None) -> Array:
        noise = self.ops.normal(rng, self.ops.shape(self.mean), self.inputs)
        return self.mean + self.ops.exp(self.log_std) * noise

    def _normal_logp(self, x: Array) -> Array:
        """[B, A] -> [B, A], by dimension."""
        z = (x - self.mean) * self.ops.exp(-self.log_std)
        return -0.5 * self.ops.square(z) - self.log_std - _HALF_LOG_2PI

    def _flat(self, actions: Array) -> Array:
        actions = self.ops.asarray(actions, like=self.inputs)
        if tuple(self.ops.shape(actions)) != (*self._batch_shape(), self._entries):
            actions = self.ops.reshape(self._as_actions(actions), self.ops.shape(self.mean))
        return actions

    def _shaped(self, x: Array) -> Array:
        return x if self._action_shape is None else self.ops.reshape(x, (*self._batch_shape(), *self._action_shape))
