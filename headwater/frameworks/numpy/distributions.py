"""The distributions bound to NumPy: what policies act with on the CPU, and the reference of the other frameworks."""

from __future__ import annotations

from typing import Any

from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy import distributions as families


class NumpyDistributionWrapper(families.ActionDistribution):
    """Binds a family to NumPy; lists are accepted as inputs and actions."""

    ops = NUMPY_OPS

    def __init__(self, inputs: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(NUMPY_OPS.asarray(inputs), model, *args, **kwargs)


class NumpyCategorical(NumpyDistributionWrapper, families.Categorical):
    pass


class NumpyMultiCategorical(NumpyDistributionWrapper, families.MultiCategorical):
    _categorical = NumpyCategorical


class NumpyGumbelSoftmax(NumpyDistributionWrapper, families.GumbelSoftmax):
    pass


class NumpyDiagGaussian(NumpyDistributionWrapper, families.DiagGaussian):
    pass


class NumpySquashedGaussian(NumpyDistributionWrapper, families.SquashedGaussian):
    pass


class NumpyBeta(NumpyDistributionWrapper, families.Beta):
    pass


class NumpyDirichlet(NumpyDistributionWrapper, families.Dirichlet):
    pass


class NumpyBinaryAutoregressiveDistribution(NumpyDistributionWrapper, families.BinaryAutoregressiveDistribution):
    _categorical = NumpyCategorical


class NumpyDeterministic(NumpyDistributionWrapper, families.Deterministic):
    pass


class NumpyMultiActionDistribution(NumpyDistributionWrapper, families.MultiActionDistribution):
    pass
