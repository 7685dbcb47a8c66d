"""InputReader: where experience comes from instead of an env; ParquetReader reads what ParquetWriter wrote."""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.errors import require
from headwater.offline.context import EndOfInput, OfflineError
from headwater.offline.tables import Layout, from_table

NEEDED = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS)


class InputReader(ABC):
    """Gives batches of experience; an iterator over them."""

    @abstractmethod
    def next(self) -> Batch:
        """The next batch.

        Raises:
            EndOfInput: there is no more; most readers begin anew instead.
        """

    def get_state(self) -> dict[str, Any]:
        """JSON values and arrays from which a like reader goes on; {} for readers that cannot tell."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on from a `get_state()`."""

    def close(self) -> None:  # noqa: B027
        """Read no more."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            try:
                batch = self.next()
            except EndOfInput:
                return
            yield batch


class Unit(NamedTuple):
    """Rows that are read together: `start` to `end` of what `source` names."""

    source: Any
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class UnitReader(InputReader):
    """Reads units, in order or shuffled anew for each epoch, and gives their rows as batches of a fixed size.

    Args:
        units: of this reader, at least one, each with rows.
        batch_rows: rows of a batch; None: each unit is a batch.
        shuffle_seed: of the order of the units; None: as they come.
        epochs: how often all rows are read; None: for ever.

    Attributes:
        num_epochs: how often all rows have been read.
    """

    def __init__(
        self, units: Sequence[Unit], batch_rows: int | None, shuffle_seed: int | None, epochs: int | None
    ) -> None:
        self._units = list(units)
        self._batch_rows = batch_rows
        self._shuffle_seed = shuffle_seed
        self._epochs = epochs
        self.num_epochs = 0
        self._index = self._row = 0
        self._order = self._new_order()
        self._loaded: Any = None

    @abstractmethod
    def _load(self, unit: Unit) -> Any:
        """The rows of a unit."""

    @abstractmethod
    def _cut(self, loaded: Any, start: int, end: int) -> Batch:
        """Some of the rows that were loaded, counted from the unit's first."""

    def next(self) -> Batch:
        pieces: list[Batch] = []
        missing = self._batch_rows
        while missing is None or missing > 0:
            if self._epochs is not None and self.num_epochs >= self._epochs:
                break
            unit = self._units[self._order[self._index]]
            if self._loaded is None:
                self._loaded = self._load(unit)
            end = unit.size if missing is None else min(unit.size, self._row + missing)
            piece = self._cut(self._loaded, self._row, end)
            if pieces and not _fit_together(pieces[-1], piece):
                break
            pieces.append(piece)
            taken, self._row = end - self._row, end
            if end == unit.size:
                self._advance()
            if missing is None:
                break
            missing -= taken
        if not pieces:
            raise EndOfInput(f"All rows were read {self.num_epochs} times, as `epochs` says. Leave it out for no end.")
        return SampleBatch.concat_samples(pieces)

    def _advance(self) -> None:
        self._loaded, self._row = None, 0
        self._index += 1
        if self._index == len(self._units):
            self._index = 0
            self.num_epochs += 1
            self._order = self._new_order()

    def _new_order(self) -> list[int]:
        count = len(self._units)
        if self._shuffle_seed is None:
            return list(range(count))
        return np.random.default_rng([self._shuffle_seed, self.num_epochs]).permutation(count).tolist()

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self.num_epochs, "unit": self._index, "row": self._row, "units": len(self._units)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `get_state()`; where the files are others than then, from the beginning of that epoch."""
        self.num_epochs = int(state["epoch"])
        same = int(state["units"]) == len(self._units)
        self._index, self._row = (int(state["unit"]), int(state["row"])) if same else (0, 0)
        self._order, self._loaded = self._new_order(), None


class ParquetReader(UnitReader):
    """Reads the Parquet files that headwater wrote, one row group at a time.

    Args:
        paths: a file, a directory (its `*.parquet`), a glob, or a list of these.
        batch_rows: rows of a batch; None: each row group is a batch.
        shuffle_seed: of the order in which row groups are read; None: in that of the files' names.
        shard, num_shards: read the `shard`-th of `num_shards` parts: each row is in exactly one of them.
        epochs: how often all rows are read; None: for ever.
        expects: {policy id: {column: shape of a row}}: what the rows have to fit; None: anything that is complete.
        needed: columns that have to be there.

    Raises:
        OfflineError: no file is there, or one is damaged, foreign or unfit; names it and says why.

    Example:
        >>> import tempfile
        >>> from headwater.offline.writer import ParquetWriter
        >>> rows = {"obs": np.arange(4.0), "actions": np.zeros(4), "rewards": np.ones(4)}
        >>> with ParquetWriter(directory := tempfile.mkdtemp()) as writer:
        ...     writer.write(SampleBatch(rows, terminateds=np.zeros(4, bool), truncateds=np.zeros(4, bool)))
        >>> reader = ParquetReader(directory, batch_rows=3)
        >>> reader.next()["obs"].tolist(), reader.next()["obs"].tolist(), reader.num_epochs
        ([0.0, 1.0, 2.0], [3.0, 0.0, 1.0], 1)
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        batch_rows: int | None = 1024,
        shuffle_seed: int | None = None,
        shard: int = 0,
        num_shards: int = 1,
        epochs: int | None = None,
        expects: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
        needed: Sequence[str] = NEEDED,
    ) -> None:
        self._pq = require("pyarrow.parquet", "offline")
        self.files = find_files(paths)
        self._layouts: dict[Path, Layout] = {}
        units = []
        for path in self.files:
            with _Opened(self._pq, path) as file:
                layout = file.layout()
                check_layout(path, layout, expects, needed)
                self._layouts[path] = layout
                units += [Unit((path, group), 0, rows) for group, rows in enumerate(file.group_sizes())]
        units = share(units, shard, num_shards)
        if not units:
            raise OfflineError(
                f"{paths}: the {len(self.files)} files hold no rows for shard {shard} of {num_shards}. Give files with "
                "more rows, or fewer workers."
            )
        super().__init__(units, batch_rows, shuffle_seed, epochs)

    def _load(self, unit: Unit) -> Any:
        path, group = unit.source
        with _Opened(self._pq, path) as file:
            return path, file.read(group).slice(unit.start, unit.size)

    def _cut(self, loaded: Any, start: int, end: int) -> Batch:
        path, table = loaded
        try:
            return from_table(table.slice(start, end - start), self._layouts[path])
        except ValueError as error:
            raise _unreadable(path, error) from error


