"""torch: the only package of headwater that imports it."""

from headwater.frameworks.torch.distributions import (
    TorchCategorical,
    TorchDeterministic,
    TorchDiagGaussian,
    TorchDistributionWrapper,
    TorchGumbelSoftmax,
    TorchMultiActionDistribution,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)
from headwater.frameworks.torch.ops import TORCH_OPS, TorchGenerator, TorchOps

__all__ = [
    "TORCH_OPS",
    "TorchCategorical",
    "TorchDeterministic",
    "TorchDiagGaussian",
    "TorchDistributionWrapper",
    "TorchGenerator",
    "TorchGumbelSoftmax",
    "TorchMultiActionDistribution",
    "TorchMultiCategorical",
    "TorchOps",
    "TorchSquashedGaussian",
]
