"""Sequences: rows of experience folded to `[M, L, ...]`, which is what policies with memory learn from.

    rows [B, ...], env by env  ->  sequences [M, L, ...], mask [M, L], state before each [M, S]

A sequence holds neighbouring steps of one episode. Where it is shorter than L, zeros follow and the mask is False.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch


def sequence_length(fragment_length: int | None, max_seq_len: int) -> int:
    """L, the steps after which a fragment is cut: as long as `max_seq_len` allows while all parts are nearly equal.

    Args:
        fragment_length: Steps of a fragment; None: they vary, as those of whole episodes do.
        max_seq_len: The longest sequence.

    Example:
        >>> sequence_length(128, 32), sequence_length(100, 32), sequence_length(5, 32), sequence_length(None, 32)
        (32, 25, 5, 32)
    """
    if fragment_length is None:
        return max_seq_len
    parts = -(-fragment_length // max_seq_len)
    return -(-fragment_length // parts)


def fold(batch: SampleBatch, starts: NDArray[np.int64], length: int, states: NDArray[np.float32]) -> SampleBatch:
    """A batch in sequences; views where all are of full length.

    Args:
        batch: Rows [B, ...]; those of an episode are neighbours, in order of time.
        starts: [M] the first row of each sequence, ascending from 0; it ends where the next begins.
        length: L, which no sequence exceeds.
        states: [M, S] the policy's state before each sequence.

    Example:
        >>> rows = SampleBatch({"rewards": np.array([1.0, 2.0, 3.0])})
        >>> batch = fold(rows, np.array([0, 2]), 2, np.zeros((2, 1), np.float32))
        >>> batch["rewards"].tolist(), batch["mask"].tolist(), batch.count
        ([[1.0, 2.0], [3.0, 0.0]], [[True, True], [True, False]], 3)
    """
    mask = np.arange(length) < np.diff(starts, append=batch.num_rows)[:, None]
    columns = {name: _folded(np.asarray(column), mask) for name, column in batch.items()}
    return SampleBatch({**columns, SampleBatch.STATE_IN: states, SampleBatch.MASK: mask})


def _folded(column: NDArray, mask: NDArray[np.bool_]) -> NDArray:
    if len(column) == mask.size:
        return column.reshape(*mask.shape, *column.shape[1:])
    folded = np.zeros((*mask.shape, *column.shape[1:]), column.dtype)
    folded[mask] = column
    return folded
