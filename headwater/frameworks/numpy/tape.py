"""Gradients in NumPy: arrays that remember how they were made.

A loss over a minibatch is some forty operations on a few hundred numbers each, and a framework's automatic
differentiation costs many times their arithmetic. This one is a list: each operation appends its result and the
functions that pull a gradient back to its inputs, and `gradients` walks the list from the end. Only arrays that
depend on what `watch` returned are `Taped`; all others stay plain arrays. `taped_ops.py` has the operations.

Example:
    >>> x, y = watch(np.float32([1, 2]), np.float32([3, 4]))
    >>> [g.tolist() for g in gradients((x * x * y)[1], [x, y])]
    [[0.0, 16.0], [0.0, 4.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.frameworks.ops import Shape

Array = NDArray[Any]
Pull = Callable[[Any], Any]  # gradient by the result -> gradient by one input
Tape = list[tuple["Taped", Sequence[tuple["Taped", Pull]]]]


class Taped:
    """An array whose gradient can be asked for.

    Attributes:
        value: The plain array.
        grad: The gradient by it, once `gradients` came past.
    """

    __slots__ = ("grad", "tape", "value")
    __array_ufunc__ = None  # so that `array * taped` asks taped

    def __init__(self, value: Any, tape: Tape) -> None:
        self.value = value
        self.tape = tape
        self.grad: Any = None

    @property
    def shape(self) -> Shape:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return self.value.ndim

    def __len__(self) -> int:
        return len(self.value)

    def __neg__(self) -> Taped:
        return record(-self.value, (self, np.negative))

    def __add__(self, other: Any) -> Taped:
        return record_binary(self, other, self.value + value_of(other), _same, _same)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Taped:
        return record_binary(self, other, self.value - value_of(other), _same, np.negative)

    def __rsub__(self, other: Any) -> Taped:
        return record_binary(other, self, other - self.value, _same, np.negative)

    def __mul__(self, other: Any) -> Taped:
        a, b = self.value, value_of(other)
        return record_binary(self, other, a * b, lambda g: g * b, lambda g: g * a)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Taped:
        a, b = self.value, value_of(other)
        return record_binary(self, other, a / b, lambda g: g / b, lambda g: -g * a / (b * b))

    def __rtruediv__(self, other: Any) -> Taped:
        x = self.value
        value = other / x
        return record_binary(other, self, value, _same, lambda g: -g * value / x)

    def __pow__(self, exponent: float) -> Taped:
        x = self.value
        return record(x**exponent, (self, lambda g: g * exponent * x ** (exponent - 1)))

    def __getitem__(self, key: Any) -> Taped:
        x = self.value

        def pull(g: Any) -> Array:
            full = np.zeros_like(x)
            full[key] = g
            return full

        return record(x[key], (self, pull))

    def __lt__(self, other: Any) -> Any:
        return self.value < value_of(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= value_of(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > value_of(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= value_of(other)

    def __eq__(self, other: object) -> Any:
        return self.value == value_of(other)

    def __ne__(self, other: object) -> Any:
        return self.value != value_of(other)

    __hash__ = None  # type: ignore[assignment]


def watch(*arrays: Array) -> list[Taped]:
    """Begin a tape whose gradients will be asked for by these arrays."""
    tape: Tape = []
    return [Taped(array, tape) for array in arrays]


def gradients(loss: Any, watched: Sequence[Taped]) -> list[Array | None]:
    """The gradient of a scalar by each watched array; None for one that it does not depend on. The tape ends here."""
    if isinstance(loss, Taped):
        loss.grad = np.ones_like(loss.value)
        for result, inputs in reversed(loss.tape):
            g = result.grad
            if g is not None:
                for source, pull in inputs:
                    contribution = pull(g)
                    source.grad = contribution if source.grad is None else source.grad + contribution
        loss.tape.clear()  # results and tape hold each other: nothing else would free them before a garbage collection
    return [source.grad for source in watched]


def value_of(x: Any) -> Any:
    """The plain array of a taped one; anything else as it is."""
    return x.value if type(x) is Taped else x


def record(value: Any, *inputs: tuple[Taped, Pull]) -> Taped:
    """A result that depends on `inputs`, each with what pulls the gradient back to it."""
    tape = inputs[0][0].tape
    result = Taped(value, tape)
    tape.append((result, inputs))
    return result


def record_binary(a: Any, b: Any, value: Any, pull_a: Pull, pull_b: Pull) -> Taped:
    """Record a function of two arrays that broadcast, at least one of which is taped."""
    inputs = []
    if type(a) is Taped:
        inputs.append((a, fitted(pull_a, a, value)))
    if type(b) is Taped:
        inputs.append((b, fitted(pull_b, b, value)))
    return record(value, *inputs)


def fitted(pull: Pull, source: Taped, value: Any) -> Pull:
    """`pull`, summed over the axes along which `source` was broadcast to the shape of `value`."""
    shape = source.value.shape
    if shape == value.shape:
        return pull

    def summed(g: Any) -> Any:
        g = np.broadcast_to(pull(g), value.shape)
        extra = g.ndim - len(shape)
        axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1))
        return g.sum(axes).reshape(shape)

    return summed


def _same(g: Any) -> Any:
    return g
