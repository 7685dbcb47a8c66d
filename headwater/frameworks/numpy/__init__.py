"""NumPy as a framework: acting on the CPU without any other, and the reference of the others."""

from headwater.frameworks.numpy.distributions import (
    NumpyBeta,
    NumpyBinaryAutoregressiveDistribution,
    NumpyCategorical,
    NumpyDeterministic,
    NumpyDiagGaussian,
    NumpyDirichlet,
    NumpyDistributionWrapper,
    NumpyGumbelSoftmax,
    NumpyMultiActionDistribution,
    NumpyMultiCategorical,
    NumpySquashedGaussian,
)
from headwater.frameworks.numpy.ops import NUMPY_OPS, NumpyGenerator, NumpyOps

__all__ = [
    "NUMPY_OPS",
    "NumpyBeta",
    "NumpyBinaryAutoregressiveDistribution",
    "NumpyCategorical",
    "NumpyDeterministic",
    "NumpyDiagGaussian",
    "NumpyDirichlet",
    "NumpyDistributionWrapper",
    "NumpyGenerator",
    "NumpyGumbelSoftmax",
    "NumpyMultiActionDistribution",
    "NumpyMultiCategorical",
    "NumpyOps",
    "NumpySquashedGaussian",
]
