"""BinaryAutoregressiveDistribution: two binary choices, the second of which depends on the first."""

from __future__ import annotations

from typing import Any, Self

from headwater.frameworks.ops import Array, RandomSource, Shape
from headwater.policy.distributions.categorical import Categorical
from headwater.policy.distributions.distribution import ActionDistribution, require_width


class BinaryAutoregressiveDistribution(ActionDistribution):
    """p(a1, a2) = p(a1) p(a2 | a1) over two binary choices.

    The network gives six logits: two of a1, two of a2 if a1 is 0, two of a2 if a1 is 1; so any dependence of a2 on the
    observation and on a1 can be expressed. The four joint actions are a Categorical, whose log-probability, entropy and
    KL are exact. (The 1.x line estimated both.)

    A model that has `action_model(inputs, a1) -> (a1 logits [B, 2], a2 logits [B, 2])`, as the 1.x line's example does,
    makes the six itself: `inputs` are then its context features, and it is asked once for each a1 (float [B, 1]).

    Args:
        inputs: [B, 6]; or [B, features] for such a model.
        model: see above.
        nested: actions are tuples `(a1 [B], a2 [B])`, as Tuple spaces want them, rather than [B, 2].

    Raises:
        DistributionError: there are not six logits.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyBinaryAutoregressiveDistribution
        >>> dist = NumpyBinaryAutoregressiveDistribution(np.array([[0.0, 0.0, 50.0, 0.0, 0.0, 50.0]]))
        >>> [dist.logp(np.array([pair])).round(4).item() for pair in ([0, 0], [0, 1], [1, 0], [1, 1])]
        [-0.6931, -50.6931, -50.6931, -0.6931]
    """

    _categorical: type[Categorical]

    def __init__(self, inputs: Array, model: Any = None, nested: bool = False) -> None:
        self._nested = nested
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        ops, self.inputs = self.ops, inputs
        six = inputs
        if hasattr(self.model, "action_model"):
            first, if_0 = self.model.action_model(inputs, ops.zeros((*self._batch_shape(), 1), inputs))
            _, if_1 = self.model.action_model(inputs, ops.zeros((*self._batch_shape(), 1), inputs) + 1.0)
            six = ops.concat([first, if_0, if_1])
        require_width(self, six, 6, "two logits of a1, two of a2 for each a1")
        pairs = ops.log_softmax(ops.reshape(six, (*self._batch_shape(), 3, 2)))
        first, second = pairs[..., 0, :], pairs[..., 1:, :]
        self._joint = self._categorical(ops.reshape(first[..., None] + second, (*self._batch_shape(), 4)))

    @property
    def action_shape(self) -> Shape:
        return (2,)

    def _sample(self, rng: RandomSource | None) -> Any:
        return self._pair(self._joint.sample(rng))

    def _deterministic_sample(self) -> Any:
        """The most probable pair."""
        return self._pair(self._joint.deterministic_sample())

    def logp(self, actions: Any) -> Array:
        """[B]: of integer pairs [B, 2], or of a tuple of two [B]."""
        ops = self.ops
        if isinstance(actions, (tuple, list)):
            actions = ops.stack([ops.asarray(action, like=self.inputs) for action in actions])
        pair = ops.to_index(self._as_actions(actions), "action")
        # A choice that is neither 0 nor 1 must not pass for another pair.
        index = ops.where(ops.all((pair == 0) | (pair == 1), -1), 2 * pair[..., 0] + pair[..., 1], -1)
        return self._joint.logp(index)

    def entropy(self) -> Array:
        return self._joint.entropy()

    def kl(self, other: Self) -> Array:
        return self._joint.kl(other._joint)

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        return 6

    def _pair(self, index: Array) -> Any:
        first = self.ops.to_index(index >= 2)
        pair = (first, index - 2 * first)
        return pair if self._nested else self.ops.stack(pair)
