"""The contract of `headwater.frameworks.ops` in JAX; everything works under jit, grad and vmap.

JAX computes with 32 bits here, as it does by default: where the contract says int64 the arrays are int32 (larger
numbers are kept at int32's bounds, so that an index outside stays outside), and float64 becomes float32.

Checks that read values run where values are there: neither under a transformation nor on a GPU, where the host would
have to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from headwater.frameworks.jax.generator import JaxGenerator, source_of
from headwater.frameworks.numpy.ops import NUMPY_OPS, index_message
from headwater.frameworks.ops import DistributionError, Ops, RandomGenerator, RandomSource, Shape

# Up to this many columns a value is picked by comparing with all of them; XLA's gather costs more, its gradient most.
_FEW_COLUMNS = 128


class JaxOps(Ops):
    """JAX's side of the contract; see `Ops` for what each function means."""

    def asarray(self, x: Any, like: jax.Array | None = None) -> jax.Array:
        if isinstance(x, (list, tuple)) and any(isinstance(entry, jax.Array) for entry in x):
            return jnp.stack([self.asarray(entry, like) for entry in x])
        if not isinstance(x, jax.Array):
            x = in_32_bits(np.asarray(x))
        return jnp.asarray(x, device=_place_of(like))

    def to_numpy(self, x: jax.Array) -> np.ndarray:
        return np.asarray(x)

    def to_float(self, x: jax.Array, like: jax.Array | None = None) -> jax.Array:
        return x.astype(jnp.float32 if like is None else like.dtype)

    def to_index(self, x: jax.Array, name: str = "index") -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x.astype(jnp.int32)
        whole = (x == jnp.floor(x)) & (jnp.abs(x) < 2.0**31)
        if _values_are_at_hand(whole) and not bool(whole.all()):
            raise DistributionError(
                f"{name} {np.asarray(x)[~np.asarray(whole)][0]} is not a whole number: give integers"
            )
        return jnp.where(whole, x, -1.0).astype(jnp.int32)

    def stop_gradient(self, x: jax.Array) -> jax.Array:
        return lax.stop_gradient(x)

    def shape(self, x: jax.Array) -> Shape:
        return x.shape

    def zeros(self, shape: Shape, like: jax.Array) -> jax.Array:
        return jnp.zeros(shape, like.dtype, device=_place_of(like))

    def check(self, ok: jax.Array, message: Callable[[], str]) -> None:
        if _values_are_at_hand(ok) and not bool(ok.all()):
            raise DistributionError(message())

    def exp(self, x: jax.Array) -> jax.Array:
        return jnp.exp(x)

    def log(self, x: jax.Array) -> jax.Array:
        return jnp.log(x)

    def tanh(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    def atanh(self, x: jax.Array) -> jax.Array:
        return jnp.arctanh(x)

    def sigmoid(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x)

    def softplus(self, x: jax.Array) -> jax.Array:
        return jax.nn.softplus(x)

    def square(self, x: jax.Array) -> jax.Array:
        return x * x

    def sqrt(self, x: jax.Array) -> jax.Array:
        return jnp.sqrt(x)

    def abs(self, x: jax.Array) -> jax.Array:
        return jnp.abs(x)

    def lgamma(self, x: jax.Array) -> jax.Array:
        return lax.lgamma(x)

    def digamma(self, x: jax.Array) -> jax.Array:
        return lax.digamma(x)

    def isfinite(self, x: jax.Array) -> jax.Array:
        return jnp.isfinite(x)

    # Numbers as bounds are chosen by comparison: at a tie all of the gradient passes, as in torch, and not half of it.

    def minimum(self, x: jax.Array, y: jax.Array | float) -> jax.Array:
        return jnp.minimum(x, y) if isinstance(y, jax.Array) else jnp.where(x > y, y, x)

    def maximum(self, x: jax.Array, y: jax.Array | float) -> jax.Array:
        return jnp.maximum(x, y) if isinstance(y, jax.Array) else jnp.where(x < y, y, x)

    def clip(
        self, x: jax.Array, low: jax.Array | float | None = None, high: jax.Array | float | None = None
    ) -> jax.Array:
        if low is not None:
            x = jnp.where(x < low, low, x)
        return x if high is None else jnp.where(x > high, high, x)

    def where(self, condition: jax.Array, x: jax.Array | float, y: jax.Array | float) -> jax.Array:
        return jnp.where(condition, x, y)

    def sum(self, x: jax.Array, axis: int | None = None, keepdims: bool = False) -> jax.Array:
        return jnp.sum(x, axis, keepdims=keepdims)

    def mean(self, x: jax.Array, axis: int | None = None) -> jax.Array:
        return jnp.mean(x, axis)

    def var(self, x: jax.Array) -> jax.Array:
        return jnp.var(x, -1)

    def max(self, x: jax.Array, axis: int, keepdims: bool = False) -> jax.Array:
        return jnp.max(x, axis, keepdims=keepdims)

    def all(self, x: jax.Array, axis: int | None = None) -> jax.Array:
        return jnp.all(x, axis)

    def argmax(self, x: jax.Array) -> jax.Array:
        return jnp.argmax(x, -1)

    def cumsum(self, x: jax.Array) -> jax.Array:
        return jnp.cumsum(x, -1)

    def logsumexp(self, x: jax.Array, keepdims: bool = False) -> jax.Array:
        return jax.nn.logsumexp(x, -1, keepdims=keepdims)

    def softmax(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, -1)

    def log_softmax(self, x: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(x, -1)

    def pick(self, x: jax.Array, index: jax.Array, name: str = "index") -> jax.Array:
        width = x.shape[-1]
        inside = (index >= 0) & (index < width)
        if _values_are_at_hand(inside) and not bool(inside.all()):
            raise DistributionError(index_message(np.asarray(index), width, name))
        if width <= _FEW_COLUMNS:
            found = jnp.sum(jnp.where(index[..., None] == jnp.arange(width), x, 0), -1)
        else:
            found = jnp.take_along_axis(x, jnp.where(inside, index, 0)[..., None], -1)[..., 0]
        return jnp.where(inside, found, -jnp.inf)

    def searchsorted(self, rows: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.sum(~(rows > value[..., None]), -1)

    def one_hot(self, index: jax.Array, width: int, like: jax.Array) -> jax.Array:
        return (index[..., None] == jnp.arange(width)).astype(like.dtype)

    def reshape(self, x: jax.Array, shape: Shape) -> jax.Array:
        return jnp.reshape(x, shape)

    def split(self, x: jax.Array, sizes: Sequence[int]) -> list[jax.Array]:
        ends = np.cumsum(sizes).tolist()
        return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def concat(self, parts: Sequence[jax.Array], axis: int = -1) -> jax.Array:
        return jnp.concatenate(parts, axis)

    def stack(self, parts: Sequence[jax.Array], axis: int = -1) -> jax.Array:
        return jnp.stack(parts, axis)

    def transpose(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        return jnp.transpose(x, axes)

    def take_rows(self, x: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take(x, index, 0)

    def relu(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)

    def elu(self, x: jax.Array) -> jax.Array:
        return jax.nn.elu(x)

    def silu(self, x: jax.Array) -> jax.Array:
        return jax.nn.silu(x)

    def matmul(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x @ y

    def dense(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return x @ kernel + bias

    def conv(self, x: jax.Array, kernel: jax.Array, bias: jax.Array, stride: tuple[int, int]) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, stride, "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC")) + bias

    def lstm(
        self, x: jax.Array, h: jax.Array, c: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
        def step(state: Any, inputs: Any) -> tuple[Any, jax.Array]:
            (h, c), (gates, real) = state, inputs
            i, f, g, o = jnp.split(gates + h @ recurrent, 4, -1)
            c_next = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h_next = jax.nn.sigmoid(o) * jnp.tanh(c_next)
            if real is not None:
                h_next, c_next = jnp.where(real, h_next, h), jnp.where(real, c_next, c)
            return (h_next, c_next), h_next

        (h, c), outputs = lax.scan(step, (h, c), _by_time(self.dense(x, kernel, bias), mask))
        return jnp.swapaxes(outputs, 0, 1), h, c

    def gru(
        self, x: jax.Array, h: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array,
        recurrent_bias: jax.Array, mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:  # fmt: skip
        def step(h: jax.Array, inputs: Any) -> tuple[jax.Array, jax.Array]:
            gates, real = inputs
            a_r, a_z, a_n = jnp.split(gates, 3, -1)
            b_r, b_z, b_n = jnp.split(h @ recurrent, 3, -1)
            z = jax.nn.sigmoid(a_z + b_z)
            n = jnp.tanh(a_n + jax.nn.sigmoid(a_r + b_r) * (b_n + recurrent_bias))
            h_next = n + z * (h - n)
            if real is not None:
                h_next = jnp.where(real, h_next, h)
            return h_next, h_next

        h, outputs = lax.scan(step, h, _by_time(self.dense(x, kernel, bias), mask))
        return jnp.swapaxes(outputs, 0, 1), h

    def generator(self, seed: int, like: jax.Array | None = None) -> RandomGenerator:
        return JaxGenerator(seed)

    def uniform(self, rng: RandomSource | None, shape: Shape, like: jax.Array | None = None) -> jax.Array:
        if isinstance(rng, np.random.Generator):
            return _drawn(NUMPY_OPS.uniform(rng, shape), like)
        return _drawn(source_of(rng).uniform(shape), like)

    def normal(self, rng: RandomSource | None, shape: Shape, like: jax.Array | None = None) -> jax.Array:
        if isinstance(rng, np.random.Generator):
            return _drawn(NUMPY_OPS.normal(rng, shape), like)
        return _drawn(source_of(rng).normal(shape), like)


def _values_are_at_hand(x: jax.Array) -> bool:
    return not isinstance(x, Tracer) and all(device.platform == "cpu" for device in x.devices())


def _place_of(like: jax.Array | None) -> Any:
    """Where arrays beside `like` belong; None: anywhere, they move to where they are used."""
    return None if like is None or isinstance(like, Tracer) or not like.committed else like.sharding


def in_32_bits(array: np.ndarray) -> np.ndarray:
    """Integers of 64 bits within the bounds of 32, which JAX would wrap around."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return array
    bounds = np.iinfo(np.int32 if array.dtype.kind == "i" else np.uint32)
    return np.clip(array, bounds.min, bounds.max).astype(bounds.dtype)


def _by_time(gates: jax.Array, mask: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """[B, T, *] -> [T, B, *], and the mask [B, T] -> [T, B, 1]."""
    return jnp.swapaxes(gates, 0, 1), None if mask is None else mask.T[..., None]


def _drawn(numbers: Any, like: jax.Array | None) -> jax.Array:
    return jnp.asarray(numbers, jnp.float32 if like is None else like.dtype, device=_place_of(like))


JAX_OPS = JaxOps()
