"""Categorical: one of K choices, by logits."""

from __future__ import annotations

import math
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.distribution import ActionDistribution

# What stands for log(0): its exponential is exactly 0 and its products with 0 are 0, where those of -inf are NaN.
LOG_ZERO = -1e30

# The logit of a choice that is not allowed: its probability is exactly 0, and sums with it stay finite.
MASKED_LOGIT = -1e38

# 1 - 2**-23, the largest factor which keeps u * total below total in float32 even where u was rounded up to 1.
_BELOW_ONE = 1.0 - 2.0**-23


class Categorical(ActionDistribution):
    """Choices 0 to K-1 with probabilities softmax(inputs / temperature).

    With p = softmax(logits): logp(a) = log p_a, entropy = -sum_i p_i log p_i, KL(p||q) = sum_i p_i (log p_i - log q_i).
    Vanishing probabilities give finite values and gradients. A logit of -inf or -1e38 (a masked choice) has
    probability exactly 0, is never sampled, and adds nothing to entropy and KL.

    Args:
        inputs: [B, K] logits, in any scale.
        model: see ActionDistribution.
        temperature: above 0; larger flattens the distribution. The caller's inputs stay as they are.
        action_mask: [B, K] booleans or 0 and 1: which choices are allowed; None: all.

    Raises:
        DistributionError: the temperature is not above 0; from `sample` and `deterministic_sample`, logits are NaN or
            no choice is allowed.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyCategorical
        >>> dist = NumpyCategorical(np.log(np.array([[0.2, 0.8], [0.5, 0.5]])))
        >>> dist.logp(np.array([1, 0])).round(4).tolist()
        [-0.2231, -0.6931]
        >>> dist.deterministic_sample().tolist()
        [1, 0]
    """

    def __init__(
        self, inputs: Array, model: Any = None, temperature: float = 1.0, action_mask: Array | None = None
    ) -> None:
        if not temperature > 0 or math.isinf(temperature):
            raise DistributionError(f"{type(self).__name__}: temperature must be a number above 0, not {temperature!r}")
        self.temperature = temperature
        self.action_mask = None if action_mask is None else self.ops.asarray(action_mask)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        self.inputs = inputs
        self.logits = self._allowed(inputs if self.temperature == 1.0 else inputs / self.temperature)
        self._log_probs: Array = None
        self._may_vanish = True  # False where an eager framework has seen that no log-probability was cut off
        self._probs: Array = None

    @property
    def log_probs(self) -> Array:
        """[B, K]: log-probabilities, not below LOG_ZERO."""
        if self._log_probs is None:
            log_probs = self.ops.log_softmax(self.logits)
            self._log_probs = self.ops.clip(log_probs, LOG_ZERO)
            self._may_vanish = self._log_probs is not log_probs
        return self._log_probs

    @property
    def probs(self) -> Array:
        """[B, K]: probabilities."""
        if self._probs is None:
            self._probs = self.ops.exp(self.log_probs)
        return self._probs

    @property
    def action_shape(self) -> Shape:
        return ()

    def _sample(self, rng: RandomSource | None) -> Array:
        return self.sample_from(self.ops.uniform(rng, self._batch_shape(), self.inputs))

    def sample_from(self, uniform: Array) -> Array:
        """int64 [B]: where uniform numbers [B] in [0, 1] fall on the running sums of the probabilities."""
        ops, logits = self.ops, self.logits
        # Where nothing is allowed all weights are 0; where logits are NaN, so is the total.
        weights = ops.exp(logits - ops.maximum(ops.max(logits, -1, keepdims=True), LOG_ZERO))
        sums = ops.cumsum(weights)
        total = sums[..., -1]
        ops.check(total > 0, self._bad_logits)
        return ops.searchsorted(sums, uniform * (total * _BELOW_ONE))

    def _deterministic_sample(self) -> Array:
        self.ops.check(self.ops.max(self.logits, -1) > LOG_ZERO, self._bad_logits)
        return self.ops.argmax(self.logits)

    def logp(self, actions: Array) -> Array:
        """[B]: log-probability of integer actions [B] (whole floats serve too); -inf for one that is not allowed."""
        actions = self.ops.to_index(self._as_actions(actions), "action")
        logp = self.ops.pick(self.log_probs, actions, "action")
        return self.ops.where(logp <= LOG_ZERO, -math.inf, logp) if self._may_vanish else logp

    def entropy(self) -> Array:
        return -self.ops.sum(self.probs * self.log_probs, -1)

    def kl(self, other: Self) -> Array:
        # Rounding can leave a divergence of equals a hair below zero.
        return self.ops.clip(self.ops.sum(self.probs * (self.log_probs - other.log_probs), -1), 0.0)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return int(action_space.n)

    def _allowed(self, logits: Array) -> Array:
        return logits if self.action_mask is None else self.ops.where(self.action_mask > 0, logits, MASKED_LOGIT)

    def _bad_logits(self) -> str:
        logits = self.ops.to_numpy(self.logits).reshape(-1, self.ops.shape(self.logits)[-1])
        row = int((~(logits.max(-1) > LOG_ZERO) | (logits.max(-1) == math.inf)).argmax())
        return (
            f"{type(self).__name__}: row {row} has the logits {logits[row].tolist()}, from which nothing can be "
            "chosen. NaN comes from a diverged network (lower lr, or set grad_clip), -1e38 or -inf throughout from a "
            "mask that allows no action"
        )
