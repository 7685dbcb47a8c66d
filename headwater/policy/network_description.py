"""NetworkDescription: a policy's network as plain data, from which every framework builds the same one.

**The weights layout.** Weights are float32 arrays under framework-independent names, in this order:

| name | shape | |
|---|---|---|
| `PART/conv_0/kernel`, ... | `[out, height, width, in]` | convolutions; PART is `shared`, `policy` or `value` |
| `PART/dense_0/kernel`, ... | `[in, out]` | hidden layers |
| `policy/out/kernel` | `[in, K - F]` | the distribution's inputs |
| `value/out/kernel` | `[in, 1]` | the state value |
| `.../bias` after each kernel | `[out]` | |
| `log_std` | `[F]` | only with a free log standard deviation |

`shared` are the layers that policy and value function have in common; without any, each has its own. A layer computes
`activation(x @ kernel + bias)`. Convolutions do not pad; they read images as `[B, height, width, channels]`, and their
features are flattened in that order. Observations of dtype uint8 are multiplied by 1/255 first. Of the K inputs of the
action distribution, the F columns named by `free_columns` are `log_std`, the others come out of `policy/out`, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "linear")


@dataclass(frozen=True)
class Dense:
    """`activation(x @ kernel + bias)` of `[B, inputs]`, giving `[B, outputs]`."""

    name: str
    inputs: int
    outputs: int
    activation: str = "linear"
    gain: float = math.sqrt(2.0)

    def kernel_shape(self) -> tuple[int, ...]:
        """`[in, out]`."""
        return (self.inputs, self.outputs)


@dataclass(frozen=True)
class Conv:
    """A convolution without padding of `[B, height, width, inputs]` images."""

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    activation: str = "relu"
    gain: float = math.sqrt(2.0)

    def kernel_shape(self) -> tuple[int, ...]:
        """`[out, height, width, in]`: channels last, as the images are."""
        return (self.outputs, *self.kernel, self.inputs)


Layer = Dense | Conv


@dataclass(frozen=True)
class NetworkDescription:
    """A policy network and its value network.

    Attributes:
        observation_shape: Of one encoded observation; rank 1, or an image `(height, width[, channels])`.
        scale: What observations are multiplied by: 1/255 for uint8.
        num_outputs: K, the inputs of the action distribution.
        shared: Layers before the two parts.
        policy: Layers of the policy, the last of which is `policy/out`.
        value: Layers of the value function, the last of which is `value/out`.
        free_columns: The columns of the K that are `log_std`.
        orthogonal: Kernels start orthogonal (Saxe et al. 2014), else Glorot uniform; either times the layer's gain.
    """

    observation_shape: tuple[int, ...]
    scale: float
    num_outputs: int
    shared: tuple[Layer, ...]
    policy: tuple[Layer, ...]
    value: tuple[Layer, ...]
    free_columns: tuple[int, ...] = ()
    orthogonal: bool = True

    @property
    def is_mlp(self) -> bool:
        """Only dense layers."""
        return all(isinstance(layer, Dense) for layer in self.layers())

    @property
    def output_order(self) -> list[int] | None:
        """Where in `[policy/out, log_std]` each of the K columns stands; None: just in that order."""
        free = set(self.free_columns)
        net_columns = [column for column in range(self.num_outputs) if column not in free]
        order = [*net_columns, *self.free_columns]
        if order == list(range(self.num_outputs)):
            return None
        return [order.index(column) for column in range(self.num_outputs)]

    def layers(self) -> Iterator[Layer]:
        """All layers, in the weights' order."""
        yield from self.shared
        yield from self.policy
        yield from self.value

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight, in the order of the flat vector."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self.layers():
            shapes[f"{layer.name}/kernel"] = layer.kernel_shape()
            shapes[f"{layer.name}/bias"] = (layer.outputs,)
        if self.free_columns:
            shapes["log_std"] = (len(self.free_columns),)
        return shapes

    def initial_weights(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Fresh weights, the same for every framework: kernels drawn, biases and `log_std` 0."""
        weights = {name: np.zeros(shape, np.float32) for name, shape in self.weight_shapes().items()}
        draw = _orthogonal if self.orthogonal else _glorot
        for layer in self.layers():
            shape = layer.kernel_shape()
            if isinstance(layer, Dense):
                kernel = draw(rng, *shape)
            else:
                kernel = draw(rng, shape[0], math.prod(shape[1:])).reshape(shape)
            weights[f"{layer.name}/kernel"][...] = layer.gain * kernel
        return weights

    def to_json(self) -> dict[str, Any]:
        """As JSON values, read back by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkDescription:
        """The inverse of `to_json`; values of a wrong kind raise TypeError, ValueError or KeyError."""
        parts = {part: tuple(_layer_from_json(layer) for layer in data[part]) for part in ("shared", "policy", "value")}
        return cls(
            observation_shape=tuple(int(n) for n in data["observation_shape"]),
            scale=float(data["scale"]),
            num_outputs=int(data["num_outputs"]),
            free_columns=tuple(int(n) for n in data["free_columns"]),
            orthogonal=bool(data["orthogonal"]),
            **parts,
        )


def _layer_from_json(data: Mapping[str, Any]) -> Layer:
    activation = data["activation"]
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}")
    common = (str(data["name"]), int(data["inputs"]), int(data["outputs"]))
    if "kernel" not in data:
        return Dense(*common, activation, float(data["gain"]))
    height, width = data["kernel"]
    down, right = data["stride"]
    return Conv(*common, (int(height), int(width)), (int(down), int(right)), activation, float(data["gain"]))


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A `[rows, columns]` matrix, uniform among those with orthonormal rows or columns, whichever are fewer."""
    matrix = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(matrix)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)  # else the distribution is not uniform
    return q if rows >= columns else q.T


def _glorot(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    limit = math.sqrt(6.0 / (rows + columns))
    return rng.uniform(-limit, limit, (rows, columns))
