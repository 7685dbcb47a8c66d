"""SquashedGaussian: a Gaussian pressed into bounds by tanh, for bounded actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, RandomSource
from headwater.policy.distributions.bounds import EDGE, Bounded
from headwater.policy.distributions.gaussian import DiagGaussian

MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0

_LOG_2 = math.log(2.0)


class SquashedGaussian(Bounded, DiagGaussian):
    """y = low + (tanh(u) + 1) (high - low) / 2 with u ~ DiagGaussian(mean, log_std), log_std clipped to [-20, 2].

    logp(y) = sum over dimensions of log N(u) - log dy/du, where dy/du = (1 - tanh(u)^2) (high - low) / 2, and
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact in the tails (Haarnoja et al. 2018,
    arXiv:1812.05905, appendix C).

    `entropy` is the Gaussian's, exact, plus the mean of log dy/du, estimated without bias by one reparameterised draw
    (`exact_entropy` is False). `kl` is exact: the squashing is the same bijection on both sides, so that the divergence
    is the one of the Gaussians.

    Args:
        inputs: [B, 2A]: means, then logarithms of the deviations, both before squashing.
        model: see ActionDistribution.
        low: lower bound: a number, or an array of the action's shape.
        high: upper bound, likewise; above `low` everywhere.
        action_shape: the shape of one action; by default that of the bounds where they are arrays, else (A,).

    Raises:
        DistributionError: a bound is not finite, or low is not below high.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpySquashedGaussian
        >>> dist = NumpySquashedGaussian(np.zeros((1, 2)), low=-2.0, high=2.0)
        >>> dist.logp(np.array([[0.0]])).round(4).tolist()
        [-1.6121]
        >>> dist.logp(np.array([[2.5]])).tolist()
        [-inf]
    """

    exact_entropy = False

    def __init__(
        self,
        inputs: Array,
        model: Any = None,
        low: Any = -1.0,
        high: Any = 1.0,
        action_shape: Sequence[int] | None = None,
    ) -> None:
        self._set_bounds(low, high)
        DiagGaussian.__init__(self, inputs, model, self._shape_of_bounds if action_shape is None else action_shape)

    def _bind(self, inputs: Array) -> None:
        super()._bind(inputs)
        ops = self.ops
        self.log_std = ops.clip(self.log_std, MIN_LOG_STD, MAX_LOG_STD)
        self._bind_bounds()
        self._half_range = 0.5 * self._range

    def _sample(self, rng: RandomSource | None) -> Array:
        return self._shaped(self._squash(self._draw(rng)))

    def _deterministic_sample(self) -> Array:
        return self._shaped(self._squash(self.mean))

    def logp(self, actions: Array) -> Array:
        """[B]: log-density of actions [B, *action_shape] or [B, A]; -inf outside the bounds, finite on them."""
        ops = self.ops
        y = self._flat(actions)
        edge = 1.0 - 2.0 * EDGE
        u = ops.atanh(ops.clip((y - self._low) / self._half_range - 1.0, -edge, edge))
        density = ops.sum(self._normal_logp(u) - self._log_slope(u), -1)
        return ops.where(self._is_within(y), density, -math.inf)

    def entropy(self) -> Array:
        """[B]: an unbiased estimate with gradients, drawn from `self.rng`."""
        return super().entropy() + self.ops.sum(self._log_slope(self._draw(self.rng)), -1)

    def kl(self, other: Self) -> Array:
        self._check_bounds_of(other)
        return super().kl(other)

    def _squash(self, u: Array) -> Array:
        y = self._low + (self.ops.tanh(u) + 1.0) * self._half_range
        return self.ops.clip(y, self._low, self._high)  # rounding may step over a bound

    def _log_slope(self, u: Array) -> Array:
        """[B, A] -> [B, A]: log dy/du."""
        half_range = self._half_range
        log_half_range = math.log(half_range) if isinstance(half_range, float) else self.ops.log(half_range)
        return 2.0 * (_LOG_2 - u - self.ops.softplus(-2.0 * u)) + log_half_range
