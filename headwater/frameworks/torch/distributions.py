"""The distributions bound to torch; each is its family's mathematics over `TORCH_OPS`."""

from __future__ import annotations

from typing import Any

import torch

from headwater.frameworks.torch.ops import TORCH_OPS
from headwater.policy import distributions as families


class TorchDistributionWrapper(families.ActionDistribution):
    """Binds a family to torch: inputs and actions that are no tensors become ones, on the model's device.

    Example:
        >>> import numpy as np
        >>> dist = TorchCategorical(np.zeros((2, 4), np.float32))
        >>> dist.last_sample is None
        True
        >>> dist.sample().shape
        torch.Size([2])
        >>> [round(x, 4) for x in dist.sampled_action_logp().tolist()]
        [-1.3863, -1.3863]
    """

    ops = TORCH_OPS

    def __init__(self, inputs: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        if not isinstance(inputs, torch.Tensor):
            inputs = TORCH_OPS.asarray(inputs, like=_first_parameter(model))
        super().__init__(inputs, model, *args, **kwargs)


class TorchCategorical(TorchDistributionWrapper, families.Categorical):
    pass


class TorchMultiCategorical(TorchDistributionWrapper, families.MultiCategorical):
    _categorical = TorchCategorical


class TorchGumbelSoftmax(TorchDistributionWrapper, families.GumbelSoftmax):
    pass


class TorchDiagGaussian(TorchDistributionWrapper, families.DiagGaussian):
    pass


class TorchSquashedGaussian(TorchDistributionWrapper, families.SquashedGaussian):
    pass


class TorchBeta(TorchDistributionWrapper, families.Beta):
    pass


class TorchDirichlet(TorchDistributionWrapper, families.Dirichlet):
    pass


class TorchBinaryAutoregressiveDistribution(TorchDistributionWrapper, families.BinaryAutoregressiveDistribution):
    _categorical = TorchCategorical


class TorchDeterministic(TorchDistributionWrapper, families.Deterministic):
    pass


class TorchMultiActionDistribution(TorchDistributionWrapper, families.MultiActionDistribution):
    pass


def _first_parameter(model: Any) -> torch.Tensor | None:
    return next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
