"""Readers made of other readers: mixtures, a shuffle buffer, and whatever a user's own object gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headwater.data.sample_batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline.context import EndOfInput, OfflineError
from headwater.offline.reader import InputReader

_Sizes = tuple[dict[str, int], int, bool]  # rows by policy, env steps, whether of several policies


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

    Args:
        reader: gives the rows; each of its batches is answered by one of as many rows, once the buffer is full.
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
        self._buffers: dict[str, SampleBatch] = {}
        self._sizes: _Sizes = {}, 0, False  # of the last batch
        self._largest = self._sizes

    def next(self) -> Batch:
        while True:
            try:
                batch = self._reader.next()
            except EndOfInput:
                self._sizes = self._largest  # the last batch may have been a small rest
                return self._drawn() if self._buffers else self._end()
            self._add(batch)
            if sum(rows.num_rows for rows in self._buffers.values()) >= self._size:
                return self._drawn()

    def _end(self) -> Batch:
        raise EndOfInput("All rows were read and given.")

    def _add(self, batch: Batch) -> None:
        is_multi = isinstance(batch, MultiAgentBatch)
        parts = batch.policy_batches if isinstance(batch, MultiAgentBatch) else {DEFAULT_POLICY_ID: batch}
        sizes = {}
        for policy_id, rows in parts.items():
            assert isinstance(rows, SampleBatch)
            sizes[policy_id] = rows.num_rows
            kept = self._buffers.get(policy_id)
            if kept is not None and kept.keys() != rows.keys():  # sources differ in what else they recorded
                common = [name for name in kept if name in rows]
                kept, rows = (SampleBatch({name: of[name] for name in common}) for of in (kept, rows))
            self._buffers[policy_id] = rows if kept is None else SampleBatch.concat_samples([kept, rows])
        self._sizes = sizes, batch.count, is_multi
        if sum(sizes.values()) >= sum(self._largest[0].values()):
            self._largest = self._sizes

    def _drawn(self) -> Batch:
        sizes, env_steps, is_multi = self._sizes
        parts = {}
        for policy_id, rows in list(self._buffers.items()):
            count = min(sizes.get(policy_id, 0), rows.num_rows)
            if not count:
                continue
            order = self._rng.permutation(rows.num_rows)
            parts[policy_id] = SampleBatch({name: column[order[:count]] for name, column in rows.items()})
            rest = np.sort(order[count:])
            if len(rest):
                self._buffers[policy_id] = SampleBatch({name: column[rest] for name, column in rows.items()})
            else:
                del self._buffers[policy_id]
        if not parts:  # what is left is of policies that the last batch had no rows of
            parts, self._buffers = self._buffers, {}
        if is_multi:
            return MultiAgentBatch(parts, env_steps)
        return parts[DEFAULT_POLICY_ID]

    def get_state(self) -> dict[str, Any]:
        return {
            "rng": self._rng.bit_generator.state,
            "reader": self._reader.get_state(),
            "buffers": {policy_id: rows.to_state() for policy_id, rows in self._buffers.items()},
            "sizes": list(self._sizes),
            "largest": list(self._largest),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._reader.set_state(state["reader"])
        self._buffers = {policy_id: SampleBatch(rows["columns"]) for policy_id, rows in state["buffers"].items()}
        self._sizes, self._largest = (
            (dict(sizes), int(env_steps), bool(is_multi))
            for sizes, env_steps, is_multi in (state["sizes"], state["largest"])
        )

    def close(self) -> None:
        self._reader.close()


def callable_source(make: Callable[[Any], Any], context: Any) -> InputReader:
    """The reader that a user's function makes from an IOContext."""
    made = make(context)
    return made if isinstance(made, InputReader) else CallableReader(made)
