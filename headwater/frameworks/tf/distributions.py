"""The distributions bound to TensorFlow; each is its family's mathematics over `TF_OPS`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from headwater.frameworks.ops import Array, RandomSource
from headwater.frameworks.tf.ops import TF_OPS
from headwater.policy import distributions as families


class TFActionDistribution(families.ActionDistribution):
    """Binds a family to TensorFlow: inputs and actions that are no tensors become ones.

    It has the names of the 1.x line, where a distribution was a piece of a graph with one sample: `sample_op` is the
    present sample, drawn by `_build_sample_op` when it is first asked for, and `sampled_action_logp_op` its
    log-probability. `sample()` draws anew, and `sample_op` is then what it gave.

    Example:
        >>> import numpy as np
        >>> dist = Categorical(np.zeros((2, 4), np.float32))
        >>> dist.sample_op is dist.sample_op
        True
        >>> [round(x, 4) for x in dist.sampled_action_logp_op.numpy().tolist()]
        [-1.3863, -1.3863]
        >>> dist.sample() is dist.sample_op
        True
    """

    ops = TF_OPS

    def __init__(self, inputs: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        if not isinstance(inputs, tf.Tensor):
            inputs = TF_OPS.asarray(inputs)
        super().__init__(inputs, model, *args, **kwargs)

    @property
    def sample_op(self) -> Any:
        """[B, *action_shape]: the sample there is, or a first one."""
        if self.last_sample is None:
            self.last_sample = self._build_sample_op()
        return self.last_sample

    @property
    def sampled_action_logp_op(self) -> Array:
        """[B]: the log-probability of `sample_op`."""
        return self.logp(self.sample_op)

    def sample(self, rng: RandomSource | None = None) -> Any:
        """One action for each row: [B, *action_shape]; without `rng` it is what `_build_sample_op` draws."""
        if rng is not None:
            return super().sample(rng)
        self.last_sample = self._build_sample_op()
        return self.last_sample

    def _build_sample_op(self) -> Any:
        """A fresh sample from `self.rng`; distributions of one's own may override it, as in the 1.x line."""
        return self._sample(self.rng)


class Categorical(TFActionDistribution, families.Categorical):
    pass


class MultiCategorical(TFActionDistribution, families.MultiCategorical):
    _categorical = Categorical


class GumbelSoftmax(TFActionDistribution, families.GumbelSoftmax):
    pass


class DiagGaussian(TFActionDistribution, families.DiagGaussian):
    pass


class SquashedGaussian(TFActionDistribution, families.SquashedGaussian):
    pass


class Beta(TFActionDistribution, families.Beta):
    pass


class Dirichlet(TFActionDistribution, families.Dirichlet):
    pass


class BinaryAutoregressiveDistribution(TFActionDistribution, families.BinaryAutoregressiveDistribution):
    _categorical = Categorical


class Deterministic(TFActionDistribution, families.Deterministic):
    pass


class MultiActionDistribution(TFActionDistribution, families.MultiActionDistribution):
    pass
