"""GumbelSoftmax: a choice relaxed to a point of the simplex, so that samples carry gradients."""

from __future__ import annotations

from headwater.frameworks.ops import Array, RandomSource, Shape
from headwater.policy.distributions.categorical import Categorical

# Keeps both logarithms of -log(-log(u)) finite in float32.
_TINY, _ALMOST_ONE = 1e-30, 1.0 - 2.0**-24

# How far the entries of a relaxed one-hot may be from summing to 1.
_SUM_TOLERANCE = 1e-3


class GumbelSoftmax(Categorical):
    """Relaxed one-hot vectors softmax((logits + Gumbel noise) / temperature), differentiable in the logits.

    Jang et al. 2017 (arXiv:1611.01144), Maddison et al. 2017 (arXiv:1611.00712). At any temperature the largest entry
    of a sample is distributed as Categorical(logits); as the temperature goes to 0 samples become one-hot.

    `logp(x) = sum_i x_i log softmax(logits)_i`, the cross-entropy: for one-hot or integer actions the exact
    log-probability of that choice. For a relaxed sample it is the same expression, not the density of the relaxed
    distribution. Entropy and KL are those of the underlying Categorical(logits), in closed form.

    Args:
        inputs: [B, K] logits.
        model: see ActionDistribution.
        temperature: above 0; smaller makes samples closer to one-hot and their gradients noisier.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyGumbelSoftmax
        >>> dist = NumpyGumbelSoftmax(np.log(np.array([[0.2, 0.8]])), temperature=0.5)
        >>> dist.logp(np.array([1])).round(4).tolist(), dist.logp(np.array([[0.0, 1.0]])).round(4).tolist()
        ([-0.2231], [-0.2231])
        >>> float(dist.sample().sum().round(4))
        1.0
    """

    def _bind(self, inputs: Array) -> None:
        super()._bind(inputs)
        self.logits = self._allowed(inputs)  # the temperature is the relaxation's, not the choice's

    @property
    def action_shape(self) -> Shape:
        return (self.ops.shape(self.inputs)[-1],)

    def _sample(self, rng: RandomSource | None) -> Array:
        ops = self.ops
        uniform = ops.clip(ops.uniform(rng, ops.shape(self.inputs), self.inputs), _TINY, _ALMOST_ONE)
        gumbel = -ops.log(-ops.log(uniform))
        return ops.softmax((self.logits + gumbel) / self.temperature)

    def _deterministic_sample(self) -> Array:
        return self.ops.softmax(self.logits)

    def logp(self, actions: Array) -> Array:
        """[B]: of vectors [B, K] on the simplex, or of integers [B]; a vector off the simplex gives -inf."""
        ops = self.ops
        actions = ops.asarray(actions, like=self.inputs)
        if actions.ndim == self.inputs.ndim - 1:
            return ops.pick(self.log_probs, ops.to_index(actions, "action"), "action")
        weights = ops.to_float(self._as_actions(actions), like=self.inputs)
        on_simplex = ops.all(weights >= 0, -1) & (ops.abs(ops.sum(weights, -1) - 1.0) <= _SUM_TOLERANCE)
        return ops.where(on_simplex, ops.sum(weights * self.log_probs, -1), -float("inf"))
