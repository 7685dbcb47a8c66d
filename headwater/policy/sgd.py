"""Epochs and minibatches: how stochastic gradient descent walks a train batch, whatever framework differentiates.

A permutation per epoch, one gather per column per epoch, minibatches as views of what was gathered. The rows that are
shuffled are those of the columns: env steps, or whole sequences `[L, ...]` for policies with memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.frameworks.ops import Array, Ops

Gather = Callable[[str, NDArray[np.int64]], Any]

_KINDS = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}


def numeric_columns(batch: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The columns of a train batch that a loss can read: those of numbers and booleans, as they are."""
    columns = {name: np.asarray(column) for name, column in batch.items()}
    return {name: column for name, column in columns.items() if column.dtype.kind in _KINDS and column.ndim}


def learnable(column: NDArray[Any]) -> NDArray[Any]:
    """A column as frameworks take it: floats float32, integers int64 but for uint8 (images), contiguous."""
    wanted = column.dtype if column.dtype == np.uint8 else _KINDS[column.dtype.kind]
    return np.ascontiguousarray(column, wanted)


def minibatch_bounds(num_rows: int, minibatch_size: int, num_steps: int | None = None) -> list[tuple[int, int]]:
    """Split `num_rows` into parts of nearly equal size, as near to `minibatch_size` as a whole number of parts allows.

    Parts differ by at most one row, so that no tiny last minibatch gives a noisy update.

    Args:
        num_rows: Rows of the batch's columns.
        minibatch_size: Wanted env steps of a part; 0 means one part.
        num_steps: Env steps of the batch, where its rows are sequences; None: each row is one.

    Example:
        >>> minibatch_bounds(1030, 256)
        [(0, 258), (258, 516), (516, 773), (773, 1030)]
    """
    steps = num_rows if num_steps is None else num_steps
    parts = max(1, round(steps / minibatch_size)) if minibatch_size > 0 else 1
    parts = min(parts, max(1, num_rows))
    small, larger = divmod(num_rows, parts)
    bounds, start = [], 0
    for part in range(parts):
        stop = start + small + (part < larger)
        bounds.append((start, stop))
        start = stop
    return bounds


def epoch_orders(num_rows: int, num_epochs: int, num_parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """int64 [epochs, rows]: the order in which each epoch goes through the rows.

    A single part is not shuffled, for the order would not matter.
    """
    if num_parts == 1:
        return np.tile(np.arange(num_rows), (num_epochs, 1))
    return np.stack([rng.permutation(num_rows) for _ in range(num_epochs)])


class Minibatch(dict):
    """Rows `start:stop` of an epoch's columns; a column is gathered when a loss first asks for it.

    Nothing has to be declared: what a loss reads is what is shuffled, and what it does not read costs nothing.
    """

    __slots__ = ("_epoch", "_start", "_stop")

    def __init__(self, epoch: Epoch, start: int, stop: int):
        super().__init__()
        self._epoch, self._start, self._stop = epoch, start, stop

    def __missing__(self, name: str) -> Any:
        column = self[name] = self._epoch.column(name)[self._start : self._stop]
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._epoch.names

    def get(self, name: str, default: Any = None) -> Any:
        """The column, or `default` where the train batch has none of this name."""
        return self[name] if name in self._epoch.names else default

    @property
    def num_rows(self) -> int:
        """Rows of this minibatch."""
        return self._stop - self._start


class Epoch:
    """One pass over a train batch in a given order.

    Args:
        names: The train batch's columns.
        gather: `(name, order) -> column` with the rows in that order.
        order: int64 [rows], a permutation.
    """

    def __init__(self, names: frozenset[str], gather: Gather, order: NDArray[np.int64]) -> None:
        self.names = names
        self._gather = gather
        self._order = order
        self._columns: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """The whole column in this epoch's order, gathered once."""
        column = self._columns.get(name)
        if column is None:
            if name not in self.names:
                raise KeyError(missing_column(name, self.names))
            column = self._columns[name] = self._gather(name, self._order)
        return column


def missing_column(name: str, names: frozenset[str]) -> str:
    """What to say where a loss reads a column that is not there."""
    return f"The train batch has no column {name!r}; it has {sorted(names)}."


def minibatches(
    names: frozenset[str], gather: Gather, orders: NDArray[np.int64], bounds: list[tuple[int, int]]
) -> Iterator[tuple[bool, Minibatch]]:
    """Walk a train batch: a pass of minibatches for each of `orders`.

    Args:
        names: Columns of the train batch.
        gather: See `Epoch`. It may reuse its memory from one epoch to the next.
        orders: See `epoch_orders`.
        bounds: See `minibatch_bounds`.

    Yields:
        `(is_last_epoch, minibatch)`.
    """
    for index, order in enumerate(orders):
        epoch = Epoch(names, gather, order)
        for start, stop in bounds:
            yield index == len(orders) - 1, Minibatch(epoch, start, stop)


class FlatRows(Mapping[str, Array]):
    """The columns [m, L, ...] of a minibatch of sequences as rows [m * L, ...], which is what losses are written for.

    Args:
        ops: The framework's operations.
        columns: The minibatch; a column is read when it is asked for.
    """

    def __init__(self, ops: Ops, columns: Mapping[str, Array]) -> None:
        self._ops = ops
        self._columns = columns

    def __getitem__(self, name: str) -> Array:
        column = self._columns[name]
        return self._ops.reshape(column, (-1, *self._ops.shape(column)[2:]))

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def get(self, name: str, default: Any = None) -> Any:
        """The rows, or `default` where the train batch has no such column."""
        return self[name] if name in self._columns else default


def outputs_and_rows(
    ops: Ops, forward: Callable[..., tuple[Array, ...]], batch: Mapping[str, Array]
) -> tuple[Array, Array, Mapping[str, Array]]:
    """What a loss is given for a minibatch, whether its rows are env steps or sequences.

    Args:
        ops: The framework's operations.
        forward: The network: `(obs [B, ...])`, or with memory `(obs [m, L, ...], state [m, S], mask [m, L])`, to
            distribution inputs, values and perhaps more.
        batch: Columns of the minibatch; in sequences if it has the column "state_in".

    Returns:
        Distribution inputs [B, K] and values [B] for B rows (m * L of them, padding included), and the minibatch's
        columns by rows; those of padding are False in its column "mask".
    """
    if SampleBatch.STATE_IN not in batch:
        dist_inputs, values = forward(batch[SampleBatch.OBS])[:2]
        return dist_inputs, values, batch
    obs, state, mask = batch[SampleBatch.OBS], batch[SampleBatch.STATE_IN], batch[SampleBatch.MASK]
    dist_inputs, values = forward(obs, state, mask)[:2]
    return dist_inputs, values, FlatRows(ops, batch)
