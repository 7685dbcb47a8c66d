"""Whole episodes from pieces: batches cut them where a fragment ended, and interleave those of several envs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch


def run_starts(batch: SampleBatch) -> NDArray[np.int64]:
    """Rows at which a run begins: steps of one agent's episode that follow each other.

    Example:
        >>> rows = SampleBatch({"eps_id": [0, 0, 0, 1], "terminateds": [False] * 4, "t": [0, 1, 5, 0]})
        >>> run_starts(rows).tolist()
        [0, 2, 3]
    """
    begins = np.zeros(batch.num_rows, bool)
    begins[:1] = True
    for name in (SampleBatch.EPS_ID, SampleBatch.AGENT_INDEX):
        if name in batch:
            column = np.asarray(batch[name])
            begins[1:] |= column[1:] != column[:-1]
    if SampleBatch.T in batch:
        t = np.asarray(batch[SampleBatch.T])
        begins[1:] |= t[1:] != t[:-1] + 1
    begins[1:] |= done_rows(batch)[:-1]
    return np.flatnonzero(begins)


def runs(batch: SampleBatch) -> list[SampleBatch]:
    """The runs of a batch, as views."""
    bounds = [*run_starts(batch).tolist(), batch.num_rows]
    return [batch.slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def done_rows(batch: SampleBatch) -> NDArray[np.bool_]:
    """[B] rows that ended an episode."""
    done = np.zeros(batch.num_rows, bool)
    for name in (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS):
        if name in batch:
            done |= np.asarray(batch[name], bool)
    return done


class EpisodeJoiner:
    """Takes batches in the order in which they were sampled, and gives the episodes that came to their end.

    An episode whose beginning was not seen (its first `t` is not 0) is left out.

    Example:
        >>> joiner = EpisodeJoiner()
        >>> first = SampleBatch({"eps_id": [0, 1], "t": [0, 0], "terminateds": [False, False]})
        >>> second = SampleBatch({"eps_id": [0, 1], "t": [1, 1], "terminateds": [True, False]})
        >>> [episode.count for batch in (first, second) for episode in joiner.add(batch)]
        [2]
    """

    def __init__(self) -> None:
        self._running: dict[tuple[int, int], list[SampleBatch]] = {}

    @property
    def num_rows(self) -> int:
        """Rows of the episodes that have not ended."""
        return sum(piece.num_rows for pieces in self._running.values() for piece in pieces)

    def add(self, batch: SampleBatch) -> list[SampleBatch]:
        """The episodes that end in this batch, whole."""
        whole = []
        for run in runs(batch):
            key = _key(run)
            known = self._running.pop(key, [])
            if SampleBatch.T in run:
                first = int(run[SampleBatch.T][0])
                if first == 0:
                    known = []
                elif not known or first != int(known[-1][SampleBatch.T][-1]) + 1:
                    continue
            known.append(run)
            if done_rows(run)[-1]:
                whole.append(SampleBatch.concat_samples(known))
            else:
                known[-1] = run.copy()  # a view would keep its whole batch
                self._running[key] = known
        return whole


class StepCounter:
    """Adds the column `t` to batches whose sampler did not: each row's step in its episode.

    Example:
        >>> counter = StepCounter()
        >>> [counter.add(SampleBatch({"eps_id": [3, 3, 4]}))["t"].tolist() for _ in range(2)]
        [[0, 1, 0], [2, 3, 1]]
    """

    def __init__(self) -> None:
        self._steps: defaultdict[tuple[int, int], int] = defaultdict(int)

    def add(self, batch: SampleBatch) -> SampleBatch:
        """The batch with `t`; itself where it has that, or no `eps_id` to count by."""
        if SampleBatch.T in batch or SampleBatch.EPS_ID not in batch:
            return batch
        steps = []
        for run in runs(batch):
            key, first = _key(run), self._steps.pop(_key(run), 0)
            steps.append(np.arange(first, first + run.num_rows))
            if not done_rows(run)[-1]:
                self._steps[key] = first + run.num_rows
        with_t = batch.copy(shallow=True)
        with_t[SampleBatch.T] = np.concatenate(steps)
        return with_t


def _key(run: SampleBatch) -> tuple[int, int]:
    """Whose episode it is."""
    episode = run[SampleBatch.EPS_ID][0] if SampleBatch.EPS_ID in run else 0
    agent = run[SampleBatch.AGENT_INDEX][0] if SampleBatch.AGENT_INDEX in run else 0
    return int(episode), int(agent)
