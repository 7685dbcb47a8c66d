"""How a train batch is laid out for compiled code, so that a batch a row shorter needs no other code.

Columns are filled up with rows that nothing points to. Minibatches are rows of indices; where they are not all of the
size that the code was compiled for, they are filled up as well, and a mask tells a loss that reads it which rows count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.frameworks.jax.ops import in_32_bits
from headwater.policy.policy import Array
from headwater.policy.sgd import learnable


class Filling(Enum):
    """What stands in a minibatch beside its rows."""

    NONE = "nothing: all minibatches have the same size"
    MASKED = "rows that a mask leaves out"
    SHORTER = "nothing: a row more or less is compiled separately, for losses that read no mask"


class Plan(NamedTuple):
    """A batch as compiled code takes it."""

    columns: dict[str, Array]  # [rows, ...]
    places: NDArray[np.int32]  # [updates, size]: the rows of each minibatch; more updates than there are
    sizes: NDArray[np.int32]  # [updates]: how many of them count
    num_updates: int
    filling: Filling


class Planner:
    """Lays out batches, each of about the size of those before."""

    def __init__(self) -> None:
        self._usual: dict[str, int] = {}

    def plan(
        self,
        batch: Mapping[str, Array],
        orders: NDArray[np.int64],
        bounds: list[tuple[int, int]],
        masks_rows: Callable[[], bool],
    ) -> Plan:
        """A whole SGD phase.

        Args:
            batch: See `Learner.sgd`.
            orders: Likewise.
            bounds: Likewise.
            masks_rows: Whether the loss reads a mask; asked only where that matters.
        """
        epochs, rows = orders.shape
        sizes = [stop - start for start, stop in bounds]
        size, filling = max(sizes), Filling.NONE
        width = self._filled("minibatch", size, 8)
        if min(sizes) < width:
            if masks_rows():
                filling = Filling.MASKED
            else:
                width = size
                filling = Filling.NONE if min(sizes) == size else Filling.SHORTER
        num_updates = epochs * len(bounds)
        length = self._filled("updates", num_updates, 1)
        places = np.zeros((length, width), np.int32)
        for number, (start, stop) in enumerate(bounds):
            places[number : num_updates : len(bounds), : stop - start] = orders[:, start:stop]
        counts = np.zeros(length, np.int32)
        counts[:num_updates] = np.tile(sizes, epochs)
        return Plan(_columns(batch, self._filled("rows", rows, 1)), places, counts, num_updates, filling)

    def whole(self, batch: Mapping[str, Array], masks_rows: Callable[[], bool]) -> Plan:
        """The whole batch as one minibatch, in its own order."""
        rows = len(batch[SampleBatch.OBS])
        length = self._filled("whole", rows, 8)
        filling = Filling.NONE
        if length > rows:
            length, filling = (length, Filling.MASKED) if masks_rows() else (rows, Filling.NONE)
        return Plan(_columns(batch, length), np.zeros((1, 0), np.int32), np.array(rows, np.int32), 1, filling)

    def _filled(self, what: str, size: int, steps: int) -> int:
        """A size from `size` on: the first that there was, if that is near, else the next of `steps` in each octave."""
        usual = self._usual.setdefault(what, size)
        step = max(1, (1 << (size.bit_length() - 1)) // steps)
        filled = -(-size // step) * step
        return usual if size <= usual <= filled else filled


def _columns(batch: Mapping[str, Array], rows: int) -> dict[str, Array]:
    columns = {}
    for name, column in batch.items():
        column = in_32_bits(learnable(column))
        if len(column) < rows:
            column = np.concatenate([column, np.zeros((rows - len(column), *column.shape[1:]), column.dtype)])
        columns[name] = column
    return columns
