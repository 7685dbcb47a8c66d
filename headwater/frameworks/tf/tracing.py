"""Traced: a function of TensorFlow that is traced once, however many rows its arrays have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Traced:
    """Traces a function for each kind of arguments: types, shapes but for the first axis, and Python values.

    Args:
        function: Of tensors, dicts of tensors, and hashable values.
        enabled: False: it runs step by step, as a debugger wants it.

    Example:
        >>> double = Traced(lambda x: 2 * x)
        >>> [double(tf.ones(rows)).shape[0] for rows in (3, 4, 5)], double.count
        ([3, 4, 5], 1)
    """

    def __init__(self, function: Callable[..., Any], enabled: bool = True) -> None:
        self._function: Any = tf.function(function, autograph=False) if enabled else function
        self._enabled = enabled
        self._kinds: set[Any] = set()

    def __call__(self, *args: Any) -> Any:
        if self._enabled:
            kinds = tf.nest.map_structure(_kind, args)
            key = (*tf.nest.flatten(kinds), *(tuple(sorted(arg)) for arg in args if isinstance(arg, dict)))
            if key not in self._kinds:
                self._function.get_concrete_function(*kinds)  # of any rows; calls find it
                self._kinds.add(key)
        return self._function(*args)

    @property
    def count(self) -> int:
        """How often it was traced."""
        return self._function.experimental_get_tracing_count() if self._enabled else 0


def _kind(value: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return value
    return tf.TensorSpec((None, *value.shape[1:]) if value.shape.rank else (), value.dtype)
