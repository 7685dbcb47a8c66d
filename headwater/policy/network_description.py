"""NetworkDescription: a policy's network as plain data, which `headwater.policy.network` computes in every framework.

**The weights layout.** Weights are float32 arrays under framework-independent names, in this order; PART is `shared`,
`policy` or `value`, and layers of one kind are numbered:

| name | shape | |
|---|---|---|
| `PART/conv_0/kernel` | `[out, height, width, in]` | convolutions |
| `PART/dense_0/kernel` | `[in, out]` | hidden layers; behind convolutions `post_0`, before attention `embed` |
| `policy/out/kernel` | `[in, K - F]` | the distribution's inputs |
| `value/out/kernel` | `[in, 1]` | the state value |
| `.../bias` after each kernel | `[out]` | |
| `PART/lstm/kernel`, `recurrent`, `bias` | `[in, 4 H]`, `[H, 4 H]`, `[4 H]` | gates i, f, g, o |
| `PART/gru/kernel`, `recurrent`, `bias`, `recurrent_bias` | `[in, 3 H]`, `[H, 3 H]`, `[3 H]`, `[H]` | gates r, z, n |
| `PART/attention_0/...` | see `Attention` | |
| `log_std` | `[F]` | only with a free log standard deviation |

`shared` are the layers that policy and value function have in common; without any, each has its own. A dense layer
computes `activation(x @ kernel + bias)`. Convolutions do not pad; they read images as `[B, height, width, channels]`,
and their features are flattened in that order. Observations of dtype uint8 are multiplied by 1/255 first. Of the K
inputs of the action distribution, the F columns named by `free_columns` are `log_std`, the others come out of
`policy/out`, in order.

**The state** of layers that remember is one float32 row `[S]` for each env: the parts of `state_shapes()` side by side.
Zeros are the state before an episode's first step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "linear")

Shape = tuple[int, ...]
Weights = dict[str, NDArray[np.float32]]
Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]  # a [rows, columns] matrix


@dataclass(frozen=True)
class Layer(ABC):
    """A step of a network. Weights and state parts bear its name, a slash and their own.

    Attributes:
        name: Within the whole network.
        inputs: Width (of images: channels) of what comes in.
        outputs: Of what goes out.
    """

    kind: ClassVar[str]

    name: str
    inputs: int
    outputs: int

    def weight_shapes(self) -> dict[str, Shape]:
        """Its weights, by their own names."""
        return {"kernel": self.kernel_shape(), "bias": (self.outputs,)}

    def kernel_shape(self) -> Shape:
        """Of the kernel, for layers that have one."""
        return (self.inputs, self.outputs)

    def state_shapes(self) -> dict[str, Shape]:
        """What it remembers for each env, by name."""
        return {}

    @abstractmethod
    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        """Fresh weights, by their own names; those that are left out start at 0."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values, read back by `layer_from_json`."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Dense(Layer):
    """`activation(x @ kernel + bias)` of `[B, inputs]`, giving `[B, outputs]`."""

    kind = "dense"

    activation: str = "linear"
    gain: float = math.sqrt(2.0)

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        return {"kernel": (self.gain * draw(rng, *self.kernel_shape())).astype(np.float32)}


@dataclass(frozen=True)
class Conv(Layer):
    """A convolution without padding of `[B, height, width, inputs]` images."""

    kind = "conv"

    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    activation: str = "relu"
    gain: float = math.sqrt(2.0)

    def kernel_shape(self) -> Shape:
        """`[out, height, width, in]`: channels last, as the images are."""
        return (self.outputs, *self.kernel, self.inputs)

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        shape = self.kernel_shape()
        matrix = draw(rng, shape[0], math.prod(shape[1:]))
        return {"kernel": (self.gain * matrix).astype(np.float32).reshape(shape)}


@dataclass(frozen=True)
class Lstm(Layer):
    """A long short-term memory of H = `outputs` units; the forget gate starts open, with a bias of 1."""

    kind = "lstm"

    def weight_shapes(self) -> dict[str, Shape]:
        width = self.outputs
        return {"kernel": (self.inputs, 4 * width), "recurrent": (width, 4 * width), "bias": (4 * width,)}

    def state_shapes(self) -> dict[str, Shape]:
        return {"h": (self.outputs,), "c": (self.outputs,)}

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        bias = np.zeros(4 * self.outputs, np.float32)
        bias[self.outputs : 2 * self.outputs] = 1.0
        return {**_recurrent_kernels(rng, draw, self, 4), "bias": bias}


@dataclass(frozen=True)
class Gru(Layer):
    """A gated recurrent unit of H = `outputs` units."""

    kind = "gru"

    def weight_shapes(self) -> dict[str, Shape]:
        width = self.outputs
        shapes = {"kernel": (self.inputs, 3 * width), "recurrent": (width, 3 * width)}
        return {**shapes, "bias": (3 * width,), "recurrent_bias": (width,)}

    def state_shapes(self) -> dict[str, Shape]:
        return {"h": (self.outputs,)}

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        return _recurrent_kernels(rng, draw, self, 3)


