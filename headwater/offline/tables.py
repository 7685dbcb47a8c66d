"""Batches as Arrow tables, and back without any change: the layout of headwater's Parquet files.

A row of the table is a step of one agent. A column `[B, ...]` is a list of fixed size per row (bytes of images: fixed
binary); dtype and shape stand in the schema's metadata under `headwater`, as JSON

    {"format": "headwater-experience", "version": 1, "multi_agent": bool, "about": {...},
     "policies": {policy id: {column: {"dtype": ..., "shape": [...], "field": name in the table}}}}

Rows of several policies share one table with a column `policy_id`, in the order of `(eps_id, t)`. Where policies differ
in a column's dtype or shape each has a field of its own, `POLICY/COLUMN`, which holds zeros in the others' rows.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch
from headwater.errors import require
from headwater.offline.context import OfflineError

FORMAT, VERSION = "headwater-experience", 1
METADATA_KEY = b"headwater"
POLICY_ID = "policy_id"
_DTYPES = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
           "float16", "float32", "float64"}  # fmt: skip

logger = logging.getLogger(__name__)
_left_out: set[str] = set()


class Column(NamedTuple):
    """What is in one column: `[B, *shape]` of `dtype`."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return math.prod(self.shape)

    @property
    def is_binary(self) -> bool:
        """Whether rows are stored as bytes: lists of single bytes are far slower to write and to read."""
        return self.dtype == "uint8" and len(self.shape) > 1 and self.size > 0


@dataclass(frozen=True)
class Layout:
    """What each policy's rows consist of.

    Example:
        >>> rows = SampleBatch({"obs": np.zeros((3, 4), np.float32), "rewards": np.ones(3)})
        >>> layout = Layout.of({"default_policy": rows}, multi_agent=False)
        >>> layout.fields
        {'obs': Column(dtype='float32', shape=(4,)), 'rewards': Column(dtype='float64', shape=())}
    """

    policies: Mapping[str, Mapping[str, Column]]
    multi_agent: bool

    @classmethod
    def of(cls, parts: Mapping[str, SampleBatch], multi_agent: bool) -> Layout:
        """The layout of rows by policy id."""
        policies = {
            policy_id: {name: Column(column.dtype.name, column.shape[1:]) for name, column in rows.items()}
            for policy_id, rows in parts.items()
        }
        return cls(policies, multi_agent)

    def field(self, policy_id: str, name: str) -> str:
        """Where in the table a policy's column is."""
        column = self.policies[policy_id][name]
        same = all(columns.get(name, column) == column for columns in self.policies.values())
        return name if same else f"{policy_id}/{name}"

    @property
    def fields(self) -> dict[str, Column]:
        """Fields of the table, but for `policy_id`."""
        return {
            self.field(policy_id, name): column
            for policy_id, columns in self.policies.items()
            for name, column in columns.items()
        }

    def holds(self, other: Layout) -> bool:
        """Whether rows of the other layout fit into a table of this one."""
        return self.multi_agent == other.multi_agent and all(
            self.policies.get(policy_id) == columns for policy_id, columns in other.policies.items()
        )

    def joined(self, other: Layout) -> Layout:
        """The other's policies, and those of this one that it does not have; the other alone, if of another kind."""
        if self.multi_agent != other.multi_agent:
            return other
        return Layout({**self.policies, **other.policies}, other.multi_agent)

    def to_json(self, about: Mapping[str, Any]) -> bytes:
        """The schema's metadata."""
        policies = {
            policy_id: {
                name: {"dtype": column.dtype, "shape": list(column.shape), "field": self.field(policy_id, name)}
                for name, column in columns.items()
            }
            for policy_id, columns in self.policies.items()
        }
        content = {"format": FORMAT, "version": VERSION, "multi_agent": self.multi_agent, "about": dict(about)}
        return json.dumps(content | {"policies": policies}).encode()

    @classmethod
    def from_schema(cls, schema: Any) -> Layout:
        """The layout of a file.

        Raises:
            ValueError: the file is not headwater's, or does not hold what its metadata says.
        """
        text = (schema.metadata or {}).get(METADATA_KEY)
        if text is None:
            raise ValueError("it was not written by headwater: its schema has no metadata 'headwater'")
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if content.get("version") != VERSION:
            raise ValueError(f"it has version {content.get('version')!r} of the format; this headwater reads {VERSION}")
        policies: dict[str, dict[str, Column]] = {}
        for policy_id, columns in content["policies"].items():
            policies[policy_id] = {}
            for name, column in columns.items():
                shape = tuple(int(side) for side in column["shape"])
                if column["dtype"] not in _DTYPES or min(shape, default=0) < 0:
                    raise ValueError(f"its column {name!r} is {column['dtype']}{list(shape)}, which no column can be")
                policies[policy_id][name] = Column(column["dtype"], shape)
        layout = cls(policies, bool(content["multi_agent"]))
        for name, column in layout.fields.items():
            index = schema.get_field_index(name)
            expected = arrow_type(column)
            if index < 0 or not schema.field(index).type.equals(expected):
                came = "missing" if index < 0 else str(schema.field(index).type)
                raise ValueError(f"its column {name!r} is {came}, where its metadata says {expected}")
        if layout.multi_agent and schema.get_field_index(POLICY_ID) < 0:
            raise ValueError(f"it has no column {POLICY_ID!r}")
        return layout


