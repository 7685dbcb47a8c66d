"""The networks of a `NetworkDescription` acting in NumPy, on weights that may be another framework's memory.

For small networks on CPU this is the fastest way to act: a framework's cost per call outweighs the arithmetic. Dense
networks, the commonest by far, have a tuned form of their own; all others are `headwater.policy.network.Network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy.network import Network, masked_logits
from headwater.policy.network_description import Dense, Layer, NetworkDescription

Array = NDArray[np.float32]

BLOCK_ROWS = 4096  # more rows are computed in blocks, so that scratch memory stays bounded
_KEPT_SIZES = 4  # batch sizes whose scratch memory is kept


def make_network(description: NetworkDescription, weights: Mapping[str, Array]) -> NumpyNetwork | NetworkInNumpy:
    """What acts fastest; it reads the given arrays without copying them, so that later changes are seen."""
    return (NumpyNetwork if description.is_mlp else NetworkInNumpy)(description, weights)


class NetworkInNumpy:
    """Any described network.

    Args:
        description: What to compute.
        weights: The description's weights.
    """

    def __init__(self, description: NetworkDescription, weights: Mapping[str, Array]) -> None:
        self.description = description
        self._network = Network(description, NUMPY_OPS)
        self._weights = weights

    def dist_inputs(self, obs: NDArray) -> Array:
        """[N, *observation shape] -> [N, K]; without memory."""
        return self._network.dist_inputs(self._weights, obs)

    def values(self, obs: NDArray, state: Array | None = None) -> Array:
        """[N, *observation shape], with memory the state before them [N, S] -> [N]."""
        if state is not None:
            return self.forward(obs, state)[1]
        return np.concatenate([self._network.values(self._weights, rows) for rows in _blocks(obs)])

    def forward(self, obs: NDArray, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        """Both, and with memory the state after them [N, S]."""
        return self._network.forward(self._weights, obs if state is None else obs[:, None], state)


class NumpyNetwork:
    """Policy and value network of dense layers.

    Scratch memory is reused from call to call, so an instance must not be used by two threads at once.

    Args:
        description: What to compute.
        weights: The description's weights, contiguous float32.
    """

    def __init__(self, description: NetworkDescription, weights: Mapping[str, Array]):
        self.description = description
        self._shared = [_step(layer, weights) for layer in description.shared]
        self._policy = [_step(layer, weights) for layer in description.policy]
        self._value = [_step(layer, weights) for layer in description.value]
        self._log_std = weights["log_std"] if description.free_columns else None
        self._order = description.output_order
        self._num_features = description.num_features
        self._scale = np.float32(description.scale)

    def dist_inputs(self, obs: NDArray) -> Array:
        """[N, *observation shape] -> [N, K], a fresh array."""
        if len(obs) <= BLOCK_ROWS:
            return self._dist_inputs(obs, self._features(obs))
        return np.concatenate([self._dist_inputs(rows, self._features(rows)) for rows in _blocks(obs)])

    def values(self, obs: NDArray, state: NDArray | None = None) -> Array:
        """[N, *observation shape] -> [N], a fresh array."""
        if len(obs) <= BLOCK_ROWS:
            return self._values(self._features(obs))
        return np.concatenate([self._values(self._features(rows)) for rows in _blocks(obs)])

    def forward(self, obs: NDArray, state: NDArray | None = None) -> tuple[Array, Array, None]:
        """Both: ([N, K], [N], None), with the shared layers computed once."""
        features = self._features(obs)
        return self._dist_inputs(obs, features), self._values(features), None

    def _features(self, obs: NDArray) -> Array:
        x = obs if obs.dtype == np.float32 else obs.astype(np.float32)
        if self._scale != 1:
            x = x * self._scale
        if self._num_features is not None:
            x = x[:, : self._num_features]
        for step in self._shared:
            x = step(x)
        return x

    def _dist_inputs(self, obs: NDArray, x: Array) -> Array:
        for step in self._policy:
            x = step(x)
        if self._log_std is None:
            outputs = x.copy()
        else:
            outputs = np.empty((len(x), self.description.num_outputs), np.float32)
            outputs[:, : x.shape[1]] = x
            outputs[:, x.shape[1] :] = self._log_std
            outputs = outputs if self._order is None else outputs[:, self._order]
        mask = self.description.mask
        if mask is not None:
            outputs = masked_logits(NUMPY_OPS, mask, self.description.num_outputs, obs, outputs)
        return outputs

    def _values(self, x: Array) -> Array:
        for step in self._value:
            x = step(x)
        return x[:, 0].copy()


def _blocks(obs: NDArray) -> list[NDArray]:
    return [obs[start : start + BLOCK_ROWS] for start in range(0, len(obs), BLOCK_ROWS)]


def _step(layer: Layer, weights: Mapping[str, Array]) -> Callable[[Array], Array]:
    assert isinstance(layer, Dense)
    return _dense(weights[f"{layer.name}/kernel"], weights[f"{layer.name}/bias"], _ACTIVATE[layer.activation])


def _dense(kernel: Array, bias: Array, activate: Callable[[Array], object]) -> Callable[[Array], Array]:
    scratch: dict[int, Array] = {}

    def step(x: Array) -> Array:
        rows = len(x)
        out = scratch.get(rows)
        if out is None:
            if len(scratch) == _KEPT_SIZES:
                scratch.clear()
            out = scratch[rows] = np.empty((rows, len(bias)), np.float32)
        np.dot(x, kernel, out=out)
        np.add(out, bias, out=out)
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
