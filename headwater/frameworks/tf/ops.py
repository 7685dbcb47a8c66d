"""The contract of `headwater.frameworks.ops` in TensorFlow, eager and under tf.function, also with unknown rows.

Checks that read values run eagerly on the CPU only: on a GPU the host would have to wait for the device, and while
a function is traced there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from headwater.frameworks.numpy.ops import NUMPY_OPS, index_message
from headwater.frameworks.ops import DistributionError, Ops, RandomGenerator, RandomSource, Shape

_UNROLLED_STEPS = 32


class TFGenerator:
    """A seeded generator of float32 numbers, which may also be drawn from inside tf.function.

    Example:
        >>> rng = TFGenerator(7)
        >>> state = rng.get_state()
        >>> first = rng.normal((3,))
        >>> rng.set_state(state)
        >>> bool((rng.normal((3,)) == first).numpy().all())
        True
    """

    def __init__(self, seed: int) -> None:
        self._rng = tf.random.Generator.from_seed(seed, alg="philox")

    def uniform(self, shape: Shape) -> tf.Tensor:
        return self._rng.uniform(_sizes(shape))

    def normal(self, shape: Shape) -> tf.Tensor:
        return self._rng.normal(_sizes(shape))

    def get_state(self) -> dict[str, Any]:
        return {"algorithm": "philox", "state": self._rng.state.numpy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._rng.state.assign(np.array(state["state"], np.int64))


class _Rows:
    """A size that is known only when the graph runs. It equals every other one: what differs then fails there."""

    __slots__ = ("number",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: tf.Tensor) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return True


class TFOps(Ops):
    """TensorFlow's side of the contract; see `Ops` for what each function means."""

    def asarray(self, x: Any, like: tf.Tensor | None = None) -> tf.Tensor:
        if isinstance(x, (tf.Tensor, np.ndarray, np.generic, tf.Variable)):
            return tf.convert_to_tensor(x)
        if isinstance(x, (list, tuple)) and any(isinstance(entry, tf.Tensor) for entry in x):
            return tf.stack([self.asarray(entry) for entry in x])
        return tf.convert_to_tensor(NUMPY_OPS.asarray(x))

    def to_numpy(self, x: tf.Tensor) -> np.ndarray:
        return x.numpy()

    def to_float(self, x: tf.Tensor, like: tf.Tensor | None = None) -> tf.Tensor:
        return tf.cast(x, tf.float32 if like is None else like.dtype)

    def to_index(self, x: tf.Tensor, name: str = "index") -> tf.Tensor:
        if not x.dtype.is_floating:
            return tf.cast(x, tf.int64)
        whole = (x == tf.floor(x)) & (tf.abs(x) < 2.0**31)
        if _values_are_at_hand(x) and not whole.numpy().all():
            raise DistributionError(f"{name} {x.numpy()[~whole.numpy()][0]} is not a whole number: give integers")
        return tf.cast(self.where(whole, x, -1.0), tf.int64)

    def stop_gradient(self, x: tf.Tensor) -> tf.Tensor:
        return tf.stop_gradient(x)

    def shape(self, x: tf.Tensor) -> Shape:
        sizes = x.shape.as_list()
        if None not in sizes:
            return tuple(sizes)
        now = tf.shape(x, tf.int64)
        dynamic: list[Any] = [_Rows(now[axis]) if size is None else size for axis, size in enumerate(sizes)]
        return tuple(dynamic)

    def zeros(self, shape: Shape, like: tf.Tensor) -> tf.Tensor:
        return tf.zeros(_sizes(shape), like.dtype)

    def check(self, ok: tf.Tensor, message: Callable[[], str]) -> None:
        if _values_are_at_hand(ok) and not np.all(ok):
            raise DistributionError(message())

    def exp(self, x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x)

    def log(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x)

    def tanh(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x)

    def atanh(self, x: tf.Tensor) -> tf.Tensor:
        return tf.atanh(x)

    def sigmoid(self, x: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(x)

    def softplus(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.softplus(x)

    def square(self, x: tf.Tensor) -> tf.Tensor:
        return tf.square(x)

    def sqrt(self, x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x)

    def abs(self, x: tf.Tensor) -> tf.Tensor:
        return tf.abs(x)

    def lgamma(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.lgamma(x)

    def digamma(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.digamma(x)

    def isfinite(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.is_finite(x)

    def minimum(self, x: tf.Tensor, y: tf.Tensor | float) -> tf.Tensor:
        return tf.minimum(x, y)

    def maximum(self, x: tf.Tensor, y: tf.Tensor | float) -> tf.Tensor:
        return tf.maximum(x, y)

    def clip(
        self, x: tf.Tensor, low: tf.Tensor | float | None = None, high: tf.Tensor | float | None = None
    ) -> tf.Tensor:
        if low is not None:
            x = tf.maximum(x, low)
        return x if high is None else tf.minimum(x, high)

    def where(self, condition: tf.Tensor, x: tf.Tensor | float, y: tf.Tensor | float) -> tf.Tensor:
        if type(x) is int and type(y) is int:
            x = tf.constant(x, tf.int64)
        return tf.where(condition, x, y)

    def sum(self, x: tf.Tensor, axis: int | None = None, keepdims: bool = False) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(x, tf.int64) if x.dtype == tf.bool else x, axis, keepdims)

    def mean(self, x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
        return tf.reduce_mean(x, axis)

    def var(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.reduce_variance(x, -1)

    def max(self, x: tf.Tensor, axis: int, keepdims: bool = False) -> tf.Tensor:
        return tf.reduce_max(x, axis, keepdims)

    def all(self, x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
        return tf.reduce_all(x, axis)

    def argmax(self, x: tf.Tensor) -> tf.Tensor:
        return tf.argmax(x, -1)

    def cumsum(self, x: tf.Tensor) -> tf.Tensor:
        return tf.cumsum(x, -1)

    def logsumexp(self, x: tf.Tensor, keepdims: bool = False) -> tf.Tensor:
        return tf.reduce_logsumexp(x, -1, keepdims)

    def softmax(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x)

    def log_softmax(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(x)

    def pick(self, x: tf.Tensor, index: tf.Tensor, name: str = "index") -> tf.Tensor:
        width = x.shape[-1]
        inside = (index >= 0) & (index < width)
        if _values_are_at_hand(x) and not np.all(inside):
            raise DistributionError(index_message(index.numpy(), width, name))
        # A selection and a sum: the gradient of tf.gather by rows takes several times as long.
        chosen = index[..., None] == tf.range(width, dtype=tf.int64)
        picked = tf.reduce_sum(tf.where(chosen, x, tf.zeros((), x.dtype)), -1)
        return self.where(inside, picked, -np.inf)

    def searchsorted(self, rows: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return self.sum(~(rows > value[..., None]), -1)

    def one_hot(self, index: tf.Tensor, width: int, like: tf.Tensor) -> tf.Tensor:
        return tf.cast(index[..., None] == tf.range(width, dtype=tf.int64), like.dtype)

    def reshape(self, x: tf.Tensor, shape: Shape) -> tf.Tensor:
        if sum(isinstance(size, _Rows) or size == -1 for size in shape) == 1:
            shape = tuple(-1 if isinstance(size, _Rows) else size for size in shape)
        return tf.reshape(x, _sizes(shape))

    def split(self, x: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
        return tf.split(x, list(sizes), -1)

    def concat(self, parts: Sequence[tf.Tensor], axis: int = -1) -> tf.Tensor:
        return tf.concat(list(parts), axis)

    def stack(self, parts: Sequence[tf.Tensor], axis: int = -1) -> tf.Tensor:
        return tf.stack(list(parts), axis)

    def transpose(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        return tf.transpose(x, axes)

    def take_rows(self, x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, index)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x)

    def elu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.elu(x)

    def silu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.silu(x)

    def matmul(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if x.ndim > 2 and y.ndim == 2:  # one large product rather than many small ones
            return self.reshape(tf.reshape(x, (-1, x.shape[-1])) @ y, (*self.shape(x)[:-1], y.shape[-1]))
        return x @ y

    def dense(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return self.matmul(x, kernel) + bias

    def conv(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, stride: tuple[int, int]) -> tf.Tensor:
        return tf.nn.conv2d(x, tf.transpose(kernel, (1, 2, 3, 0)), stride, "VALID") + bias

    def lstm(
        self, x: tf.Tensor, h: tf.Tensor, c: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:  # fmt: skip
        def step(gates: tf.Tensor, state: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
            h, c = state
            i, f, g, o = tf.split(gates + h @ recurrent, 4, -1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            return tf.sigmoid(o) * tf.tanh(c), c

        outputs, (h, c) = _along_time(step, self.dense(x, kernel, bias), (h, c), mask)
        return outputs, h, c

    def gru(
        self, x: tf.Tensor, h: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor,
        recurrent_bias: tf.Tensor, mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        def step(gates: tf.Tensor, state: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
            (h,) = state
            a_r, a_z, a_n = tf.split(gates, 3, -1)
            b_r, b_z, b_n = tf.split(h @ recurrent, 3, -1)
            z = tf.sigmoid(a_z + b_z)
            n = tf.tanh(a_n + tf.sigmoid(a_r + b_r) * (b_n + recurrent_bias))
            return (n + z * (h - n),)

        outputs, (h,) = _along_time(step, self.dense(x, kernel, bias), (h,), mask)
        return outputs, h

    def generator(self, seed: int, like: tf.Tensor | None = None) -> RandomGenerator:
        return TFGenerator(seed)

    def uniform(self, rng: RandomSource | None, shape: Shape, like: tf.Tensor | None = None) -> tf.Tensor:
        if rng is None or isinstance(rng, tf.random.Generator):
            return (rng or tf.random).uniform(_sizes(shape), dtype=_float_like(like))
        _refuse_while_tracing(rng)
        drawn = NUMPY_OPS.uniform(rng, shape) if isinstance(rng, np.random.Generator) else rng.uniform(shape)
        return tf.cast(drawn, _float_like(like))

    def normal(self, rng: RandomSource | None, shape: Shape, like: tf.Tensor | None = None) -> tf.Tensor:
        if rng is None or isinstance(rng, tf.random.Generator):
            return (rng or tf.random).normal(_sizes(shape), dtype=_float_like(like))
        _refuse_while_tracing(rng)
        drawn = NUMPY_OPS.normal(rng, shape) if isinstance(rng, np.random.Generator) else rng.normal(shape)
        return tf.cast(drawn, _float_like(like))


def _along_time(
    step: Callable[[tf.Tensor, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]],
    inputs: tf.Tensor,
    state: tuple[tf.Tensor, ...],
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Run `step(inputs[:, t], state)` along the time axis: the first part of each state, [B, T, H], and the last state.

    A few steps are laid out one after another: that takes twice as long to trace as a loop, and a quarter less to run.
    """

    def masked_step(t: Any, state: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        new = step(inputs[:, t], state)
        if mask is None:
            return new
        real = mask[:, t, None]
        return tuple(tf.where(real, after, before) for after, before in zip(new, state, strict=True))

    length = inputs.shape[1]
    if length is not None and length <= _UNROLLED_STEPS:
        outputs = []
        for t in range(length):
            state = masked_step(t, state)
            outputs.append(state[0])
        return tf.stack(outputs, 1), state

    def loop_step(t: tf.Tensor, state: tuple[tf.Tensor, ...], outputs: tf.TensorArray) -> tuple[Any, ...]:
        state = masked_step(t, state)
        return t + 1, state, outputs.write(t, state[0])

    length = tf.shape(inputs)[1]
    outputs = tf.TensorArray(state[0].dtype, length, element_shape=state[0].shape)
    _, state, outputs = tf.while_loop(lambda t, *_: t < length, loop_step, (tf.constant(0), state, outputs))
    return tf.transpose(outputs.stack(), (1, 0, 2)), state


def _sizes(shape: Shape) -> Any:
    """A shape as TensorFlow takes it."""
    if any(isinstance(size, _Rows) for size in shape):
        return tf.stack([size.number if isinstance(size, _Rows) else tf.constant(size, tf.int64) for size in shape])
    return tuple(shape)


def _values_are_at_hand(x: tf.Tensor) -> bool:
    return tf.executing_eagerly() and "GPU" not in x.device


def _float_like(like: tf.Tensor | None) -> Any:
    return tf.float32 if like is None else like.dtype


def _refuse_while_tracing(rng: RandomSource | np.random.Generator) -> None:
    if not tf.executing_eagerly() and not isinstance(rng, TFGenerator):
        raise DistributionError(
            f"{type(rng).__name__} would draw only once, while tf.function traces, and give the same numbers in every "
            "call: draw from headwater.frameworks.tf.TFGenerator(seed), or outside of tf.function"
        )


TF_OPS = TFOps()