def find_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that paths, directories and globs name, each once.

    Raises:
        OfflineError: one of them names none.
    """
    found: dict[Path, None] = {}
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise OfflineError("The list of experience files is empty. Name files, directories or globs in it.")
    for item in given:
        path = Path(item).expanduser()
        if path.is_dir():
            matches = sorted(path.glob("*.parquet"))
        elif path.is_file():
            matches = [path]
        else:
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
            matches = [match for match in matches if match.is_file()]
        if not matches:
            raise OfflineError(
                f"No experience file is at {str(item)!r}. Give a file, a directory of .parquet files, or a glob that "
                "matches some."
            )
        found.update(dict.fromkeys(matches))
    return list(found)


def share(units: Sequence[Unit], shard: int, num_shards: int) -> list[Unit]:
    """One shard's part of units: whole ones where there are enough for all shards, else a part of each.

    Example:
        >>> share([Unit("a", 0, 9), Unit("b", 0, 4), Unit("c", 0, 5)], 1, 2)
        [Unit(source='b', start=0, end=4)]
        >>> share([Unit("a", 0, 9)], 1, 2)
        [Unit(source='a', start=4, end=9)]
    """
    if not 0 <= shard < num_shards:
        raise OfflineError(f"There is no shard {shard} of {num_shards}; the first is 0.")
    units = [unit for unit in units if unit.size]
    if len(units) >= num_shards:
        return list(units[shard::num_shards])
    bounds = [(unit.size * shard // num_shards, unit.size * (shard + 1) // num_shards) for unit in units]
    parts = [Unit(of.source, of.start + a, of.start + b) for of, (a, b) in zip(units, bounds, strict=True)]
    return [part for part in parts if part.size]


def check_layout(
    where: Any,
    layout: Layout,
    expects: Mapping[str, Mapping[str, tuple[int, ...]]] | None,
    needed: Sequence[str] = NEEDED,
) -> None:
    """Check that rows have the columns that are needed, in the shapes that are expected.

    Raises:
        OfflineError: naming what does not fit.
    """
    for policy_id, columns in layout.policies.items():
        missing = [name for name in needed if name not in columns]
        if missing:
            raise OfflineError(f"{where}: it has no column {', '.join(map(repr, missing))}; it has "
                               f"{', '.join(columns)}. Record these columns too.")  # fmt: skip
        if expects is None:
            continue
        if policy_id not in expects:
            raise OfflineError(f"{where}: it has rows of a policy {policy_id!r}; this run's policies are "
                               f"{', '.join(sorted(expects))}. Name the policies as they were recorded.")  # fmt: skip
        for name, shape in expects[policy_id].items():
            if name not in columns:
                continue
            came = columns[name]
            flat = name == SampleBatch.ACTIONS and came.size == int(np.prod(shape))
            if came.shape != tuple(shape) and not flat:
                raise OfflineError(
                    f"{where}: its column {name!r} has rows of shape {list(came.shape)}, but {policy_id!r} takes "
                    f"{list(shape)}. Give files of the same env, recorded with the same observation settings."
                )


def _fit_together(a: Batch, b: Batch) -> bool:
    if isinstance(a, SampleBatch) and isinstance(b, SampleBatch):
        return a.keys() == b.keys() and all(a[name].shape[1:] == b[name].shape[1:] for name in a)
    if isinstance(a, MultiAgentBatch) and isinstance(b, MultiAgentBatch):
        both = a.policy_batches.keys() & b.policy_batches.keys()
        return all(_fit_together(a.policy_batches[policy_id], b.policy_batches[policy_id]) for policy_id in both)
    return False


class _Opened:
    """A Parquet file that is open; whatever is wrong with it is an OfflineError."""

    def __init__(self, pq: Any, path: Path) -> None:
        self._pq, self._path = pq, path

    def __enter__(self) -> _Opened:
        self._stream = self._try(open, self._path, "rb")
        try:
            self._file = self._try(self._pq.ParquetFile, self._stream, page_checksum_verification=True)
        except BaseException:
            self._stream.close()
            raise
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._file.close()
        self._stream.close()

    def layout(self) -> Layout:
        return self._try(lambda: Layout.from_schema(self._file.schema_arrow))

    def group_sizes(self) -> list[int]:
        metadata = self._file.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read(self, group: int) -> Any:
        return self._try(self._file.read_row_group, group, use_threads=False)

    def _try(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise _unreadable(self._path, error) from error


def _unreadable(path: Path, error: Exception) -> OfflineError:
    return OfflineError(
        f"{path} cannot be read: {error or type(error).__name__}. Remove it from the input, or give files that "
        "headwater's output wrote whole."
    )
