"""How a minibatch becomes a loss and a gradient. Each way gives the same numbers but for rounding.

| way | for | us per update, 64x64 | 256x256 |
|---|---|---|---|
| `by_hand` | dense networks on CPU: autograd through the loss only, the network by hand (`mlp.py`) | 934 | 3,370 |
| `by_autograd` | convolutions, models of the user's own, GPUs | 1,103 | 4,350 |
| `compiled` | by setting; the first call takes a minute | 868 | |

(Updates of 256 rows on one busy core: 4 observations, two separate tanh networks, Discrete(2), the loss and statistics
of PPO, gathering, clipping and Adam.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.mlp import DenseLayers
from headwater.frameworks.torch.networks import ModuleNetwork, TorchNetwork
from headwater.frameworks.torch.ops import TORCH_OPS
from headwater.policy.sgd import outputs_and_rows

Batch = Mapping[str, Tensor]
Stats = Mapping[str, Tensor]


class LossOfOutputs(Protocol):
    """A policy's loss, given the network's outputs for a minibatch."""

    def __call__(
        self, dist_inputs: Tensor, values: Tensor, batch: Batch, coeffs: Mapping[str, Any], report: bool
    ) -> tuple[Tensor, Stats]:
        """Outputs [B, K] and [B] -> scalar, {name: scalar} (which may be empty without `report`)."""


# (minibatch, coefficients, report) -> loss and statistics; the gradient is left in the flat vector.
Differentiate = Callable[[Batch, Mapping[str, float], bool], tuple[Tensor, Stats]]


def by_hand(layers: DenseLayers, loss_of: LossOfOutputs) -> Differentiate:
    """Autograd from the loss to the network's outputs, `DenseLayers.backward` from there."""

    def differentiate(batch: Batch, coeffs: Mapping[str, float], report: bool) -> tuple[Tensor, Stats]:
        dist_inputs, values = layers.forward(batch["obs"])
        loss, stats = loss_of(dist_inputs, values, batch, coeffs, report)
        layers.backward(*torch.autograd.grad(loss, (dist_inputs, values), allow_unused=True))
        return loss.detach(), stats

    return differentiate


def by_autograd(
    network: TorchNetwork | ModuleNetwork, parameters: FlatParameters, loss_of: LossOfOutputs
) -> Differentiate:
    """Autograd all the way to the leaves."""

    def differentiate(batch: Batch, coeffs: Mapping[str, float], report: bool) -> tuple[Tensor, Stats]:
        parameters.gradient.zero_()
        loss, stats = loss_of(*outputs_and_rows(TORCH_OPS, network.forward, batch), coeffs, report)
        loss.backward()
        return loss.detach(), stats

    return differentiate


def compiled(
    network: TorchNetwork | ModuleNetwork, parameters: FlatParameters, loss_of: LossOfOutputs
) -> Differentiate:
    """As `by_autograd`, with network and loss compiled by torch.compile at the first call.

    The number of rows is symbolic and coefficients that are not 0 are tensors, so that neither a batch that is a row
    shorter nor an adapted coefficient compiles again. It always reports, for the same reason.
    """

    def loss_and_stats(columns: dict[str, Tensor], coeffs: dict[str, Any]) -> tuple[Tensor, Stats]:
        return loss_of(*outputs_and_rows(TORCH_OPS, network.forward, columns), coeffs, True)

    run = torch.compile(loss_and_stats, dynamic=False)
    read: set[str] = set()

    def differentiate(batch: Batch, coeffs: Mapping[str, float], report: bool) -> tuple[Tensor, Stats]:
        if not read:  # tracing wants a plain dict, of the columns that are read: one eager pass finds which
            with torch.no_grad():
                loss_of(*outputs_and_rows(TORCH_OPS, network.forward, batch), coeffs, True)
            read.update(batch)
        columns = {name: batch[name] for name in read}
        for column in columns.values():
            torch._dynamo.maybe_mark_dynamic(column, 0)
        device = parameters.vector.device
        tensors = {name: torch.tensor(value, device=device) if value else 0.0 for name, value in coeffs.items()}
        parameters.gradient.zero_()
        loss, stats = run(columns, tensors)
        loss.backward()
        return loss.detach(), stats

    return differentiate
