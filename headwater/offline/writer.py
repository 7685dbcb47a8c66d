"""OutputWriter: where sampled experience goes; ParquetWriter puts it into Parquet files."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.errors import require
from headwater.offline.tables import POLICY_ID, Column, Layout, rows_of, schema_of, to_table
from headwater.storage.files import sync_directory

MAX_FILE_SIZE = 64 * 1024 * 1024


class OutputWriter(ABC):
    """Takes batches as they are sampled. `write` and `flush` may raise OSError, and can be called again after it.

    Attributes:
        num_rows_lost: rows taken that an error kept from the disk.
    """

    num_rows_lost: int = 0

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take a batch; it may reach the disk later."""

    @abstractmethod
    def flush(self) -> None:
        """Bring to the disk what was taken, as far as it can be read on its own."""

    def close(self) -> None:
        """Flush, and write no more."""
        self.flush()

    def __enter__(self) -> OutputWriter:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class ParquetWriter(OutputWriter):
    """Writes rows into `output-<date>-worker<i>-<n>.parquet` in a directory (see `headwater.offline.tables`).

    A file grows under a hidden name and gets its own when it is complete: at a size, at an age, at a flush, or where
    the columns change. So whoever reads `*.parquet` sees whole files only, also after a crash.

    Args:
        path: the directory; made where it is missing.
        worker_index: the i.
        max_file_size_bytes: size on the disk, about, after which a new file begins.
        compress_columns: columns to compress (zstd); the others are stored as they are.
        metadata: JSON values that each file says about itself.
        row_group_rows: rows that are held back until they are written, and later read, together.
        max_file_age_s: seconds after which a file is completed at the next write: what a crash can lose.

    Example:
        >>> import tempfile, numpy as np
        >>> directory = tempfile.mkdtemp()
        >>> with ParquetWriter(directory) as writer:
        ...     writer.write(SampleBatch({"obs": np.zeros((3, 4)), "rewards": np.ones(3)}))
        >>> [path.name.endswith("-worker0-0.parquet") for path in Path(directory).iterdir()]
        [True]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        worker_index: int = 0,
        max_file_size_bytes: int = MAX_FILE_SIZE,
        compress_columns: Sequence[str] = (SampleBatch.OBS, SampleBatch.NEW_OBS),
        metadata: Mapping[str, Any] | None = None,
        row_group_rows: int = 4096,
        max_file_age_s: float = 600.0,
    ) -> None:
        self._pq = require("pyarrow.parquet", "offline")
        self.path = Path(path).expanduser()
        self.num_rows_lost = 0
        self._worker_index = worker_index
        self._max_size = max_file_size_bytes
        self._compress = frozenset(compress_columns)
        self._about = dict(metadata or {})
        self._row_group_rows = row_group_rows
        self._max_age = max_file_age_s
        self._date = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        self._number = 0
        self._layout: Layout | None = None
        self._schema: Any = None
        self._pending: list[dict[str, SampleBatch]] = []
        self._pending_rows = self._pending_bytes = 0
        self._file: _OpenFile | None = None
        self._begun_at = 0.0

    def write(self, batch: Batch) -> None:
        parts = rows_of(batch)
        if not parts:
            return
        layout = Layout.of(parts, isinstance(batch, MultiAgentBatch))
        if self._layout is None or not self._layout.holds(layout):
            self.flush()
            self._layout = layout if self._layout is None else self._layout.joined(layout)
            self._schema = schema_of(self._layout, self._about)
        if not self._pending and self._file is None:
            self._begun_at = time.monotonic()
        self._pending.append(parts)
        self._pending_rows += sum(rows.num_rows for rows in parts.values())
        self._pending_bytes += sum(rows.size_bytes() for rows in parts.values())
        if self._pending_rows >= self._row_group_rows or self._pending_bytes >= self._max_size // 4:
            self._write_pending()
        is_old = time.monotonic() - self._begun_at >= self._max_age
        if is_old or (self._file is not None and self._file.size >= self._max_size):
            self.flush()

    def flush(self) -> None:
        """Complete the present file; the next row begins another."""
        self._write_pending()
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
            os.rename(file.path, self._new_name())
            sync_directory(self.path)
        except Exception as error:
            self._lose(file, error)

    def _write_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rows, self._pending_rows, self._pending_bytes = self._pending_rows, 0, 0
        assert self._layout is not None
        try:
            if self._file is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._file = _OpenFile(self._pq, self.path, self._schema, self._compressed(self._layout))
            self._file.write(to_table(_joined(pending), self._layout, self._schema), rows)
        except Exception as error:
            file, self._file = self._file, None
            self.num_rows_lost += rows
            self._lose(file, error)

    def _lose(self, file: _OpenFile | None, error: Exception) -> None:
        """Remove what was begun, and say so by an OSError."""
        if file is not None:
            self.num_rows_lost += file.num_rows
            file.remove()
        if isinstance(error, OSError):
            raise error
        raise OSError(f"{self.path}: {type(error).__name__}: {error}") from error

    def _compressed(self, layout: Layout) -> dict[str, str]:
        chosen = {name: column for name, column in layout.fields.items() if name.rpartition("/")[2] in self._compress}
        codecs = {_leaf_path(name, column): "ZSTD" for name, column in chosen.items()}
        return codecs or {POLICY_ID: "NONE"}

    def _new_name(self) -> Path:
        while True:
            name = self.path / f"output-{self._date}-worker{self._worker_index}-{self._number}.parquet"
            self._number += 1
            if not name.exists():
                return name


class _OpenFile:
    """A Parquet file under its hidden name."""

    def __init__(self, pq: Any, directory: Path, schema: Any, compression: dict[str, str]) -> None:
        self.path = directory / f".output-{os.getpid()}-{secrets.token_hex(4)}.parquet-part"
        self.num_rows = 0
        self._stream: Any = None
        self._writer: Any = None
        try:
            self._stream = open(self.path, "xb")  # noqa: SIM115
            self._writer = pq.ParquetWriter(
                self._stream, schema, compression=compression, use_dictionary=[POLICY_ID], write_statistics=False,
                write_page_checksum=True, use_compliant_nested_type=True,
            )  # fmt: skip
        except BaseException:
            self.remove()
            raise

    @property
    def size(self) -> int:
        return self._stream.tell()

    def write(self, table: Any, rows: int) -> None:
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self.num_rows += rows

    def close(self) -> None:
        self._writer.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def remove(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _joined(pending: list[dict[str, SampleBatch]]) -> dict[str, SampleBatch]:
    parts: dict[str, list[SampleBatch]] = {}
    for rows_by_policy in pending:
        for policy_id, rows in rows_by_policy.items():
            parts.setdefault(policy_id, []).append(rows)
    return {policy_id: SampleBatch.concat_samples(rows) for policy_id, rows in parts.items()}


def _leaf_path(name: str, column: Column) -> str:
    """How Parquet calls the values of a field."""
    return f"{name}.list.element" if column.shape and column.size and not column.is_binary else name
