"""MultiCategorical: several independent choices at once (MultiDiscrete and MultiBinary spaces)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.categorical import MASKED_LOGIT, Categorical
from headwater.policy.distributions.distribution import ActionDistribution, require_width


class MultiCategorical(ActionDistribution):
    """k independent Categoricals; a row's log-probability, entropy and KL are sums over the k.

    Args:
        inputs: [B, sum(input_lens)] logits, side by side.
        model: see ActionDistribution.
        input_lens: how many choices each of the k has, in row-major order of the action.
        action_shape: the shape of one action, of k entries; (k,) by default.
        action_mask: [B, sum(input_lens)] booleans or 0 and 1: which choices are allowed; None: all.

    Raises:
        DistributionError: the inputs' width is not sum(input_lens), or action_shape has not k entries.

    Example:
        >>> import numpy as np
        >>> from headwater.frameworks.numpy import NumpyMultiCategorical
        >>> dist = NumpyMultiCategorical(np.array([[0.0, 1.0, 0.0, 1.0, 2.0]]), input_lens=[2, 3])
        >>> dist.logp(np.array([[1, 2]])).round(4).tolist()
        [-0.7209]
        >>> dist.multi_entropy().round(4).tolist()
        [[0.5822, 0.8324]]
    """

    _categorical: type[Categorical]

    def __init__(
        self,
        inputs: Array,
        model: Any = None,
        input_lens: Sequence[int] = (),
        action_shape: Sequence[int] | None = None,
        action_mask: Array | None = None,
    ) -> None:
        self.input_lens = [int(n) for n in input_lens]
        self._action_shape = (len(self.input_lens),) if action_shape is None else tuple(action_shape)
        if math.prod(self._action_shape) != len(self.input_lens) or not self.input_lens:
            raise DistributionError(
                f"{type(self).__name__}: input_lens has {len(self.input_lens)} entries, but an action of shape "
                f"{self._action_shape} has {math.prod(self._action_shape)}: give one input length for each entry"
            )
        self.action_mask = None if action_mask is None else self.ops.asarray(action_mask)
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        require_width(self, inputs, sum(self.input_lens), f"the sum of input_lens {self.input_lens}")
        self.inputs = inputs
        lens, ops = self.input_lens, self.ops
        if self.action_mask is not None:
            inputs = ops.where(self.action_mask > 0, inputs, MASKED_LOGIT)
        # Equal lengths make one Categorical over [B, k, n]: no loop over k.
        self._grid = len(set(lens)) == 1
        if self._grid:
            parts = [ops.reshape(inputs, (*ops.shape(inputs)[:-1], len(lens), lens[0]))]
        else:
            parts = ops.split(inputs, lens)
        self._cats = [self._categorical(part) for part in parts]

    @property
    def action_shape(self) -> Shape:
        return self._action_shape

    def _sample(self, rng: RandomSource | None) -> Array:
        uniform = self.ops.uniform(rng, (*self._batch_shape(), len(self.input_lens)), self.inputs)
        return self._as_shaped([cat.sample_from(u) for cat, u in zip(self._cats, self._columns(uniform), strict=True)])

    def _deterministic_sample(self) -> Array:
        return self._as_shaped([cat.deterministic_sample() for cat in self._cats])

    def logp(self, actions: Any) -> Array:
        """[B]: of integer actions [B, *action_shape], [B, k], or a list of k columns [B]."""
        ops = self.ops
        if isinstance(actions, (list, tuple)):
            actions = ops.stack([ops.asarray(column, like=self.inputs) for column in actions])
        flat = ops.reshape(self._as_actions(actions), (*self._batch_shape(), len(self.input_lens)))
        parts = [cat.logp(column) for cat, column in zip(self._cats, self._columns(flat), strict=True)]
        return ops.sum(self._joined(parts), -1)

    def entropy(self) -> Array:
        return self.ops.sum(self.multi_entropy(), -1)

    def kl(self, other: Self) -> Array:
        return self.ops.sum(self.multi_kl(other), -1)

    def multi_entropy(self) -> Array:
        """[B, k]: the entropy of each choice."""
        return self._joined([cat.entropy() for cat in self._cats])

    def multi_kl(self, other: Self) -> Array:
        """[B, k]: the divergence of each choice."""
        return self._joined([cat.kl(peer) for cat, peer in zip(self._cats, other._cats, strict=True)])

    @staticmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        nvec = getattr(action_space, "nvec", None)
        return int(nvec.sum()) if nvec is not None else 2 * math.prod(action_space.shape)

    def _columns(self, x: Array) -> list[Array]:
        """[B, k] -> what each of `_cats` takes: all of it, or k of [B]."""
        return [x] if self._grid else [x[..., i] for i in range(len(self.input_lens))]

    def _joined(self, parts: list[Array]) -> Array:
        return parts[0] if self._grid else self.ops.stack(parts)

    def _as_shaped(self, parts: list[Array]) -> Array:
        return self.ops.reshape(self._joined(parts), (*self._batch_shape(), *self._action_shape))
