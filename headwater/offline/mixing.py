"""Readers made of other readers: mixtures, a shuffle buffer, and whatever a user's own object gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headwater.data.sample_batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline.context import EndOfInput, OfflineError
from headwater.offline.reader import InputReader


class CallableReader(InputReader):
    """Reads from an object with `next()`, an iterator, or a function that gives batches.

    Example:
        >>> reader = CallableReader(lambda: SampleBatch({"obs": [1, 2]}))
        >>> reader.next().count
        2
    """

    def __init__(self, source: Any) -> None:
        read = getattr(source, "next", None) or getattr(source, "__next__", None)
        if read is None and callable(source):
            read = source
        if read is None:
            raise ConfigError(
                f"input: {type(source).__name__} gives no batches: it is no InputReader and has no next(). Return an "
                "object whose next() gives a SampleBatch."
            )
        self._source, self._read = source, read

    def next(self) -> Batch:
        try:
            batch = self._read()
        except StopIteration:
            raise EndOfInput(f"input: {type(self._source).__name__} gives no more batches.") from None
        if not isinstance(batch, Batch):
            raise OfflineError(
                f"input: {type(self._source).__name__} gave a {type(batch).__name__} where a SampleBatch or a "
                "MultiAgentBatch is asked for."
            )
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._source.get_state() if isinstance(self._source, InputReader) else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if isinstance(self._source, InputReader):
            self._source.set_state(state)

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()


class MixedReader(InputReader):
    """Takes each batch from one of several readers, drawn by their probabilities.

    Args:
        readers: name of a source -> its reader.
        probabilities: name of a source -> its share of the batches; they add up to 1.
        seed: of the draws.

    Raises:
        ConfigError: the probabilities are none.
    """

    def __init__(
        self, readers: Mapping[str, InputReader], probabilities: Mapping[str, float], seed: int | None = None
    ) -> None:
        check_probabilities(probabilities)
        self._readers = dict(readers)
        self._names = list(probabilities)
        self._probabilities = np.array([probabilities[name] for name in self._names], np.float64)
        self._probabilities /= self._probabilities.sum()
        self._rng = np.random.default_rng(seed)

    def next(self) -> Batch:
        name = self._names[int(self._rng.choice(len(self._names), p=self._probabilities))]
        return self._readers[name].next()

    def get_state(self) -> dict[str, Any]:
        readers = {name: reader.get_state() for name, reader in self._readers.items()}
        return {"rng": self._rng.bit_generator.state, "readers": readers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        for name, reader in self._readers.items():
            if name in state["readers"]:
                reader.set_state(state["readers"][name])

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def check_probabilities(probabilities: Mapping[Any, Any]) -> None:
    """Check that a mixture's shares are positive numbers that add up to 1.

    Raises:
        ConfigError: they are not.
    """
    for name, share in probabilities.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConfigError(f"input: the share of {name!r} is {share!r}; give a number above 0 and at most 1.")
    total = sum(probabilities.values())
    if abs(total - 1.0) > 1e-6:
        raise ConfigError(f"input: the shares {dict(probabilities)} add up to {total:g}; make it 1.")


class ShuffledReader(InputReader):
    """Keeps rows of many batches, and gives random ones of them: neighbours in a file no longer are in a batch.

    Once the buffer is full each batch that is read takes the place of as many random rows, which are the next batch.

    Args:
        reader: gives the rows.
        buffer_size: rows to keep.
        seed: of the draws.

    Example:
        >>> numbers = iter(SampleBatch({"obs": np.arange(2) + 2 * i}) for i in range(8))
        >>> batches = list(ShuffledReader(CallableReader(numbers), buffer_size=6, seed=0))
        >>> sorted(int(x) for batch in batches for x in batch["obs"]) == list(range(16))
        True
    """

    def __init__(self, reader: InputReader, buffer_size: int, seed: int | None = None) -> None:
        self._reader = reader
        self._size = buffer_size
        self._rng = np.random.default_rng(seed)
        self._buffers: dict[str, _Rows] = {}
        self._largest: tuple[dict[str, int], int, bool] = {}, 0, False  # batch: rows by policy, env steps, of several

    def next(self) -> Batch:
        while True:
            try:
                batch = self._reader.next()
            except EndOfInput:
                if not self._buffers:
                    raise
                return self._rest()
            is_multi = isinstance(batch, MultiAgentBatch)
            parts = batch.policy_batches if isinstance(batch, MultiAgentBatch) else {DEFAULT_POLICY_ID: batch}
            rows = {policy_id: part for policy_id, part in parts.items() if isinstance(part, SampleBatch)}
            sizes = {policy_id: part.num_rows for policy_id, part in rows.items()}
            if sum(sizes.values()) >= sum(self._largest[0].values()):
                self._largest = sizes, batch.count, is_multi
            if self._num_rows + sum(sizes.values()) <= self._size:
                for policy_id, part in rows.items():
                    self._buffers.setdefault(policy_id, _Rows()).add(part)
                continue
            drawn = {
                policy_id: self._buffers.setdefault(policy_id, _Rows()).exchange(part, self._rng)
                for policy_id, part in rows.items()
            }
            return MultiAgentBatch(drawn, batch.count) if is_multi else drawn[DEFAULT_POLICY_ID]

    @property
    def _num_rows(self) -> int:
        return sum(rows.num_rows for rows in self._buffers.values())

    def _rest(self) -> Batch:
        """A batch out of the buffer alone."""
        sizes, env_steps, is_multi = self._largest
        drawn = {}
        for policy_id, rows in list(self._buffers.items()):
            drawn[policy_id] = rows.take(max(1, sizes.get(policy_id, 0)), self._rng)
            if not rows.num_rows:
                del self._buffers[policy_id]
        return MultiAgentBatch(drawn, env_steps) if is_multi else drawn[DEFAULT_POLICY_ID]

    def get_state(self) -> dict[str, Any]:
        return {
            "rng": self._rng.bit_generator.state,
            "reader": self._reader.get_state(),
            "buffers": {policy_id: rows.joined().to_state() for policy_id, rows in self._buffers.items()},
            "largest": list(self._largest),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._reader.set_state(state["reader"])
        self._buffers = {}
        for policy_id, rows in state["buffers"].items():
            self._buffers[policy_id] = _Rows()
            self._buffers[policy_id].add(SampleBatch(rows["columns"]))
        sizes, env_steps, is_multi = state["largest"]
        self._largest = dict(sizes), int(env_steps), bool(is_multi)

    def close(self) -> None:
        self._reader.close()


class _Rows:
    """Rows of one policy, in arrays of their own."""

    def __init__(self) -> None:
        self._pieces: list[SampleBatch] = []

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self._pieces)

    def add(self, rows: SampleBatch) -> None:
        self._pieces.append(rows.copy())

    def joined(self) -> SampleBatch:
        """All rows; where sources differ in what else they recorded, the columns that all have."""
        if len(self._pieces) > 1:
            common = [name for name in self._pieces[0] if all(name in piece for piece in self._pieces)]
            alike = [SampleBatch({name: piece[name] for name in common}) for piece in self._pieces]
            self._pieces = [SampleBatch.concat_samples(alike)]
        return self._pieces[0]

    def exchange(self, rows: SampleBatch, rng: np.random.Generator) -> SampleBatch:
        """As many random rows, whose places the new ones take."""
        kept = self.joined() if self._pieces else rows
        fits = kept.keys() == rows.keys() and all(kept[name].shape[1:] == rows[name].shape[1:] for name in kept)
        if not (fits and self._pieces and kept.num_rows >= rows.num_rows):
            self.add(rows)
            return self.take(rows.num_rows, rng)
        places = rng.choice(kept.num_rows, rows.num_rows, replace=False)
        drawn = SampleBatch({name: column[places] for name, column in kept.items()})
        for name, column in kept.items():
            column[places] = rows[name]
        return drawn

    def take(self, count: int, rng: np.random.Generator) -> SampleBatch:
        """Random rows, which then are no longer here."""
        kept = self.joined()
        order = rng.permutation(kept.num_rows)
        drawn, left = (SampleBatch({name: of[rows] for name, of in kept.items()})
                       for rows in (order[:count], np.sort(order[count:])))  # fmt: skip
        self._pieces = [left] if left.num_rows else []
        return drawn


def callable_source(make: Callable[[Any], Any], context: Any) -> InputReader:
    """The reader that a user's function makes from an IOContext."""
    made = make(context)
    return made if isinstance(made, InputReader) else CallableReader(made)