def arrow_type(column: Column) -> Any:
    """The Arrow type of a field."""
    pa = require("pyarrow", "offline")
    if column.size == 0:
        return pa.null()
    if column.is_binary:
        return pa.binary(column.size)
    dtype = pa.from_numpy_dtype(np.dtype(column.dtype))
    return pa.list_(dtype, column.size) if column.shape else dtype


def rows_of(batch: Batch) -> dict[str, SampleBatch]:
    """The real steps of a batch by policy id, without what a table cannot hold; sequences become rows again."""
    parts = batch.as_multi_agent().policy_batches if isinstance(batch, MultiAgentBatch) else {DEFAULT_POLICY_ID: batch}
    rows = {policy_id: _rows(part) for policy_id, part in parts.items() if isinstance(part, SampleBatch)}
    return {policy_id: part for policy_id, part in rows.items() if part.num_rows}


def _rows(batch: SampleBatch) -> SampleBatch:
    columns = {name: np.asarray(column) for name, column in batch.items()}
    if batch.in_sequences:
        mask = np.asarray(columns.pop(SampleBatch.MASK)) > 0
        columns.pop(SampleBatch.STATE_IN, None)
        columns = {name: column[mask] for name, column in columns.items()}
    kept = {}
    for name, column in columns.items():
        native = column.astype(column.dtype.newbyteorder("="), copy=False)
        if native.dtype.name in _DTYPES:
            kept[name] = native
        elif name not in _left_out:
            _left_out.add(name)
            logger.warning("Column %r holds %s, which no experience file can: it is left out.", name, column.dtype)
    if not kept:
        raise OfflineError(f"The batch has no column of numbers to write: {batch!r}. Give it obs, actions and rewards.")
    return SampleBatch(kept)


def to_table(parts: Mapping[str, SampleBatch], layout: Layout, schema: Any) -> Any:
    """A table of rows by policy id, whose layout `layout` holds; `schema` is that of `schema_of(layout)`."""
    pa = require("pyarrow", "offline")
    total = sum(rows.num_rows for rows in parts.values())
    order = _lockstep_order(parts) if layout.multi_agent else None
    arrays = []
    for name, column in layout.fields.items():
        if len(parts) == 1 and name in (rows := next(iter(parts.values()))):
            data = np.asarray(rows[name])
        else:
            data = np.zeros((total, *column.shape), column.dtype)
            start = 0
            for policy_id, rows in parts.items():
                own = name.removeprefix(f"{policy_id}/")
                if own in rows and layout.field(policy_id, own) == name:
                    data[start : start + rows.num_rows] = rows[own]
                start += rows.num_rows
        arrays.append(_to_arrow(data if order is None else data[order], column))
    if layout.multi_agent:
        ids = np.repeat(list(parts), [rows.num_rows for rows in parts.values()])
        arrays.append(pa.array(ids if order is None else ids[order], pa.string()))
    return pa.Table.from_arrays(arrays, schema=schema)


