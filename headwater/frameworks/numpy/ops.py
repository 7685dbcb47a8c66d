"""The contract of `headwater.frameworks.ops` in NumPy: for acting on the CPU, and the reference of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headwater.frameworks.ops import Array, DistributionError, Ops, RandomGenerator, RandomSource, Shape

# From this many entries on, a reduction over short rows is several times faster by columns or as a matrix product.
_MANY_ENTRIES = 256

_GLOBAL_RNG = np.random.default_rng()


class NumpyGenerator:
    """A seeded generator of float32 numbers.

    Example:
        >>> rng = NumpyGenerator(7)
        >>> state = rng.get_state()
        >>> first = rng.uniform((3,))
        >>> rng.set_state(state)
        >>> bool((rng.uniform((3,)) == first).all())
        True
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def uniform(self, shape: Shape) -> np.ndarray:
        return self._rng.random(shape, dtype=np.float32)

    def normal(self, shape: Shape) -> np.ndarray:
        return self._rng.standard_normal(shape, dtype=np.float32)

    def get_state(self) -> dict[str, Any]:
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state


class NumpyOps(Ops):
    """NumPy's side of the contract; see `Ops` for what each function means."""

    def asarray(self, x: Any, like: Array | None = None) -> Array:
        if isinstance(x, np.ndarray):
            return x
        array = np.asarray(x)
        if array.dtype == np.float64 and not isinstance(x, np.generic):
            return array.astype(np.float32)
        return array

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.asarray(x)

    def to_float(self, x: Array, like: Array | None = None) -> Array:
        return np.asarray(x).astype(np.float32 if like is None else like.dtype, copy=False)

    def to_index(self, x: Array, name: str = "index") -> Array:
        if x.dtype.kind != "f":
            return x.astype(np.int64, copy=False)
        whole = (x == np.floor(x)) & (np.abs(x) < 2**31)
        if not whole.all():
            raise DistributionError(f"{name} {x[~whole][0]} is not a whole number: give integers")
        return x.astype(np.int64)

    def stop_gradient(self, x: Array) -> Array:
        return x

    def shape(self, x: Array) -> Shape:
        return x.shape

    def zeros(self, shape: Shape, like: Array) -> Array:
        return np.zeros(shape, like.dtype)

    def check(self, ok: Array, message: Callable[[], str]) -> None:
        if not ok.all():
            raise DistributionError(message())

    def exp(self, x: Array) -> Array:
        return np.exp(x)

    def log(self, x: Array) -> Array:
        return np.log(x)

    def tanh(self, x: Array) -> Array:
        return np.tanh(x)

    def atanh(self, x: Array) -> Array:
        return np.arctanh(x)

    def sigmoid(self, x: Array) -> Array:
        return 0.5 * np.tanh(0.5 * x) + 0.5

    def softplus(self, x: Array) -> Array:
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))

    def square(self, x: Array) -> Array:
        return np.square(x)

    def sqrt(self, x: Array) -> Array:
        return np.sqrt(x)

    def abs(self, x: Array) -> Array:
        return np.abs(x)

    def lgamma(self, x: Array) -> Array:
        return np.vectorize(math.lgamma, otypes=[np.asarray(x).dtype])(x)

    def digamma(self, x: Array) -> Array:
        # Six steps of psi(x) = psi(x + 1) - 1/x bring any x > 0 to where the asymptotic series has float64 accuracy.
        z = np.asarray(x, np.float64)
        shift = np.zeros_like(z)
        for _ in range(6):
            shift, z = shift - 1.0 / z, z + 1.0
        w = 1.0 / (z * z)
        series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w * (1 / 132 - w * 691 / 32760)))))
        return (shift + np.log(z) - 0.5 / z - series).astype(np.asarray(x).dtype)

    def isfinite(self, x: Array) -> Array:
        return np.isfinite(x)

    def minimum(self, x: Array, y: Array | float) -> Array:
        return np.minimum(x, y)

    def maximum(self, x: Array, y: Array | float) -> Array:
        return np.maximum(x, y)

    def clip(self, x: Array, low: Array | float | None = None, high: Array | float | None = None) -> Array:
        # Two ufuncs: np.clip's own wrapper costs more than both for the arrays of a step.
        if low is not None:
            x = np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def sum(self, x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
        if axis == -1 and x.size >= _MANY_ENTRIES and x.dtype.kind == "f":
            return x @ np.ones((x.shape[-1], 1) if keepdims else x.shape[-1], x.dtype)
        return x.sum(axis, keepdims=keepdims)

    def mean(self, x: Array, axis: int | None = None) -> Array:
        return np.mean(x, axis)

    def var(self, x: Array) -> Array:
        return np.var(x, -1)

    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        if axis == -1 and x.size >= _MANY_ENTRIES:
            largest = np.maximum.reduce(np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T), 0)
            return largest.reshape((*x.shape[:-1], 1) if keepdims else x.shape[:-1])
        return x.max(axis, keepdims=keepdims)

    def all(self, x: Array, axis: int | None = None) -> Array:
        return np.all(x, axis)

    def argmax(self, x: Array) -> Array:
        return x.argmax(-1)

    def cumsum(self, x: Array) -> Array:
        return np.add.accumulate(x, -1)

    def logsumexp(self, x: Array, keepdims: bool = False) -> Array:
        largest = self.max(x, -1, keepdims=True)
        result = np.log(self.sum(np.exp(x - largest), -1, keepdims=True)) + largest
        return result if keepdims else result[..., 0]

    def softmax(self, x: Array) -> Array:
        weights = np.exp(x - self.max(x, -1, keepdims=True))
        return weights / self.sum(weights, -1, keepdims=True)

    def log_softmax(self, x: Array) -> Array:
        x = x - self.max(x, -1, keepdims=True)
        return x - np.log(self.sum(np.exp(x), -1, keepdims=True))

    def pick(self, x: Array, index: Array, name: str = "index") -> Array:
        width = x.shape[-1]
        flat = index.ravel()
        if flat.size == 0:
            return np.zeros(index.shape, x.dtype)
        if flat.min() < 0 or flat.max() >= width:
            raise DistributionError(index_message(index, width, name))
        return x.reshape(-1, width)[np.arange(flat.size), flat].reshape(index.shape)

    def searchsorted(self, rows: Array, value: Array) -> Array:
        above = rows > value[..., None]
        # argmax finds the first entry above; a row without one gets K.
        return np.where(above[..., -1], above.argmax(-1), rows.shape[-1])

    def one_hot(self, index: Array, width: int, like: Array) -> Array:
        return (index[..., None] == np.arange(width)).astype(like.dtype)

    def reshape(self, x: Array, shape: Shape) -> Array:
        return x.reshape(shape)

    def split(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        parts, start = [], 0
        for size in sizes:
            parts.append(x[..., start : start + size])
            start += size
        return parts

    def concat(self, parts: Sequence[Array], axis: int = -1) -> Array:
        return np.concatenate(parts, axis)

    def stack(self, parts: Sequence[Array], axis: int = -1) -> Array:
        return np.stack(parts, axis)

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return x.transpose(axes)

    def take_rows(self, x: Array, index: Array) -> Array:
        return x[index]

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def elu(self, x: Array) -> Array:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))

    def silu(self, x: Array) -> Array:
        return x * self.sigmoid(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return x @ y

    def dense(self, x: Array, kernel: Array, bias: Array) -> Array:
        y = x @ kernel
        y += bias
        return y

    def conv(self, x: Array, kernel: Array, bias: Array, stride: tuple[int, int]) -> Array:
        outputs, height, width, _ = kernel.shape
        windows = sliding_window_view(x, (height, width), axis=(1, 2))[:, :: stride[0], :: stride[1]]
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], -1)
        y = patches @ kernel.reshape(outputs, -1).T
        y += bias
        return y

    def lstm(
        self, x: Array, h: Array, c: Array, kernel: Array, recurrent: Array, bias: Array, mask: Array | None = None
    ) -> tuple[Array, Array, Array]:
        gates, outputs, width = self.dense(x, kernel, bias), [], h.shape[-1]
        for t in range(x.shape[1]):
            a = gates[:, t] + h @ recurrent
            g = np.tanh(a[:, 2 * width : 3 * width])
            a = self.sigmoid(a)  # g's part too: one call is cheaper than three
            c_next = a[:, width : 2 * width] * c + a[:, :width] * g
            h_next = a[:, 3 * width :] * np.tanh(c_next)
            c, h = (c_next, h_next) if mask is None else _where_real(mask[:, t], (c_next, h_next), (c, h))
            outputs.append(h)
        return _by_rows(outputs), h, c

    def gru(
        self,
        x: Array,
        h: Array,
        kernel: Array,
        recurrent: Array,
        bias: Array,
        recurrent_bias: Array,
        mask: Array | None = None,
    ) -> tuple[Array, Array]:
        gates, outputs, width = self.dense(x, kernel, bias), [], h.shape[-1]
        for t in range(x.shape[1]):
            a, b = gates[:, t], h @ recurrent
            rz = self.sigmoid(a[:, : 2 * width] + b[:, : 2 * width])
            r, z = rz[:, :width], rz[:, width:]
            n = np.tanh(a[:, 2 * width :] + r * (b[:, 2 * width :] + recurrent_bias))
            h_next = n + z * (h - n)
            h = h_next if mask is None else _where_real(mask[:, t], (h_next,), (h,))[0]
            outputs.append(h)
        return _by_rows(outputs), h

    def generator(self, seed: int, like: Array | None = None) -> RandomGenerator:
        return NumpyGenerator(seed)

    def uniform(self, rng: RandomSource | None, shape: Shape, like: Array | None = None) -> Array:
        if rng is None or isinstance(rng, np.random.Generator):
            x = (rng or _GLOBAL_RNG).random(shape, dtype=np.float32)
        else:
            x = rng.uniform(shape)
        return x.astype(np.float32 if like is None else like.dtype, copy=False)

    def normal(self, rng: RandomSource | None, shape: Shape, like: Array | None = None) -> Array:
        if rng is None or isinstance(rng, np.random.Generator):
            x = (rng or _GLOBAL_RNG).standard_normal(shape, dtype=np.float32)
        else:
            x = rng.normal(shape)
        return x.astype(np.float32 if like is None else like.dtype, copy=False)


def _by_rows(outputs: list[Array]) -> Array:
    """[B, H] of each step -> [B, T, H]; of one step, as when acting, without a copy."""
    return outputs[0][:, None] if len(outputs) == 1 else np.stack(outputs, 1)


def _where_real(real: Array, new: tuple[Array, ...], old: tuple[Array, ...]) -> list[Array]:
    return [np.where(real[:, None], a, b) for a, b in zip(new, old, strict=True)]


def index_message(index: np.ndarray, width: int, name: str) -> str:
    """What to say of an index array with entries outside [0, width): names the first one and its place."""
    where = np.argwhere((index < 0) | (index >= width))[0]
    place = f" (row {', '.join(map(str, where))})" if where.size else ""
    return f"{name} {index[tuple(where)]}{place} is outside 0..{width - 1}"


NUMPY_OPS = NumpyOps()
