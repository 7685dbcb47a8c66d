"""Beta: numbers within bounds, for bounded actions; it needs no squashing and has closed forms throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.bounds import EDGE, Bounded
from headwater.policy.distributions.gamma import log_gamma_variates

# Inputs are kept within this: beyond, float32 cannot tell the closed forms' large terms apart.
_LARGEST_INPUT = 100.0


class Beta(Bounded):
    """y = low + x (high - low) with x ~ Beta(a, b) in each of A dimensions, a and b = 1 + softplus(inputs).

    Chou et al. 2017 (ICML, Improving stochastic policy gradients in continuous control with deep reinforcement
    learning using the Beta distribution): with a, b > 1 the density has one peak and vanishes at the bounds, and no
    probability is lost outside of them.
    logp(y) = (a - 1) log x + (b - 1) log(1 - x) - log B(a, b) - log(high - low), summed over dimensions. Entropy and KL
    are closed forms of log Gamma and digamma. Samples carry no gradients.

    Args:
        inputs: [B, 2A]: what makes a, then what makes b; kept within +-100.
        model: see ActionDistribution.
        low: lower bound: a number, or an array of the action's shape.
        high: upper bound, likewise; above `low` everywhere.
        action_shape: the shape of one action; by default that of the bounds where they are arrays, else (A,).

    Raises:
        DistributionError: a bound is not finite, or low is not below high; or the inputs' width is odd.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyBeta
        >>> dist = NumpyBeta(np.zeros((1, 2)), low=0.0, high=1.0)
        >>> dist.deterministic_sample().tolist(), dist.logp(np.array([[1.5]])).tolist()
        ([[0.5]], [-inf])
    """

    def __init__(
        self,
        inputs: Array,
        model: Any = None,
        low: Any = -1.0,
        high: Any = 1.0,
        action_shape: Sequence[int] | None = None,
    ) -> None:
        self._set_bounds(low, high)
        self._action_shape = self._shape_of_bounds if action_shape is None else tuple(action_shape)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        ops, width = self.ops, self.ops.shape(inputs)[-1]
        entries = width // 2 if self._action_shape is None else math.prod(self._action_shape)
        if width != 2 * entries or entries == 0:
            raise DistributionError(
                f"{type(self).__name__} takes two inputs for each entry of an action of shape "
                f"{self._action_shape or '(A,)'}, but its inputs have width {width}: the network's output width must "
                "be required_model_output_shape(action_space, model_config)"
            )
        self.inputs = inputs
        self._bind_bounds()
        positive = 1.0 + ops.softplus(ops.clip(inputs, -_LARGEST_INPUT, _LARGEST_INPUT))
        self.alpha, self.beta = ops.split(positive, (entries, entries))

    @property
    def action_shape(self) -> Shape:
        return (self.ops.shape(self.alpha)[-1],) if self._action_shape is None else self._action_shape

    def _sample(self, rng: RandomSource | None) -> Array:
        ops = self.ops
        # A share of two gamma variates is a Beta variate.
        log_variates = log_gamma_variates(ops, rng, ops.stack([self.alpha, self.beta], -1))
        share = ops.sigmoid(log_variates[..., 0] - log_variates[..., 1])
        return self._in_range(ops.clip(share, EDGE, 1.0 - EDGE))

    def _deterministic_sample(self) -> Array:
        """The mean."""
        return self._in_range(self.alpha / (self.alpha + self.beta))

    def logp(self, actions: Array) -> Array:
        """[B]: log-density of actions [B, *action_shape] or [B, A]; -inf outside the bounds, finite on them."""
        ops = self.ops
        actions = ops.to_float(ops.asarray(actions, like=self.inputs), like=self.inputs)
        y = ops.reshape(self._as_actions(actions), ops.shape(self.alpha))
        x = ops.clip((y - self._low) / self._range, EDGE, 1.0 - EDGE)
        terms = (self.alpha - 1.0) * ops.log(x) + (self.beta - 1.0) * ops.log(1.0 - x)
        density = ops.sum(terms - self._log_normaliser() - self._log_range(), -1)
        return ops.where(self._is_within(y), density, -math.inf)

    def entropy(self) -> Array:
        ops, a, b = self.ops, self.alpha, self.beta
        terms = (a + b - 2.0) * ops.digamma(a + b) - (a - 1.0) * ops.digamma(a) - (b - 1.0) * ops.digamma(b)
        return ops.sum(self._log_normaliser() + terms + self._log_range(), -1)

    def kl(self, other: Self) -> Array:
        self._check_bounds_of(other)
        ops, a, b = self.ops, self.alpha, self.beta
        more_a, more_b = a - other.alpha, b - other.beta
        terms = more_a * ops.digamma(a) + more_b * ops.digamma(b) - (more_a + more_b) * ops.digamma(a + b)
        return ops.clip(ops.sum(other._log_normaliser() - self._log_normaliser() + terms, -1), 0.0)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return 2 * math.prod(action_space.shape)

    def _log_normaliser(self) -> Array:
        """[B, A]: log B(a, b)."""
        ops = self.ops
        return ops.lgamma(self.alpha) + ops.lgamma(self.beta) - ops.lgamma(self.alpha + self.beta)

    def _in_range(self, x: Array) -> Array:
        y = self.ops.clip(self._low + x * self._range, self._low, self._high)  # rounding may step over a bound
        return self.ops.reshape(y, (*self._batch_shape(), *self.action_shape))
