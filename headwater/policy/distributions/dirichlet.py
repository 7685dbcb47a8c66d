"""Dirichlet: shares that sum to 1, for actions that divide something up."""

from __future__ import annotations

import math
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.bounds import Bounded
from headwater.policy.distributions.gamma import log_gamma_variates

_LARGEST_INPUT = 100.0  # see Beta
_LEAST_SHARE = 1e-6  # smaller shares are read as this, so that their logarithms stay finite
_SUM_TOLERANCE = 1e-3  # how far the shares of an action may be from summing to 1


class Dirichlet(Bounded):
    """x ~ Dirichlet(c) on the simplex of K shares, c = 1 + softplus(inputs); y = low + x (high - low).

    With c > 1 the density has one peak, and samples do not crowd in corners that float32 cannot tell from each other.
    logp(x) = log Gamma(sum c) - sum log Gamma(c_i) + sum (c_i - 1) log x_i, a density over K - 1 of the shares, less
    (K - 1) log(high - low). Entropy and KL are closed forms. Samples carry no gradients.

    Args:
        inputs: [B, K], kept within +-100.
        model: see ActionDistribution.
        low: what an action has for a share of 0; a number.
        high: what it has for a share of 1. (-1 and 1 where the policy's actions are stretched onto the env's bounds.)

    Raises:
        DistributionError: low is not below high, or there are less than two shares.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyDirichlet
        >>> dist = NumpyDirichlet(np.zeros((1, 4)))
        >>> dist.deterministic_sample().tolist(), dist.logp(np.array([[0.5, 0.5, 0.5, 0.5]])).tolist()
        ([[0.25, 0.25, 0.25, 0.25]], [-inf])
    """

    def __init__(self, inputs: Array, model: Any = None, low: float = 0.0, high: float = 1.0) -> None:
        self._set_bounds(low, high)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        ops = self.ops
        if ops.shape(inputs)[-1] < 2:
            raise DistributionError(
                f"{type(self).__name__} divides something into two shares or more, but its inputs have the width "
                f"{ops.shape(inputs)[-1]}: give one input for each share"
            )
        self.inputs = inputs
        self._bind_bounds()
        self.concentration = 1.0 + ops.softplus(ops.clip(inputs, -_LARGEST_INPUT, _LARGEST_INPUT))
        self._total = ops.sum(self.concentration, -1)

    @property
    def action_shape(self) -> Shape:
        return (self.ops.shape(self.inputs)[-1],)

    def _sample(self, rng: RandomSource | None) -> Array:
        shares = self.ops.softmax(log_gamma_variates(self.ops, rng, self.concentration))
        return self._low + shares * self._range

    def _deterministic_sample(self) -> Array:
        """The mean."""
        return self._low + self.concentration / self._total[..., None] * self._range

    def logp(self, actions: Array) -> Array:
        """[B]: log-density of actions [B, K]; -inf off the simplex."""
        ops = self.ops
        actions = ops.to_float(ops.asarray(actions, like=self.inputs), like=self.inputs)
        shares = (self._as_actions(actions) - self._low) / self._range
        on_simplex = ops.all(shares > -_SUM_TOLERANCE, -1) & (ops.abs(ops.sum(shares, -1) - 1.0) <= _SUM_TOLERANCE)
        logs = ops.log(ops.clip(shares, _LEAST_SHARE, 1.0))
        density = ops.sum((self.concentration - 1.0) * logs, -1) - self._log_normaliser() - self._log_volume()
        return ops.where(on_simplex, density, -math.inf)

    def entropy(self) -> Array:
        ops, c = self.ops, self.concentration
        terms = (self._total - float(self._width)) * ops.digamma(self._total) - ops.sum((c - 1.0) * ops.digamma(c), -1)
        return self._log_normaliser() + terms + self._log_volume()

    def kl(self, other: Self) -> Array:
        self._check_bounds_of(other)
        ops, c = self.ops, self.concentration
        difference = ops.sum((c - other.concentration) * (ops.digamma(c) - ops.digamma(self._total)[..., None]), -1)
        return ops.clip(other._log_normaliser() - self._log_normaliser() + difference, 0.0)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return math.prod(action_space.shape)

    @property
    def _width(self) -> int:
        return self.ops.shape(self.inputs)[-1]

    def _log_volume(self) -> float:
        return (self._width - 1) * math.log(self._range)

    def _log_normaliser(self) -> Array:
        """[B]: log of the multivariate Beta function."""
        return self.ops.sum(self.ops.lgamma(self.concentration), -1) - self.ops.lgamma(self._total)
