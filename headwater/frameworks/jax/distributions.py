"""The distributions bound to JAX; each is its family's mathematics over `JAX_OPS`."""

from __future__ import annotations

from typing import Any

import jax

from headwater.frameworks.jax.generator import source_of
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.ops import RandomSource
from headwater.policy import distributions as families


class JAXDistribution(families.ActionDistribution):
    """Binds a family to JAX: inputs that are no JAX arrays become ones; keys of `jax.random` serve as generators.

    There is no global generator: `sample` needs an `rng`, or the distribution's own to be set.

    Example:
        >>> import numpy as np
        >>> dist = JAXCategorical(np.zeros((2, 4), np.float32))
        >>> dist.sample(jax.random.key(0)).shape
        (2,)
        >>> [round(x, 4) for x in dist.sampled_action_logp().tolist()]
        [-1.3863, -1.3863]
    """

    ops = JAX_OPS
    _rng: RandomSource | None = None

    def __init__(self, inputs: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(inputs if isinstance(inputs, jax.Array) else JAX_OPS.asarray(inputs), model, *args, **kwargs)

    @property
    def rng(self) -> RandomSource | None:
        """Where `sample` without an `rng`, and estimates, draw from; a key that is set becomes a generator."""
        return self._rng

    @rng.setter
    def rng(self, rng: RandomSource | jax.Array | None) -> None:
        self._rng = rng if rng is None else source_of(rng)

    def sample(self, rng: RandomSource | jax.Array | None = None) -> Any:
        """One action for each row: [B, *action_shape]; `rng` is a source of numbers or a key of `jax.random`."""
        # One generator for the whole sample: a key that went to each child of a nested one would give each the same.
        return super().sample(rng if rng is None else source_of(rng))


class JAXCategorical(JAXDistribution, families.Categorical):
    pass


class JAXMultiCategorical(JAXDistribution, families.MultiCategorical):
    _categorical = JAXCategorical


class JAXGumbelSoftmax(JAXDistribution, families.GumbelSoftmax):
    pass


class JAXDiagGaussian(JAXDistribution, families.DiagGaussian):
    pass


class JAXSquashedGaussian(JAXDistribution, families.SquashedGaussian):
    pass


class JAXBeta(JAXDistribution, families.Beta):
    pass


class JAXDirichlet(JAXDistribution, families.Dirichlet):
    pass


class JAXBinaryAutoregressiveDistribution(JAXDistribution, families.BinaryAutoregressiveDistribution):
    _categorical = JAXCategorical


class JAXDeterministic(JAXDistribution, families.Deterministic):
    pass


class JAXMultiActionDistribution(JAXDistribution, families.MultiActionDistribution):
    pass
