"""DenseLayers: forward and hand-written backward of dense networks on CPU, for the gradient steps of small policies.

torch's autograd costs as much as the arithmetic of such networks, and its tanh seven times NumPy's (42 us against 6 us
for 256x64). Here the forward pass runs without autograd, and the loss is differentiated down to the network's outputs
only; from there `backward` writes each weight's gradient straight into its place in the flat gradient vector.
Figures are in `gradients.py`; wrapped in a `torch.autograd.Function`, the same passes would cost 60 us more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headwater.frameworks.torch.ops import TORCH_OPS
from headwater.policy.distributions.categorical import MASKED_LOGIT
from headwater.policy.network import masked_logits
from headwater.policy.network_description import Dense, NetworkDescription

_KEPT_SIZES = 4


class DenseLayers:
    """A described network of dense layers, with its gradient.

    The float operations are those of `TorchNetwork`, and so are the gradients but for rounding.

    Args:
        description: A network for which `supports` holds.
        weights: The description's weights, on CPU, without gradients of their own.
        gradients: Name -> where `backward` writes the weight's gradient.
    """

    def __init__(
        self, description: NetworkDescription, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> None:
        self._description = description
        self._num_features, self._mask = description.num_features, description.mask
        self._parts = [
            [_DenseLayer(layer, weights, gradients) for layer in part if isinstance(layer, Dense)]
            for part in (description.shared, description.policy, description.value)
        ]
        self._num_outputs = description.num_outputs
        self._free = list(description.free_columns)
        self._net = [column for column in range(self._num_outputs) if column not in set(self._free)]
        self._in_order = description.output_order is None
        self._log_std = weights.get("log_std")
        self._log_std_gradient = gradients.get("log_std")
        self._forbidden: Tensor | None = None

    @staticmethod
    def supports(description: NetworkDescription) -> bool:
        """Whether the network is dense and its activations' derivatives follow from their outputs."""
        dense = all(isinstance(layer, Dense) and layer.activation in _BACKWARD for layer in description.layers())
        return dense and description.scale == 1.0

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, D] -> ([B, K], [B]), leaves for a loss to be differentiated by."""
        if obs.dtype != torch.float32:
            obs = obs.to(torch.float32)
        shared, policy, value = self._parts
        with torch.no_grad():
            features = _run(shared, obs if self._num_features is None else obs[:, : self._num_features])
            outputs = _run(policy, features)
            values = _run(value, features).view(-1)
            if self._log_std is not None:
                outputs = self._with_log_std(outputs, self._log_std)
            if self._mask is not None:
                outputs = masked_logits(TORCH_OPS, self._mask, self._description.num_outputs, obs, outputs)
                self._forbidden = outputs == MASKED_LOGIT
        # Leaves of their own: the loss's graph may outlive the memory's next use.
        return outputs.clone().requires_grad_(), values.clone().requires_grad_()

    def backward(self, dist_inputs_gradient: Tensor | None, values_gradient: Tensor | None) -> None:
        """Write the gradient of every weight, given the loss's by the two outputs of the last `forward`."""
        shared, policy, value = self._parts
        with torch.no_grad():
            if dist_inputs_gradient is None:
                dist_inputs_gradient = self._parts[1][-1].output.new_zeros(len(policy[-1].output), self._num_outputs)
            if self._forbidden is not None:
                dist_inputs_gradient = dist_inputs_gradient.masked_fill(self._forbidden, 0.0)
            outputs_gradient = dist_inputs_gradient
            if self._log_std_gradient is not None:
                outputs_gradient, free = self._split(dist_inputs_gradient)
                torch.sum(free, 0, out=self._log_std_gradient)
            if values_gradient is None:
                values_gradient = value[-1].output.new_zeros(len(value[-1].output))
            by_policy = _back(policy, outputs_gradient, wanted=bool(shared))
            by_value = _back(value, values_gradient.view(-1, 1), wanted=bool(shared))
            if by_policy is not None and by_value is not None:
                _back(shared, by_policy.add_(by_value), wanted=False)

    def _with_log_std(self, outputs: Tensor, log_std: Tensor) -> Tensor:
        columns = outputs.new_empty(len(outputs), self._num_outputs)
        if self._in_order:
            columns[:, : len(self._net)] = outputs
            columns[:, len(self._net) :] = log_std
        else:
            columns[:, self._net] = outputs
            columns[:, self._free] = log_std.expand(len(outputs), -1)
        return columns

    def _split(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        if self._in_order:
            return gradient[:, : len(self._net)], gradient[:, len(self._net) :]
        return gradient[:, self._net], gradient[:, self._free]


class _DenseLayer:
    """One layer; it remembers its input and output for the backward pass.

    Its large results are written into memory that is kept for the last few numbers of rows: fresh memory of this size
    goes back to the system after each update, and getting it again costs a tenth of the update.
    """

    input: Tensor
    output: Tensor

    def __init__(self, layer: Dense, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        self.kernel, self.bias = weights[f"{layer.name}/kernel"], weights[f"{layer.name}/bias"]
        self.kernel_gradient = gradients[f"{layer.name}/kernel"]
        self.bias_gradient = gradients[f"{layer.name}/bias"]
        self.activate = _FORWARD[layer.activation]
        self.derive = _BACKWARD[layer.activation]
        self.kernel_transposed = self.kernel.t()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] -> [B, out], overwritten by the next call of as many rows."""
        self.input = x
        self.output = y = torch.addmm(self.bias, x, self.kernel, out=self._memory(len(x))[0])
        if self.activate is not None:
            self.activate(y)
        return y

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Gradient by the output (overwritten) -> by the input if `wanted`; writes those by the weights."""
        if self.derive is not None:
            self.derive(gradient, self.output)
        torch.mm(self.input.t(), gradient, out=self.kernel_gradient)
        torch.sum(gradient, 0, out=self.bias_gradient)
        return torch.mm(gradient, self.kernel_transposed, out=self._memory(len(gradient))[1]) if wanted else None

    def _memory(self, rows: int) -> tuple[Tensor, Tensor]:
        kept = self._kept.get(rows)
        if kept is None:
            if len(self._kept) == _KEPT_SIZES:
                self._kept.clear()
            inputs, outputs = self.kernel.shape
            kept = self._kept[rows] = (self.kernel.new_empty(rows, outputs), self.kernel.new_empty(rows, inputs))
        return kept


def _run(layers: Sequence[_DenseLayer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(x)
    return x


def _back(layers: Sequence[_DenseLayer], gradient: Tensor, wanted: bool) -> Tensor | None:
    first, *others = layers
    for layer in reversed(others):
        below = layer.backward(gradient, wanted=True)
        assert below is not None
        gradient = below
    return first.backward(gradient, wanted)


def _tanh_(x: Tensor) -> None:
    array = x.numpy()
    np.tanh(array, out=array)


def _tanh_back(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)


def _relu_back(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _elu_back(gradient: Tensor, output: Tensor) -> None:
    gradient.mul_(output.clamp_max(0.0).add_(1.0))


# In place: the activation, and gradient by the activation's output -> by its input.
_FORWARD: dict[str, Callable[[Tensor], object] | None] = {
    "tanh": _tanh_,
    "relu": torch.relu_,
    "elu": torch.nn.functional.elu_,
    "linear": None,
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor], None] | None] = {
    "tanh": _tanh_back,
    "relu": _relu_back,
    "elu": _elu_back,
    "linear": None,
}
