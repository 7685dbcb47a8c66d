"""torch: the only package of headwater that imports it."""

from headwater.frameworks.torch.distributions import (
    TorchBeta,
    TorchBinaryAutoregressiveDistribution,
    TorchCategorical,
    TorchDeterministic,
    TorchDiagGaussian,
    TorchDirichlet,
    TorchDistributionWrapper,
    TorchGumbelSoftmax,
    TorchMultiActionDistribution,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)
from headwater.frameworks.torch.ops import TORCH_OPS, TorchGenerator, TorchOps

__all__ = [
    "TORCH_OPS",
    "TorchBeta",
    "TorchBinaryAutoregressiveDistribution",
    "TorchCategorical",
    "TorchDeterministic",
    "TorchDiagGaussian",
    "TorchDirichlet",
    "TorchDistributionWrapper",
    "TorchGenerator",
    "TorchGumbelSoftmax",
    "TorchMultiActionDistribution",
    "TorchMultiCategorical",
    "TorchOps",
    "TorchSquashedGaussian",
]
