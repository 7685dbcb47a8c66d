"""Epochs and minibatches: how stochastic gradient descent walks a train batch, whatever framework differentiates.

A permutation per epoch, one gather per column per epoch, minibatches as views of what was gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Gather = Callable[[str, np.ndarray | None], Any]


def minibatch_bounds(num_rows: int, minibatch_size: int) -> list[tuple[int, int]]:
    """Split `num_rows` into parts of nearly equal size, as near to `minibatch_size` as a whole number of parts allows.

    Parts differ by at most one row, so that no tiny last minibatch gives a noisy update. 0 means one part.

    Example:
        >>> minibatch_bounds(1030, 256)
        [(0, 258), (258, 516), (516, 773), (773, 1030)]
    """
    parts = max(1, round(num_rows / minibatch_size)) if minibatch_size > 0 else 1
    parts = min(parts, max(1, num_rows))
    small, larger = divmod(num_rows, parts)
    bounds, start = [], 0
    for part in range(parts):
        stop = start + small + (part < larger)
        bounds.append((start, stop))
        start = stop
    return bounds


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
        gather: `(name, order) -> column` with the rows in that order (`order` None: as they lie).
        order: int64 [B] permutation, or None.
    """

    def __init__(self, names: frozenset[str], gather: Gather, order: np.ndarray | None) -> None:
        self.names = names
        self._gather = gather
        self._order = order
        self._columns: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """The whole column in this epoch's order, gathered once."""
        column = self._columns.get(name)
        if column is None:
            if name not in self.names:
                raise KeyError(f"The train batch has no column {name!r}; it has {sorted(self.names)}.")
            column = self._columns[name] = self._gather(name, self._order)
        return column


def minibatches(
    names: frozenset[str],
    gather: Gather,
    num_rows: int,
    num_epochs: int,
    minibatch_size: int,
    rng: np.random.Generator,
) -> Iterator[tuple[bool, Minibatch]]:
    """Walk a train batch: `num_epochs` passes of shuffled, near-equal minibatches.

    A single pass in a single part is not shuffled, for the order would not matter.

    Args:
        names: Columns of the train batch.
        gather: See `Epoch`. It may reuse its memory from one epoch to the next.
        num_rows: B.
        num_epochs: Passes over the batch.
        minibatch_size: Wanted rows per update; 0: all of them.
        rng: Makes the permutations; part of the policy's state.

    Yields:
        `(is_last_epoch, minibatch)`.
    """
    bounds = minibatch_bounds(num_rows, minibatch_size)
    for index in range(num_epochs):
        order = rng.permutation(num_rows) if len(bounds) > 1 else None
        epoch = Epoch(names, gather, order)
        for start, stop in bounds:
            yield index == num_epochs - 1, Minibatch(epoch, start, stop)
