"""How a minibatch becomes a loss and a gradient. Each way gives the same numbers but for rounding.

| way | for | us per update, 64x64 | 256x256 |
|---|---|---|---|
| `ByTape` | dense networks on CPU: network by hand (`mlp.py`), loss on NumPy's tape (`taped_ops.py`) | 733 | 3,190 |
| `by_hand` | the same where the loss is torch's own: autograd through the loss only | 934 | 3,370 |
| `by_autograd` | convolutions, models of the user's own, GPUs | 1,103 | 4,350 |
| `compiled` | by setting; the first call takes a minute | 868 | |

(Updates of 256 rows on one busy core: 4 observations, two separate tanh networks, Discrete(2), the loss and statistics
of PPO, gathering, clipping and Adam; 16 of them, an SGD phase over 1,024 rows, take 11.7, 15.0, 17.7 and 13.9 ms.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headwater.frameworks.numpy.tape import gradients, value_of, watch
from headwater.frameworks.torch.columns import Tensors
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.mlp import DenseLayers
from headwater.frameworks.torch.networks import ModuleNetwork, TorchNetwork

Batch = Mapping[str, Any]
Coefficients = Mapping[str, float]

# A minibatch and coefficients -> loss and statistics (scalars); the gradient is left in the flat vector.
Differentiate = Callable[[Batch, Coefficients], tuple[Any, Mapping[str, Any]]]


class LossOfOutputs(Protocol):
    """A policy's loss, given the network's outputs for a minibatch."""

    def __call__(
        self, dist_inputs: Any, values: Any, batch: Batch, coeffs: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        """Outputs [B, K] and [B] -> scalar, {name: scalar}."""


class ByTape:
    """The network by hand, the loss over NumPy arrays; `fallback` for losses that do not bear it.

    A loss over `ops` gives the same in NumPy as in torch. Whether this one does (rather than calling torch, say) is
    found out at the first finite minibatch, which both ways differentiate.

    Args:
        layers: The network.
        loss_of: The loss over `TAPED_OPS`.
        parameters: Whose gradient is computed.
        fallback: `by_hand` with the same network and parameters.
    """

    def __init__(
        self, layers: DenseLayers, loss_of: LossOfOutputs, parameters: FlatParameters, fallback: Differentiate
    ) -> None:
        self._layers = layers
        self._loss_of = loss_of
        self._parameters = parameters
        self._fallback = fallback
        self.trusted: bool | None = None

    def __call__(self, batch: Batch, coeffs: Coefficients) -> tuple[Any, Mapping[str, Any]]:
        if self.trusted is None:
            self._compare(batch, coeffs)
        if self.trusted:
            try:
                return self._taped(batch, coeffs)
            except Exception:  # if it is the loss's own fault, the fallback raises it too, in the words of torch
                self.trusted = False
        return self._fallback(batch, coeffs)

    def _taped(self, batch: Batch, coeffs: Coefficients) -> tuple[Any, Mapping[str, Any]]:
        outputs = self._layers.forward(torch.from_numpy(batch["obs"]))
        watched = watch(outputs[0].numpy(), outputs[1].numpy())
        loss, stats = self._loss_of(watched[0], watched[1], batch, coeffs)
        by_inputs, by_values = (
            None if g is None else torch.from_numpy(np.array(g, np.float32)) for g in gradients(loss, watched)
        )
        self._layers.backward(by_inputs, by_values)
        return value_of(loss), {name: value_of(value) for name, value in stats.items()}

    def _compare(self, batch: Batch, coeffs: Coefficients) -> None:
        loss, stats = self._fallback(batch, coeffs)
        expected = self._parameters.gradient.clone()
        if not (torch.isfinite(loss) and torch.isfinite(expected).all()):
            return  # not to be told from this one
        try:
            taped_loss, taped_stats = self._taped(batch, coeffs)
        except Exception:
            self.trusted = False
            return
        tolerance = 1e-4 * float(expected.abs().max()) + 1e-8
        difference = float((self._parameters.gradient - expected).abs().max())
        close = abs(float(taped_loss) - loss.item()) <= 1e-4 * abs(loss.item()) + 1e-6
        self.trusted = close and difference <= tolerance and list(taped_stats) == list(stats)


def by_hand(layers: DenseLayers, loss_of: LossOfOutputs) -> Differentiate:
    """Autograd from the loss to the network's outputs, `DenseLayers.backward` from there."""

    def differentiate(batch: Batch, coeffs: Coefficients) -> tuple[Tensor, Mapping[str, Any]]:
        tensors = Tensors(batch)
        # Leaves of their own: what the loss keeps may outlive the outputs' memory.
        dist_inputs, values = (output.clone().requires_grad_() for output in layers.forward(tensors["obs"]))
        loss, stats = loss_of(dist_inputs, values, tensors, coeffs)
        layers.backward(*torch.autograd.grad(loss, (dist_inputs, values), allow_unused=True))
        return loss.detach(), stats

    return differentiate


def by_autograd(
    network: TorchNetwork | ModuleNetwork, parameters: FlatParameters, loss_of: LossOfOutputs
) -> Differentiate:
    """Autograd all the way to the leaves."""

    def differentiate(batch: Batch, coeffs: Coefficients) -> tuple[Tensor, Mapping[str, Any]]:
        tensors = Tensors(batch)
        parameters.gradient.zero_()
        loss, stats = loss_of(*network.forward(tensors["obs"]), tensors, coeffs)
        loss.backward()
        return loss.detach(), stats

    return differentiate


def compiled(
    network: TorchNetwork | ModuleNetwork, parameters: FlatParameters, loss_of: LossOfOutputs
) -> Differentiate:
    """As `by_autograd`, with network and loss compiled by torch.compile at the first call.

    The number of rows is symbolic and coefficients that are not 0 are tensors, so that neither a batch that is a row
    shorter nor an adapted coefficient compiles again.
    """

    def loss_and_stats(columns: dict[str, Tensor], coeffs: dict[str, Any]) -> tuple[Tensor, Mapping[str, Any]]:
        return loss_of(*network.forward(columns["obs"]), columns, coeffs)

    run = torch.compile(loss_and_stats, dynamic=False)
    read: set[str] = set()

    def differentiate(batch: Batch, coeffs: Coefficients) -> tuple[Tensor, Mapping[str, Any]]:
        tensors = Tensors(batch)
        if not read:  # tracing wants a plain dict, of the columns that are read: one eager pass finds which
            with torch.no_grad():
                loss_of(*network.forward(tensors["obs"]), tensors, coeffs)
            read.update(tensors)
        columns = {name: tensors[name] for name in read}
        for column in columns.values():
            torch._dynamo.maybe_mark_dynamic(column, 0)
        device = parameters.vector.device
        scalars = {name: torch.tensor(value, device=device) if value else 0.0 for name, value in coeffs.items()}
        parameters.gradient.zero_()
        loss, stats = run(columns, scalars)
        loss.backward()
        return loss.detach(), stats

    return differentiate
