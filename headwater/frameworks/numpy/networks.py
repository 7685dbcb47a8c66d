"""The networks of a `NetworkDescription` in NumPy: forward only, on weights that may be another framework's memory.

For small networks on CPU this is the fastest way to act: a framework's cost per call outweighs the arithmetic.
The weights layout is described in `headwater.policy.network_description`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headwater.policy.network_description import Dense, Layer, NetworkDescription

Array = NDArray[np.float32]

BLOCK_ROWS = 4096  # more rows are computed in blocks, so that scratch memory stays bounded
_KEPT_SIZES = 4  # batch sizes whose scratch memory is kept


class NumpyNetwork:
    """Policy and value network reading the given arrays, without copying them.

    Scratch memory is reused from call to call, so an instance must not be used by two threads at once.

    Args:
        description: What to compute.
        weights: The description's weights, contiguous float32. Later changes of their contents are seen.
    """

    def __init__(self, description: NetworkDescription, weights: Mapping[str, Array]):
        self.description = description
        self._shared = [_step(layer, weights) for layer in description.shared]
        self._policy = [_step(layer, weights) for layer in description.policy]
        self._value = [_step(layer, weights) for layer in description.value]
        self._log_std = weights["log_std"] if description.free_columns else None
        self._order = description.output_order
        self._is_image = len(description.observation_shape) > 1
        self._scale = np.float32(description.scale)

    def dist_inputs(self, obs: NDArray) -> Array:
        """[N, *observation shape] -> [N, K], a fresh array."""
        if len(obs) <= BLOCK_ROWS:
            return self._dist_inputs(self._features(obs))
        return np.concatenate([self._dist_inputs(self._features(rows)) for rows in _blocks(obs)])

    def values(self, obs: NDArray) -> Array:
        """[N, *observation shape] -> [N], a fresh array."""
        if len(obs) <= BLOCK_ROWS:
            return self._values(self._features(obs))
        return np.concatenate([self._values(self._features(rows)) for rows in _blocks(obs)])

    def forward(self, obs: NDArray) -> tuple[Array, Array]:
        """Both: ([N, K], [N]), with the shared layers computed once."""
        features = self._features(obs)
        return self._dist_inputs(features), self._values(features)

    def _features(self, obs: NDArray) -> Array:
        x = obs if obs.dtype == np.float32 else obs.astype(np.float32)
        if self._scale != 1:
            x = x * self._scale
        if self._is_image:
            x = x.reshape(*x.shape[:3], -1)
        for step in self._shared:
            x = step(x)
        return x

    def _dist_inputs(self, x: Array) -> Array:
        for step in self._policy:
            x = step(x)
        if self._log_std is None:
            return x.copy()
        columns = np.empty((len(x), self.description.num_outputs), np.float32)
        columns[:, : x.shape[1]] = x
        columns[:, x.shape[1] :] = self._log_std
        return columns if self._order is None else columns[:, self._order]

    def _values(self, x: Array) -> Array:
        for step in self._value:
            x = step(x)
        return x[:, 0].copy()


def _blocks(obs: NDArray) -> list[NDArray]:
    return [obs[start : start + BLOCK_ROWS] for start in range(0, len(obs), BLOCK_ROWS)]


def _step(layer: Layer, weights: Mapping[str, Array]) -> Callable[[Array], Array]:
    kernel, bias = weights[f"{layer.name}/kernel"], weights[f"{layer.name}/bias"]
    if isinstance(layer, Dense):
        return _dense(kernel, bias, _ACTIVATE[layer.activation])
    return _conv(kernel, bias, layer.stride, _ACTIVATE[layer.activation])


def _dense(kernel: Array, bias: Array, activate: Callable[[Array], object]) -> Callable[[Array], Array]:
    scratch: dict[int, Array] = {}

    def step(x: Array) -> Array:
        rows = len(x)
        out = scratch.get(rows)
        if out is None:
            if len(scratch) == _KEPT_SIZES:
                scratch.clear()
            out = scratch[rows] = np.empty((rows, len(bias)), np.float32)
        if x.ndim > 2:
            x = x.reshape(rows, -1)
        np.dot(x, kernel, out=out)
        np.add(out, bias, out=out)
        activate(out)
        return out

    return step


def _conv(
    kernel: Array, bias: Array, stride: tuple[int, int], activate: Callable[[Array], object]
) -> Callable[[Array], Array]:
    outputs, height, width, _ = kernel.shape

    def step(x: Array) -> Array:
        windows = sliding_window_view(x, (height, width), axis=(1, 2))[:, :: stride[0], :: stride[1]]
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], -1)
        out = patches @ kernel.reshape(outputs, -1).T
        out += bias
        activate(out)
        return out

    return step


def _relu(x: Array) -> None:
    np.maximum(x, 0.0, out=x)


def _elu(x: Array) -> None:
    np.copyto(x, np.expm1(np.minimum(x, 0.0)), where=x < 0)


def _silu(x: Array) -> None:
    x *= 0.5 * (1.0 + np.tanh(0.5 * x))  # the logistic function, without overflow


_ACTIVATE: dict[str, Callable[[Array], object]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": _relu,
    "elu": _elu,
    "silu": _silu,
    "linear": lambda x: None,
}