@dataclass(frozen=True)
class Attention(Layer):
    """A block of causal attention over the last `window` inputs and the present one, gated as in GTrXL.

    Parisotto et al. 2019 (arXiv:1910.06764): layer norm, multi-head attention, gate, layer norm, a layer of twice the
    width, gate. Positions enter as a learned bias for each head and distance, in place of sinusoids. With D = `outputs`
    the weights are `norm/scale`, `norm/bias` [D], `query/kernel` [D, D], `key_value/kernel` [D, 2 D],
    `distance` [window + 1, heads], `out/kernel` [D, D], `out/bias` [D], `wide_norm/...`, `wide/kernel` [D, 2 D],
    `wide/bias`, `narrow/kernel` [2 D, D], `narrow/bias`, and of the gates `gate/...` and `wide_gate/...`
    `kernel` [D, 3 D] (r, z, h), `recurrent` [D, 2 D], `candidate` [D, D], `bias` [D]; gates start almost closed, with a
    bias of 2.

    Attributes:
        heads: Of which `outputs` is a multiple.
        window: Steps back that are remembered.
    """

    kind = "attention"

    heads: int = 2
    window: int = 32

    def weight_shapes(self) -> dict[str, Shape]:
        width = self.outputs
        shapes: dict[str, Shape] = {"norm/scale": (width,), "norm/bias": (width,)}
        shapes |= {"query/kernel": (width, width), "key_value/kernel": (width, 2 * width)}
        shapes |= {"distance": (self.window + 1, self.heads), "out/kernel": (width, width), "out/bias": (width,)}
        shapes |= _gate_shapes("gate", width)
        shapes |= {"wide_norm/scale": (width,), "wide_norm/bias": (width,)}
        shapes |= {"wide/kernel": (width, 2 * width), "wide/bias": (2 * width,)}
        shapes |= {"narrow/kernel": (2 * width, width), "narrow/bias": (width,)}
        return shapes | _gate_shapes("wide_gate", width)

    def state_shapes(self) -> dict[str, Shape]:
        return {"memory": (self.window, self.outputs), "age": ()}

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        width = self.outputs
        weights = {name: np.ones(width, np.float32) for name in ("norm/scale", "wide_norm/scale")}
        for name, shape in self.weight_shapes().items():
            if name.endswith("gate/bias"):
                weights[name] = np.full(width, 2.0, np.float32)
            elif len(shape) == 2 and name != "distance":
                blocks = [draw(rng, shape[0], min(width, shape[1])) for _ in range(max(1, shape[1] // width))]
                weights[name] = np.concatenate(blocks, axis=1).astype(np.float32)
        return weights


@dataclass(frozen=True)
class Branch:
    """Some columns of a flat row, as a vector or an image of their own, through layers of their own.

    Attributes:
        columns: `(start, stop)` ranges of the row, put side by side.
        shape: What they are: `[D]` or `[height, width, channels]`.
        layers: What they go through; none: they pass as they are.
    """

    columns: tuple[tuple[int, int], ...]
    shape: Shape
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Branches(Layer):
    """Branches of a row `[B, inputs]`, whose results are put side by side: `[B, outputs]`."""

    kind = "branches"

    branches: tuple[Branch, ...] = ()

    def weight_shapes(self) -> dict[str, Shape]:
        return {}

    def initial_weights(self, rng: np.random.Generator, draw: Draw) -> Weights:
        return {}

    def to_json(self) -> dict[str, Any]:
        branches = [
            {"columns": branch.columns, "shape": branch.shape, "layers": [layer.to_json() for layer in branch.layers]}
            for branch in self.branches
        ]
        return {**asdict(self), "kind": self.kind, "branches": branches}


@dataclass(frozen=True)
class ActionMask:
    """Which choices the observation allows: column `start + i` of a row says it of distribution input `columns[i]`."""

    start: int
    columns: tuple[int, ...]


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
        num_features: Leading columns of a flat observation that the first layer reads; None: all.
        mask: The action mask among the others; None without.
    """

    observation_shape: Shape
    scale: float
    num_outputs: int
    shared: tuple[Layer, ...]
    policy: tuple[Layer, ...]
    value: tuple[Layer, ...]
    free_columns: tuple[int, ...] = ()
    orthogonal: bool = True
    num_features: int | None = None
    mask: ActionMask | None = None

    @property
    def is_mlp(self) -> bool:
        """Only dense layers."""
        return all(isinstance(layer, Dense) for layer in self.layers())

    @property
    def has_memory(self) -> bool:
        """Whether the output for an observation depends on those before it."""
        return self.state_size > 0

    @property
    def state_size(self) -> int:
        """S, the width of a state; 0 without memory."""
        return sum(math.prod(shape) for shape in self.state_shapes().values())

    def state_shapes(self) -> dict[str, Shape]:
        """Name -> shape of each part of a state, in order."""
        return {
            f"{layer.name}/{name}": shape for layer in self.layers() for name, shape in layer.state_shapes().items()
        }

    def output_runs(self) -> list[tuple[bool, int, int]]:
        """How `policy/out` and `log_std` make up the K columns: (whether of `log_std`, start, stop) of each run."""
        free, runs, used = set(self.free_columns), list[tuple[bool, int, int]](), [0, 0]
        for column in range(self.num_outputs):
            kind = column in free
            if runs and runs[-1][0] == kind:
                runs[-1] = (kind, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((kind, used[kind], used[kind] + 1))
            used[kind] += 1
        return runs

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
        """All layers, in the weights' order, those of branches among them."""
        for part in (self.shared, self.policy, self.value):
            yield from _flat(part)

    def weight_shapes(self) -> dict[str, Shape]:
        """Name -> shape of every weight, in the order of the flat vector."""
        shapes: dict[str, Shape] = {}
        for layer in self.layers():
            shapes |= {f"{layer.name}/{name}": shape for name, shape in layer.weight_shapes().items()}
        if self.free_columns:
            shapes["log_std"] = (len(self.free_columns),)
        return shapes

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Fresh weights, the same for every framework: kernels drawn, most biases and `log_std` 0."""
        weights = {name: np.zeros(shape, np.float32) for name, shape in self.weight_shapes().items()}
        draw = _orthogonal if self.orthogonal else _glorot
        for layer in self.layers():
            for name, value in layer.initial_weights(rng, draw).items():
                weights[f"{layer.name}/{name}"][...] = value
        return weights

    def to_json(self) -> dict[str, Any]:
        """As JSON values, read back by `from_json`."""
        parts = {part: [layer.to_json() for layer in getattr(self, part)] for part in ("shared", "policy", "value")}
        return {**asdict(self), **parts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkDescription:
        """The inverse of `to_json`; values of a wrong kind raise TypeError, ValueError or KeyError."""
        parts = {part: tuple(layer_from_json(layer) for layer in data[part]) for part in ("shared", "policy", "value")}
        features, mask = data.get("num_features"), data.get("mask")
        return cls(
            observation_shape=_ints(data["observation_shape"]),
            scale=float(data["scale"]),
            num_outputs=int(data["num_outputs"]),
            free_columns=_ints(data["free_columns"]),
            orthogonal=bool(data["orthogonal"]),
            num_features=None if features is None else int(features),
            mask=None if mask is None else ActionMask(int(mask["start"]), _ints(mask["columns"])),
            **parts,
        )


def layer_from_json(data: Mapping[str, Any]) -> Layer:
    """The inverse of `Layer.to_json`."""
    kind = data["kind"]
    common = (str(data["name"]), int(data["inputs"]), int(data["outputs"]))
    if kind in ("dense", "conv"):
        activation = data["activation"]
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}")
        if kind == "dense":
            return Dense(*common, activation, float(data["gain"]))
        height, width = _ints(data["kernel"])
        down, right = _ints(data["stride"])
        return Conv(*common, (height, width), (down, right), activation, float(data["gain"]))
    if kind == "attention":
        return Attention(*common, int(data["heads"]), int(data["window"]))
    if kind == "branches":
        return Branches(*common, tuple(_branch_from_json(branch) for branch in data["branches"]))
    return {"lstm": Lstm, "gru": Gru}[kind](*common)


def _branch_from_json(data: Mapping[str, Any]) -> Branch:
    columns = tuple((int(start), int(stop)) for start, stop in data["columns"])
    return Branch(columns, _ints(data["shape"]), tuple(layer_from_json(layer) for layer in data["layers"]))


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _flat(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    for layer in layers:
        if isinstance(layer, Branches):
            for branch in layer.branches:
                yield from _flat(branch.layers)
        else:
            yield layer


def _gate_shapes(name: str, width: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"kernel": (width, 3 * width), "recurrent": (width, 2 * width)}
    shapes |= {"candidate": (width, width), "bias": (width,)}
    return {f"{name}/{part}": shape for part, shape in shapes.items()}


def _recurrent_kernels(rng: np.random.Generator, draw: Draw, layer: Layer, gates: int) -> Weights:
    """`kernel` and `recurrent`, each gate's block drawn by itself."""
    rows = {"kernel": layer.inputs, "recurrent": layer.outputs}
    return {
        name: np.concatenate([draw(rng, count, layer.outputs) for _ in range(gates)], axis=1).astype(np.float32)
        for name, count in rows.items()
    }


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A `[rows, columns]` matrix, uniform among those with orthonormal rows or columns, whichever are fewer."""
    matrix = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(matrix)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)  # else the distribution is not uniform
    return q if rows >= columns else q.T


def _glorot(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    limit = math.sqrt(6.0 / (rows + columns))
    return rng.uniform(-limit, limit, (rows, columns))
