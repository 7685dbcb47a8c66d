"""The contract of `headwater.frameworks.ops` in NumPy with gradients, over the arrays of `tape.py`.

Derivatives are those of torch where a choice exists: `clip` passes the gradient on its bounds, `minimum` and `maximum`
halve it between equals, `abs` has 0 at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headwater.frameworks.numpy.ops import NumpyOps
from headwater.frameworks.numpy.tape import Array, Pull, Taped, fitted, record, record_binary, value_of
from headwater.frameworks.ops import DistributionError, Shape


class TapedOps(NumpyOps):
    """NumPy's ops that carry gradients through `Taped` arrays; see `Ops` for what each function means."""

    # -- without gradients --------------------------------------------------------------------------------------------

    def asarray(self, x: Any, like: Any = None) -> Any:
        if type(x) is Taped:
            return x
        if isinstance(x, list | tuple) and any(type(part) is Taped for part in x):
            return self.stack([self.asarray(part) for part in x], 0)
        return super().asarray(x)

    def to_numpy(self, x: Any) -> Array:
        return np.asarray(value_of(x))

    def to_float(self, x: Any, like: Any = None) -> Any:
        if type(x) is Taped and (like is None or like.dtype == x.dtype):
            return x
        return super().to_float(value_of(x), like)

    def to_index(self, x: Any, name: str = "index") -> Array:
        return super().to_index(value_of(x), name)

    def stop_gradient(self, x: Any) -> Any:
        return value_of(x)

    def isfinite(self, x: Any) -> Array:
        return np.isfinite(value_of(x))

    def argmax(self, x: Any) -> Array:
        return super().argmax(value_of(x))

    def searchsorted(self, rows: Any, value: Any) -> Array:
        return super().searchsorted(value_of(rows), value_of(value))

    # -- elementwise --------------------------------------------------------------------------------------------------

    def exp(self, x: Any) -> Any:
        if type(x) is not Taped:
            return np.exp(x)
        y = np.exp(x.value)
        return record(y, (x, lambda g: g * y))

    def log(self, x: Any) -> Any:
        return np.log(x) if type(x) is not Taped else record(np.log(x.value), (x, lambda g: g / x.value))

    def tanh(self, x: Any) -> Any:
        if type(x) is not Taped:
            return np.tanh(x)
        y = np.tanh(x.value)
        return record(y, (x, lambda g: g * (1.0 - y * y)))

    def atanh(self, x: Any) -> Any:
        if type(x) is not Taped:
            return np.arctanh(x)
        return record(np.arctanh(x.value), (x, lambda g: g / (1.0 - x.value * x.value)))

    def sigmoid(self, x: Any) -> Any:
        y = super().sigmoid(value_of(x))
        return y if type(x) is not Taped else record(y, (x, lambda g: g * y * (1.0 - y)))

    def softplus(self, x: Any) -> Any:
        y = super().softplus(value_of(x))
        return y if type(x) is not Taped else record(y, (x, lambda g: g * super(TapedOps, self).sigmoid(x.value)))

    def square(self, x: Any) -> Any:
        if type(x) is not Taped:
            return np.square(x)
        return record(np.square(x.value), (x, lambda g: 2.0 * g * x.value))

    def sqrt(self, x: Any) -> Any:
        if type(x) is not Taped:
            return np.sqrt(x)
        y = np.sqrt(x.value)
        return record(y, (x, lambda g: 0.5 * g / y))

    def abs(self, x: Any) -> Any:
        return np.abs(x) if type(x) is not Taped else record(np.abs(x.value), (x, lambda g: g * np.sign(x.value)))

    def lgamma(self, x: Any) -> Any:
        y = super().lgamma(value_of(x))
        return y if type(x) is not Taped else record(y, (x, lambda g: g * super(TapedOps, self).digamma(x.value)))

    def digamma(self, x: Any) -> Any:
        if type(x) is Taped:
            raise DistributionError("digamma has no gradient here: differentiate this loss in another framework")
        return super().digamma(x)

    def minimum(self, x: Any, y: Any) -> Any:
        return self._extreme(x, y, np.minimum)

    def maximum(self, x: Any, y: Any) -> Any:
        return self._extreme(x, y, np.maximum)

    def clip(self, x: Any, low: Any = None, high: Any = None) -> Any:
        low, high = value_of(low), value_of(high)
        y = super().clip(value_of(x), low, high)
        if type(x) is not Taped:
            return y
        # NaN stays NaN in the result, and so the update is refused; its gradient does not matter.
        return record(y, (x, fitted(lambda g: np.where(y == x.value, g, 0.0), x, y)))

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        if isinstance(x, float) and isinstance(y, float):
            return np.where(condition, np.float32(x), np.float32(y))  # of two numbers NumPy would make float64
        value = np.where(condition, value_of(x), value_of(y))
        if type(x) is not Taped and type(y) is not Taped:
            return value
        return record_binary(x, y, value, lambda g: np.where(condition, g, 0.0), lambda g: np.where(condition, 0.0, g))

    def _extreme(self, x: Any, y: Any, choose: Callable[[Any, Any], Any]) -> Any:
        a, b = value_of(x), value_of(y)
        value = choose(a, b)
        if type(x) is not Taped and type(y) is not Taped:
            return value
        if type(y) is not Taped and np.ndim(b) == 0:
            return record(value, (x, lambda g: np.where(value == a, g, 0.0)))
        half = np.where(a == b, np.float32(0.5), np.float32(1.0))
        return record_binary(
            x, y, value, lambda g: g * np.where(value == a, half, 0.0), lambda g: g * np.where(value == b, half, 0.0)
        )

    # -- reductions ---------------------------------------------------------------------------------------------------

    def sum(self, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        value = super().sum(value_of(x), axis, keepdims)
        return value if type(x) is not Taped else record(value, (x, _spread(x.value, axis, keepdims)))

    def mean(self, x: Any, axis: int | None = None) -> Any:
        array = value_of(x)
        total = np.add.reduce(array, axis)  # numpy.mean's wrapper costs more than the sum
        share = array.dtype.type(total.size / array.size)
        value = total * share
        if type(x) is not Taped:
            return value
        spread = _spread(array, axis, False)
        return record(value, (x, lambda g: spread(g * share)))

    def var(self, x: Any) -> Any:
        if type(x) is not Taped:
            return super().var(x)
        return self.mean(self.square(x - self.mean(x, -1)[..., None]), -1)

    def max(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        value = super().max(value_of(x), axis, keepdims)
        if type(x) is not Taped:
            return value
        largest = value if keepdims else np.expand_dims(value, axis)
        equal = (x.value == largest).astype(x.dtype)
        share = equal / equal.sum(axis, keepdims=True)
        return record(value, (x, lambda g: (g if keepdims else np.expand_dims(g, axis)) * share))

    def cumsum(self, x: Any) -> Any:
        value = super().cumsum(value_of(x))
        if type(x) is not Taped:
            return value
        return record(value, (x, lambda g: np.flip(np.add.accumulate(np.flip(g, -1), -1), -1)))

    def logsumexp(self, x: Any, keepdims: bool = False) -> Any:
        if type(x) is not Taped:
            return super().logsumexp(x, keepdims)
        value = super().logsumexp(x.value, True)
        weights = np.exp(x.value - value)
        if keepdims:
            return record(value, (x, lambda g: g * weights))
        return record(value[..., 0], (x, lambda g: g[..., None] * weights))

    def softmax(self, x: Any) -> Any:
        y = super().softmax(value_of(x))
        if type(x) is not Taped:
            return y
        total = super().sum
        return record(y, (x, lambda g: y * (g - total(g * y, -1, True))))

    def log_softmax(self, x: Any) -> Any:
        y = super().log_softmax(value_of(x))
        if type(x) is not Taped:
            return y
        total = super().sum
        return record(y, (x, lambda g: g - np.exp(y) * total(g, -1, True)))

    # -- rows and shapes ----------------------------------------------------------------------------------------------

    def pick(self, x: Any, index: Array, name: str = "index") -> Any:
        value = super().pick(value_of(x), index, name)
        if type(x) is not Taped:
            return value

        def pull(g: Any) -> Array:
            full = np.zeros_like(x.value)
            rows = full.reshape(-1, full.shape[-1])
            rows[np.arange(len(rows)), index.ravel()] = g.ravel()
            return full

        return record(value, (x, pull))

    def reshape(self, x: Any, shape: Shape) -> Any:
        if type(x) is not Taped:
            return x.reshape(shape)
        return record(x.value.reshape(shape), (x, lambda g: g.reshape(x.value.shape)))

    def concat(self, parts: Sequence[Any], axis: int = -1) -> Any:
        return self._joined(parts, np.concatenate([value_of(part) for part in parts], axis), axis, stacked=False)

    def stack(self, parts: Sequence[Any], axis: int = -1) -> Any:
        return self._joined(parts, np.stack([value_of(part) for part in parts], axis), axis, stacked=True)

    def _joined(self, parts: Sequence[Any], value: Array, axis: int, stacked: bool) -> Any:
        inputs, start = [], 0
        for part in parts:
            width = 1 if stacked else part.shape[axis]
            if type(part) is Taped:
                cut: list[Any] = [slice(None)] * value.ndim
                cut[axis] = start if stacked else slice(start, start + width)
                inputs.append((part, lambda g, cut=tuple(cut): g[cut]))
            start += width
        return record(value, *inputs) if inputs else value


def _spread(x: Array, axis: int | None, keepdims: bool) -> Pull:
    """The gradient by a sum -> by each of its terms."""
    if axis is None or keepdims:
        return lambda g: np.broadcast_to(g, x.shape)
    return lambda g: np.broadcast_to(np.expand_dims(g, axis), x.shape)


TAPED_OPS = TapedOps()