def schema_of(layout: Layout, about: Mapping[str, Any]) -> Any:
    """The table's schema, with its metadata."""
    pa = require("pyarrow", "offline")
    fields = [pa.field(name, arrow_type(column)) for name, column in layout.fields.items()]
    if layout.multi_agent:
        fields.append(pa.field(POLICY_ID, pa.string()))
    return pa.schema(fields, metadata={METADATA_KEY: layout.to_json(about)})


def from_table(table: Any, layout: Layout) -> Batch:
    """The batch of a table's rows; its arrays are writable.

    Raises:
        ValueError: a value is missing.
    """
    fields = {name: _from_arrow(table.column(name), column) for name, column in layout.fields.items()}
    if not layout.multi_agent:
        [policy_id] = layout.policies
        return SampleBatch({name: fields[layout.field(policy_id, name)] for name in layout.policies[policy_id]})
    ids = np.asarray(table.column(POLICY_ID).to_pylist(), object)
    parts = {}
    for policy_id, columns in layout.policies.items():
        chosen = np.flatnonzero(ids == policy_id)
        if len(chosen):
            rows = SampleBatch({name: fields[layout.field(policy_id, name)][chosen] for name in columns})
            parts[policy_id] = _agent_by_agent(rows)
    return MultiAgentBatch(parts, _env_steps(parts))


def _to_arrow(data: NDArray[Any], column: Column) -> Any:
    pa = require("pyarrow", "offline")
    if column.size == 0:
        return pa.nulls(len(data))
    data = np.ascontiguousarray(data)
    if column.is_binary:
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(column.size), len(data), [None, pa.py_buffer(data)])
    flat = pa.array(data.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, column.size) if column.shape else flat


def _from_arrow(chunks: Any, column: Column) -> NDArray[Any]:
    pa = require("pyarrow", "offline")
    if column.size == 0:
        return np.zeros((len(chunks), *column.shape), column.dtype)
    if chunks.null_count:
        raise ValueError("a value is missing")
    parts = [np.zeros((0, *column.shape), column.dtype)]
    for array in chunks.chunks:
        if column.is_binary:
            start = array.offset * column.size
            data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * column.size, start)
        else:
            flat = array.flatten() if isinstance(array, pa.FixedSizeListArray) else array
            data = flat.to_numpy(zero_copy_only=False)
        parts.append(data.reshape(len(array), *column.shape))
    return np.concatenate(parts).astype(column.dtype, copy=False)


def _lockstep_order(parts: Mapping[str, SampleBatch]) -> NDArray[np.int64] | None:
    """Rows that were taken in one env step side by side, so that pieces of a table are of whole steps."""
    if any(SampleBatch.EPS_ID not in rows or SampleBatch.T not in rows for rows in parts.values()):
        return None
    keys = [np.concatenate([rows[name] for rows in parts.values()]) for name in (SampleBatch.T, SampleBatch.EPS_ID)]
    return np.lexsort(keys)


def _agent_by_agent(rows: SampleBatch) -> SampleBatch:
    """Rows of one agent's episode side by side again, in order of time."""
    if SampleBatch.EPS_ID not in rows or SampleBatch.T not in rows:
        return rows
    agents = rows.get(SampleBatch.AGENT_INDEX, np.zeros(rows.num_rows, np.int64))
    order = np.lexsort((rows[SampleBatch.T], agents, rows[SampleBatch.EPS_ID]))
    return SampleBatch({name: column[order] for name, column in rows.items()})


def _env_steps(parts: Mapping[str, SampleBatch]) -> int:
    """Distinct env steps, as far as the rows tell."""
    if any(SampleBatch.EPS_ID not in rows or SampleBatch.T not in rows for rows in parts.values()):
        return max((rows.num_rows for rows in parts.values()), default=0)
    steps = [np.stack(rows.columns([SampleBatch.EPS_ID, SampleBatch.T]), axis=1) for rows in parts.values()]
    return len(np.unique(np.concatenate(steps), axis=0)) if steps else 0
