"""Does a value lie in its space, and if not, where and how not.

Gymnasium's `Space.contains` says yes or no. A user whose env returns something else needs the key path, what was
expected and what came, down to the first offending element; and a float64 observation of a float32 space is welcome.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

# Relative to max(1, |bound|): float32 rounding at a bound is no fault of the env.
BOUND_TOLERANCE = 1e-5
LARGEST = np.float64(np.finfo(np.float32).max)


class Mismatch(Exception):
    """A value is not in its space; `row` is the first offending row where a batch was checked, else None."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


@singledispatch
def check_value(space: spaces.Space, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    """Check one value of `space`, or with `num_rows` a batch of that many (arrays `[num_rows, ...]`, nested alike).

    Raises:
        Mismatch: names the key path from `path` on, what was expected and what came.

    Example:
        >>> check_value(spaces.Box(0, 1, (2,)), np.array([0.5, 3.0]))
        Traceback (most recent call last):
        headwater.envs.space_check.Mismatch: obs[1] is 3.0, outside the bounds [0.0, 1.0] of its space
    """
    if num_rows is None and not space.contains(value):
        raise Mismatch(f"{path} is {_shown(value)}, which is not in {space}")


@check_value.register(spaces.Dict)
def _check_dict(space: spaces.Dict, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    if not isinstance(value, dict):
        raise Mismatch(f"{path} is a {type(value).__name__}, expected a dict with the keys {sorted(space.spaces)}")
    if value.keys() != space.spaces.keys():
        missing, extra = sorted(space.spaces.keys() - value.keys()), sorted(value.keys() - space.spaces.keys())
        raise Mismatch(f"{path} has not the keys of its space: missing {missing}, unexpected {extra}")
    for key, child in space.spaces.items():
        check_value(child, value[key], f"{path}[{key!r}]", num_rows)


@check_value.register(spaces.Tuple)
def _check_tuple(space: spaces.Tuple, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
        came = f"{type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
        raise Mismatch(f"{path} is a {came}, expected a tuple of {len(space.spaces)}")
    for index, child in enumerate(space.spaces):
        check_value(child, value[index], f"{path}[{index}]", num_rows)


@check_value.register(spaces.Box)
def _check_box(space: spaces.Box, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    array = _as_array(space, value, path, num_rows)
    if array.dtype.kind == "f":
        # Policies see float32: what that cannot hold would be infinite to them.
        wrong = ~(np.abs(array) <= LARGEST)
        _raise_first(wrong, array, path, num_rows, "expected a finite number that float32 can hold")
        array = array.astype(space.dtype, copy=False)
    low, high = _tolerant_bounds(space)
    outside = (array < low) | (array > high)
    if outside.any():
        first = _first(outside)
        place = first if num_rows is None else first[1:]
        raise Mismatch(
            f"{_indexed(path, place)} is {array[first]}, outside the bounds "
            f"[{space.low[place]}, {space.high[place]}] of its space",
            _row(first, num_rows),
        )


def _tolerant_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    low, high = space.low, space.high
    if low.dtype.kind != "f":
        return low, high
    slack_low = BOUND_TOLERANCE * np.maximum(1, np.abs(np.where(np.isfinite(low), low, 0)))
    slack_high = BOUND_TOLERANCE * np.maximum(1, np.abs(np.where(np.isfinite(high), high, 0)))
    with np.errstate(over="ignore"):  # bounds at the ends of the dtype
        return low - slack_low, high + slack_high


@check_value.register(spaces.Discrete)
def _check_discrete(space: spaces.Discrete, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    array = _as_array(space, value, path, num_rows)
    last = space.start + space.n - 1
    outside = (array < space.start) | (array > last)
    _raise_first(outside, array, path, num_rows, f"expected an integer from {space.start} to {last}")


@check_value.register(spaces.MultiDiscrete)
def _check_multi_discrete(
    space: spaces.MultiDiscrete, value: Any, path: str = "obs", num_rows: int | None = None
) -> None:
    array = _as_array(space, value, path, num_rows)
    outside = (array < space.start) | (array >= space.start + space.nvec)
    if outside.any():
        first = _first(outside)
        place = first if num_rows is None else first[1:]
        low, last = space.start[place], space.start[place] + space.nvec[place] - 1
        raise Mismatch(
            f"{_indexed(path, place)} is {array[first]}, expected an integer from {low} to {last}",
            _row(first, num_rows),
        )


@check_value.register(spaces.MultiBinary)
def _check_multi_binary(space: spaces.MultiBinary, value: Any, path: str = "obs", num_rows: int | None = None) -> None:
    array = _as_array(space, value, path, num_rows)
    _raise_first((array != 0) & (array != 1), array, path, num_rows, "expected 0 or 1")


def _as_array(space: spaces.Space, value: Any, path: str, num_rows: int | None) -> np.ndarray:
    """Return the value as an array, or raise Mismatch where its shape or dtype cannot be the space's."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise Mismatch(f"{path} is {_shown(value)}, which has no regular shape; expected {space.shape}") from None
    assert space.shape is not None and space.dtype is not None
    shape = space.shape if num_rows is None else (num_rows, *space.shape)
    if array.shape != shape:
        raise Mismatch(f"{path} has the shape {array.shape}, expected {shape} of {_named(space)}")
    # A list of Python numbers has no dtype of its own: only its kind is the user's choice.
    is_list = not isinstance(value, (np.ndarray, np.generic))
    casts = np.can_cast(array.dtype, space.dtype, "same_kind")
    if not casts and not (is_list and array.dtype.kind in "iub" and np.dtype(space.dtype).kind in "iu"):
        raise Mismatch(
            f"{path} has the dtype {array.dtype}, which does not cast to {np.dtype(space.dtype)} of {_named(space)} "
            "without loss"
        )
    return array


def _raise_first(wrong: np.ndarray, array: np.ndarray, path: str, num_rows: int | None, expected: str) -> None:
    if wrong.any():
        first = _first(wrong)
        place = first if num_rows is None else first[1:]
        raise Mismatch(f"{_indexed(path, place)} is {array[first]}, {expected}", _row(first, num_rows))


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.ndim else ()


def _row(first: tuple[int, ...], num_rows: int | None) -> int | None:
    return None if num_rows is None else first[0]


def _indexed(path: str, place: tuple[int, ...]) -> str:
    return f"{path}[{', '.join(map(str, place))}]" if place else path


def _named(space: spaces.Space) -> str:
    return f"{type(space).__name__}{space.shape}" if not isinstance(space, spaces.Discrete) else str(space)


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."
