"""The result files of a run: `result.jsonl`, `progress.csv`, and once a start `params.json` and `env.json`."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwater.storage.files import AppendFile, replace_file
from headwater.telemetry.environment import describe_environment
from headwater.telemetry.flat_result import flatten_result, result_to_json

_logger = logging.getLogger(__name__)

# A new column rewrites the file; who adds one with each row would pay for ever longer files.
_MAX_HEADER_CHANGES = 50


class ResultWriter:
    """Writes each result as it comes; a file that cannot be written costs a warning, never the run.

    `result.jsonl` has one result a line, complete but for the config. `progress.csv` has its numbers and texts, nested
    keys joined by "/", NaN as an empty cell; a key that a later result brings becomes a column on the right.
    Rows reach the system at once and are not forced to the disk: a killed process loses nothing, a power cut seconds.

    Attributes:
        num_write_errors: How many writes failed.

    Example:
        >>> import tempfile
        >>> run_dir = Path(tempfile.mkdtemp())
        >>> writer = ResultWriter(run_dir, {"lr": 0.1})
        >>> writer.on_result({"training_iteration": 1, "episode_reward_mean": 20.5})
        >>> writer.close()
        >>> read_results(run_dir)
        [{'training_iteration': 1, 'episode_reward_mean': 20.5}]
    """

    def __init__(self, run_dir: str | Path, config: Any = None) -> None:
        """Write `params.json` and `env.json`; rows are added to what the files have.

        Args:
            run_dir: An existing directory.
            config: A config object, or a mapping.
        """
        self.run_dir = Path(run_dir)
        self.num_write_errors = 0
        self._rows = AppendFile(self.run_dir / "result.jsonl")
        self._table = AppendFile(self.run_dir / "progress.csv")
        self._columns: list[str] = []
        self._known: set[str] = set()
        self._header_changes = 0
        self._guard("params.json", self._write_params, config)
        self._guard("env.json", self._write_environment)

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Add one result to the files."""
        self._guard("result.jsonl", self._add_row, result)
        self._guard("progress.csv", self._add_table_row, flatten_result(result))

    def on_restore(self, training_iteration: int) -> None:
        """Drop the rows after an iteration: the run goes on from there, and makes them anew."""
        self.close()
        self._guard("result.jsonl", _drop_rows_after, self._rows.path, training_iteration, _iteration_of_json())
        self._guard("progress.csv", _drop_rows_after, self._table.path, training_iteration, _iteration_of_csv())

    def close(self) -> None:
        """Close the files; a later result opens them again."""
        self._rows.close()
        self._table.close()
        self._columns, self._known = [], set()

    def _guard(self, name: str, write: Callable[..., None], *args: Any) -> None:
        try:
            write(*args)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            self.num_write_errors += 1
            if self.num_write_errors == 1:
                _logger.warning(
                    "%s cannot be written: %s. Training goes on; later failures are only counted.",
                    self.run_dir / name,
                    getattr(error, "strerror", None) or error,
                )

    def _add_row(self, result: Mapping[str, Any]) -> None:
        self._rows.append(result_to_json(result).encode() + b"\n")

    def _add_table_row(self, row: dict[str, Any]) -> None:
        if not self._columns:
            self._read_header(row)
        if not self._known.issuperset(row) and self._header_changes < _MAX_HEADER_CHANGES:
            self._add_columns([name for name in row if name not in self._known])
        self._table.append(_csv_line([_cell(row.get(name)) for name in self._columns]))

    def _read_header(self, row: Mapping[str, Any]) -> None:
        columns = list(row)
        if self._table.is_empty:
            self._table.append(_csv_line(columns))
        else:
            with open(self._table.path, encoding="utf-8", newline="") as file:
                columns = next(csv.reader(file))
        self._columns, self._known = columns, set(columns)

    def _add_columns(self, names: list[str]) -> None:
        self._header_changes += 1
        self._table.close()
        _, *rows = self._table.path.read_bytes().splitlines(keepends=True)
        columns = self._columns + names
        blanks = b"," * len(names) + b"\n"
        replace_file(self._table.path, b"".join([_csv_line(columns), *(row.rstrip(b"\r\n") + blanks for row in rows)]))
        self._columns, self._known = columns, set(columns)
        if self._header_changes == _MAX_HEADER_CHANGES:
            _logger.warning("progress.csv takes no more columns after %s; result.jsonl has everything.", names[-1])

    def _write_params(self, config: Any) -> None:
        settings = config.to_dict() if hasattr(config, "to_dict") else dict(config or {})
        text = json.dumps(_without_infinities(settings), indent=2, allow_nan=False, default=str)
        replace_file(self.run_dir / "params.json", text.encode() + b"\n")

    def _write_environment(self) -> None:
        """Say what runs this; of a resumed run the first start stays, and each later one is added."""
        path, start = self.run_dir / "env.json", describe_environment()
        try:
            first = json.loads(path.read_bytes())
            first["resumes"] = [*first.get("resumes", []), start]
        except (OSError, ValueError, AttributeError, TypeError):
            first = start
        replace_file(path, json.dumps(first, indent=2).encode() + b"\n")


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Read `result.jsonl`, or the one of a run directory; NaN is None in it.

    A last line that a killed process left half written is passed over, any other damaged line with a warning.

    Raises:
        FileNotFoundError: There is none.
    """
    path = Path(path)
    path = path / "result.jsonl" if path.is_dir() else path
    lines = path.read_bytes().split(b"\n")
    results = []
    for number, line in enumerate(lines, 1):
        try:
            result = json.loads(line)
            if not isinstance(result, dict):
                raise ValueError("no JSON object")
            results.append(result)
        except (ValueError, RecursionError) as error:
            if line and number < len(lines):
                _logger.warning("%s, line %d is damaged and passed over: %s", path, number, error)
    return results


def _csv_line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None or value != value:
        return ""
    return " ".join(value.split()) if isinstance(value, str) else value  # a row is one line


def _without_infinities(value: Any) -> Any:
    """Write infinite settings as text, which a config reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _without_infinities(part) for key, part in value.items()}
    return [_without_infinities(part) for part in value] if isinstance(value, (list, tuple)) else value


def _drop_rows_after(path: Path, iteration: int, iteration_of: Callable[[bytes], int]) -> None:
    """Cut a file of rows before the first one that is after `iteration`."""
    if not path.is_file():
        return
    position = 0
    with open(path, "r+b") as file:
        for line in file:
            try:
                if iteration_of(line) > iteration:
                    file.truncate(position)
                    return
            except (ValueError, KeyError, IndexError, TypeError):
                pass  # a damaged or foreign line says nothing
            position += len(line)


def _iteration_of_json() -> Callable[[bytes], int]:
    return lambda line: int(json.loads(line)["training_iteration"])


def _iteration_of_csv() -> Callable[[bytes], int]:
    column: list[int] = []

    def iteration_of(line: bytes) -> int:
        cells = next(csv.reader([line.decode()]))
        if not column:
            column.append(cells.index("training_iteration"))
            return 0
        return int(cells[column[0]])

    return iteration_of
