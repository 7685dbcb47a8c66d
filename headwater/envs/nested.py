"""Nested batches: arrays `[N, ...]`, or dicts and tuples of them, as the Dict and Tuple spaces nest.

The space of one env says how its rows nest. `make_gather` turns it, once, into the function that writes the rows of N
envs into one batch; it is strict: a row which does not fit is an exception, never a silent broadcast or cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.errors import UnsupportedSpaceError

Gather = Callable[[Sequence[Any]], Any]
Split = Callable[[Any], Iterable[Any]]

_NOT_ARRAYS = (
    "The space at {path} is {space}, whose values do not stack into arrays. Supported are Box, Discrete, "
    "MultiDiscrete, MultiBinary, and Dict and Tuple of these: encode it as one of them in a wrapper of your env."
)


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to the leaves at the same place of each tree; dicts and tuples are the nodes."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *values) for values in zip(tree, *others, strict=True))
    return function(tree, *others)


def tree_leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of a nested batch, in the order in which its dicts hold them."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        for value in tree:
            yield from tree_leaves(value)
    else:
        yield tree


def replace_rows(batch: Any, indices: Any, rows: Any) -> Any:
    """Return a copy of `batch` `[N, ...]` in which the rows at `indices` (or of a mask) are `rows`, as many."""

    def leaf(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        copy = old.copy()
        copy[indices] = new
        return copy

    return tree_map(leaf, batch, rows)


def row_of(batch: Any, index: int) -> Any:
    """Return row `index` of a batch."""
    return tree_map(lambda leaf: leaf[index], batch)


def take_rows(batch: Any, indices: Any) -> Any:
    """Return the rows of a batch at `indices`, as a batch."""
    return tree_map(lambda leaf: leaf[indices], batch)


def as_row(space: spaces.Space, value: Any) -> Any:
    """Return a value (or batch) that lies in `space` as arrays of its dtypes; lists and Python numbers become such."""
    if isinstance(space, spaces.Dict):
        return {key: as_row(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_row(child, part) for child, part in zip(space.spaces, value, strict=True))
    return np.asarray(value, space.dtype)


@singledispatch
def make_gather(space: spaces.Space, path: str = "obs") -> Gather:
    """Return the function `rows -> batch` for rows of `space`: one fresh array `[len(rows), ...]` for each leaf.

    The function raises ValueError, TypeError, KeyError or IndexError where a row has another shape, structure, or a
    dtype that does not cast to the space's within its kind (float64 to float32 does, float to int does not).

    Raises:
        UnsupportedSpaceError: rows of this space do not stack into arrays.
    """
    raise UnsupportedSpaceError(_NOT_ARRAYS.format(path=path, space=space))


@make_gather.register(spaces.Box)
@make_gather.register(spaces.MultiDiscrete)
@make_gather.register(spaces.MultiBinary)
def _gather_arrays(space: spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary, path: str = "obs") -> Gather:
    shape, dtype = space.shape, space.dtype
    if not shape:
        return _gather_scalars(space, path)
    height, rest = shape[0], shape[1:]

    def gather(rows: Sequence[Any]) -> np.ndarray:
        # One concatenate is cheaper than a loop of assignments, and unlike them it neither broadcasts nor casts freely.
        out = np.empty((len(rows) * height, *rest), dtype)
        np.concatenate(rows, out=out, casting="same_kind")
        return out.reshape((len(rows), *shape))

    return gather


@make_gather.register(spaces.Discrete)
def _gather_scalars(space: spaces.Space, path: str = "obs") -> Gather:
    dtype = np.dtype(space.dtype)

    def gather(rows: Sequence[Any]) -> np.ndarray:
        batch = np.array(rows)
        if batch.shape != (len(rows),):
            raise ValueError(f"expected scalars, got an array of shape {batch.shape[1:]}")
        return batch.astype(dtype, casting="same_kind")

    return gather


@make_gather.register(spaces.Dict)
def _gather_dict(space: spaces.Dict, path: str = "obs") -> Gather:
    gathers = {key: make_gather(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
    return lambda rows: {key: gather([row[key] for row in rows]) for key, gather in gathers.items()}


@make_gather.register(spaces.Tuple)
def _gather_tuple(space: spaces.Tuple, path: str = "obs") -> Gather:
    gathers = [make_gather(child, f"{path}[{index}]") for index, child in enumerate(space.spaces)]
    return lambda rows: tuple(gather([row[index] for row in rows]) for index, gather in enumerate(gathers))


@singledispatch
def make_split(space: spaces.Space, path: str = "action") -> Split:
    """Return the function `batch -> rows`, the inverse of `make_gather`'s, for what an env may take as an action.

    The rows own their memory: an env that writes into its action does not write into the batch.
    """
    raise UnsupportedSpaceError(_NOT_ARRAYS.format(path=path, space=space))


@make_split.register(spaces.Box)
@make_split.register(spaces.MultiDiscrete)
@make_split.register(spaces.MultiBinary)
def _split_arrays(space: spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary, path: str = "action") -> Split:
    dtype = space.dtype
    if not space.shape:
        return lambda batch: [np.array(value, dtype) for value in batch]
    return lambda batch: np.array(batch, dtype)


@make_split.register(spaces.Discrete)
def _split_scalars(space: spaces.Discrete, path: str = "action") -> Split:
    dtype = space.dtype
    return lambda batch: np.asarray(batch, dtype)


@make_split.register(spaces.Dict)
def _split_dict(space: spaces.Dict, path: str = "action") -> Split:
    splits = {key: make_split(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}

    def split(batch: Any) -> Iterator[dict[str, Any]]:
        columns = [part(batch[key]) for key, part in splits.items()]
        return (dict(zip(splits, row, strict=True)) for row in zip(*columns, strict=True))

    return split


@make_split.register(spaces.Tuple)
def _split_tuple(space: spaces.Tuple, path: str = "action") -> Split:
    splits = [make_split(child, f"{path}[{index}]") for index, child in enumerate(space.spaces)]
    return lambda batch: zip(*(part(column) for part, column in zip(splits, batch, strict=True)), strict=True)
