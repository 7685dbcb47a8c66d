"""SampleBatch and MultiAgentBatch: the experience that flows from samplers to learners.

Shape letters, used in every docstring of the library:

    T  time steps of a fragment        D  width of an encoded observation
    N  sub-envs of a vector env        A  width of a flat action
    B  rows of a batch                 K  width of a distribution's input
    M  sequences of a batch            S  width of a policy's state
    L  steps of a sequence

A sampler fills columns of shape `[T, N, ...]`; a batch holds the same rows flat, `[B, ...]`, in env-major order (all
steps of env 0, then of env 1, ...), so that the steps of one episode are neighbours. For policies with memory the rows
are folded into sequences, `[M, L, ...]` (see `headwater.data.sequences`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.config import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
from headwater.errors import HeadwaterError


class BatchError(HeadwaterError, ValueError):
    """Columns do not fit together, or a batch lacks what was asked of it."""


class Batch(ABC):
    """What flows through a plan: a `SampleBatch`, or a `MultiAgentBatch` of several."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Env steps held."""

    @abstractmethod
    def as_multi_agent(self) -> MultiAgentBatch:
        """This experience keyed by policy, sharing its arrays."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all columns."""

    @abstractmethod
    def timeslices(self, k: int) -> list[Any]:
        """Consecutive pieces of `k` env steps; the last may be shorter."""

    @abstractmethod
    def to_state(self) -> dict[str, Any]:
        """Nested dict of arrays and JSON values from which `batch_from_state` makes an equal batch."""


class SampleBatch(dict[str, Any], Batch):
    """Named columns of equal length: one row per env step of one policy, or per sequence of such steps.

    A batch is in sequences if it has a column `mask` [M, L]. Its columns are `[M, L, ...]` and `state_in` [M, S], its
    rows are sequences: they are sliced, joined and shuffled whole. Its `count` is that of the real steps.

    Example:
        >>> batch = SampleBatch({"obs": [[0.0], [1.0], [2.0]], "rewards": [1.0, 1.0, 1.0]})
        >>> batch.count, batch.slice(1, 3)["obs"].tolist()
        (3, [[1.0], [2.0]])

    Raises:
        BatchError: no column, a column name that is not a string, or columns of different lengths.
    """

    OBS = "obs"  # [B, *obs shape] encoded observation that the action answers
    NEW_OBS = "new_obs"  # [B, *obs shape] its successor: the final observation where the episode ends
    ACTIONS = "actions"  # [B] int64, [B, *action shape] float32, or [B, A]: as the distribution sampled them
    REWARDS = "rewards"  # [B] float32, paid for this row's action
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    TERMINATEDS = "terminateds"  # [B] bool: the episode truly ended with this row
    TRUNCATEDS = "truncateds"  # [B] bool: it was cut here, its successor still has a value
    INFOS = "infos"
    ACTION_DIST_INPUTS = "action_dist_inputs"  # [B, K] float32
    ACTION_PROB = "action_prob"
    ACTION_LOGP = "action_logp"  # [B] float32
    EPS_ID = "eps_id"  # [B] int64: the episode
    UNROLL_ID = "unroll_id"  # [B] int64: the fragment
    AGENT_INDEX = "agent_index"
    T = "t"  # [B] int64: the step in its episode, from 0
    VF_PREDS = "vf_preds"  # [B] float32
    ADVANTAGES = "advantages"  # [B] float32
    VALUE_TARGETS = "value_targets"  # [B] float32
    STATE_IN = "state_in"  # [M, S] float32: the memory's state before each sequence
    MASK = "mask"  # [B] or [M, L], bool or 0/1: steps that are real; absent = all

    def __init__(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), **more: Any) -> None:
        super().__init__()
        self.update(columns, **more)
        if not self:
            raise BatchError("A SampleBatch needs at least one column; it was given none.")

    @property
    def count(self) -> int:
        """Env steps: rows, or the real steps of sequences."""
        return int(np.count_nonzero(self[self.MASK])) if self.in_sequences else self.num_rows

    @property
    def num_rows(self) -> int:
        """The length of the columns."""
        for column in self.values():
            return len(column)
        return 0

    @property
    def in_sequences(self) -> bool:
        """Whether each row is a sequence of steps."""
        return self.MASK in self and np.ndim(self[self.MASK]) == 2

    def __setitem__(self, name: str, column: Any) -> None:
        if not isinstance(name, str):
            raise BatchError(f"Column names are strings; got {name!r} ({type(name).__name__}).")
        if isinstance(column, (list, tuple)):
            column = np.asarray(column)
        if np.ndim(column) == 0:
            raise BatchError(f"Column {name!r} is a scalar; a column holds one entry per row.")
        if len(self) > (name in self) and len(column) != self.num_rows:
            first = next(key for key in self if key != name)
            raise BatchError(
                f"Column {name!r} has {len(column)} rows where {first!r} has {self.num_rows}; columns of a batch are "
                "of equal length."
            )
        super().__setitem__(name, column)

    def update(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:  # type: ignore[override]
        """Set several columns, each checked as by `batch[name] = column`."""
        for name, column in dict(columns, **more).items():
            self[name] = column

    def columns(self, names: Sequence[str]) -> list[Any]:
        """The named columns, in that order."""
        return [self._column(name) for name in names]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per row."""
        for i in range(self.num_rows):
            yield {name: column[i] for name, column in self.items()}

    def slice(self, start: int, end: int) -> SampleBatch:
        """Rows `start` to `end` (exclusive) as views: writing into them writes here."""
        return _unchecked({name: column[start:end] for name, column in self.items()})

    def timeslices(self, k: int) -> list[SampleBatch]:
        """Views of `k` consecutive rows each; the last may be shorter.

        Sequences are not cut: they are shared out over the pieces by the step in which they begin.
        """
        _check_positive("timeslices", k)
        if not self.in_sequences:
            return [self.slice(i, i + k) for i in range(0, self.num_rows, k)]
        steps = np.count_nonzero(self[self.MASK], axis=1)
        piece = (np.cumsum(steps) - steps) // k
        return self._split(np.flatnonzero(np.diff(piece)) + 1)

    def split_by_episode(self) -> list[SampleBatch]:
        """Views of the runs of rows with one `eps_id` (and one `agent_index`, where there is one), in order."""
        changes = np.zeros(max(0, self.num_rows - 1), bool)
        for name in (self.EPS_ID, self.AGENT_INDEX):
            if name == self.EPS_ID or name in self:
                column = np.asarray(self._column(name))
                column = column[:, 0] if self.in_sequences else column
                changes |= column[1:] != column[:-1]
        return self._split(np.flatnonzero(changes) + 1)

    def shuffle(self, rng: np.random.Generator | None = None) -> SampleBatch:
        """Put the rows into random order, the same for every column; returns itself."""
        order = (rng or np.random.default_rng()).permutation(self.num_rows)
        for name, column in self.items():
            super().__setitem__(name, column[order])
        return self

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch: these rows, then those of `other`."""
        return SampleBatch.concat_samples([self, other])

    @staticmethod
    def concat_samples(samples: Sequence[Any]) -> Any:
        """All rows in order as one batch, of the kind of the first; a single non-empty batch is returned as it is.

        Sequences of different lengths are padded to the longest.

        Raises:
            BatchError: nothing given, different columns, or a mixture of batch kinds.
        """
        if not samples:
            raise BatchError("concat_samples needs at least one batch; it was given none.")
        if isinstance(samples[0], MultiAgentBatch):
            return MultiAgentBatch.concat_samples(samples)
        for sample in samples:
            if not isinstance(sample, SampleBatch):
                raise BatchError(f"Only SampleBatches join a SampleBatch; got {type(sample).__name__}.")
        filled = [sample for sample in samples if sample.num_rows] or [samples[0]]
        first = filled[0]
        for sample in filled[1:]:
            if sample.keys() != first.keys():
                raise BatchError(
                    f"Batches with different columns cannot be joined: {sorted(sample.keys() ^ first.keys())} are in "
                    "one only."
                )
        if len(filled) == 1:
            return first
        if first.in_sequences:
            length = max(sample[SampleBatch.MASK].shape[1] for sample in filled)
            filled = [sample._padded(length) for sample in filled]
        return _unchecked({name: np.concatenate([sample[name] for sample in filled]) for name in first})

    def copy(self, shallow: bool = False) -> SampleBatch:
        """A batch with its own arrays, or (`shallow`) with its own column table over the same arrays."""
        return _unchecked({name: column if shallow else np.array(column) for name, column in self.items()})

    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(column.nbytes) for column in self.values())

    def as_multi_agent(self) -> MultiAgentBatch:
        """These rows under the default policy's id."""
        return MultiAgentBatch({DEFAULT_POLICY_ID: self}, self.count)

    def to_state(self) -> dict[str, Any]:
        """See `Batch.to_state`.

        Raises:
            BatchError: a column holds Python objects, which no checkpoint can carry.
        """
        for name, column in self.items():
            if np.asarray(column).dtype.hasobject:
                raise BatchError(f"Column {name!r} holds Python objects and cannot be saved; drop it from the batch.")
        return {"columns": {name: np.asarray(column) for name, column in self.items()}}

    def _split(self, starts: NDArray[np.int64]) -> list[SampleBatch]:
        """Views of the rows before, between and behind `starts`; none where there are no rows."""
        bounds = [0, *starts.tolist(), self.num_rows]
        return [self.slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False) if a < b]

    def _padded(self, length: int) -> SampleBatch:
        """The same sequences, with zeros behind them up to a length."""
        more = length - self[self.MASK].shape[1]
        if not more:
            return self
        return _unchecked(
            {
                name: column
                if name == self.STATE_IN
                else np.pad(column, [(0, 0), (0, more), *[(0, 0)] * (column.ndim - 2)])
                for name, column in self.items()
            }
        )

    def _column(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise BatchError(f"The batch has no column {name!r}; it has {sorted(self)}.") from None

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {np.shape(column)}" for name, column in self.items())
        return f"SampleBatch({self.num_rows} {'sequences' if self.in_sequences else 'rows'}: {columns})"


class MultiAgentBatch(Batch):
    """Experience of several policies, gathered in the same env steps.

    Args:
        policy_batches: policy id -> rows of the agents which that policy plays.
        env_steps: env steps taken; agents act together, so this is at most the number of rows.

    Example:
        >>> rows = SampleBatch({"obs": [0, 1], "eps_id": [7, 7], "t": [0, 1]})
        >>> batch = MultiAgentBatch({"red": rows, "blue": rows}, env_steps=2)
        >>> batch.count, batch.agent_steps(), [part.count for part in batch.timeslices(1)]
        (2, 4, [1, 1])
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        for policy_id, batch in policy_batches.items():
            if not isinstance(batch, SampleBatch):
                raise BatchError(f"Policy {policy_id!r} needs a SampleBatch; got {type(batch).__name__}.")
        self.policy_batches = dict(policy_batches)
        self._env_steps = int(env_steps)

    @property
    def count(self) -> int:
        """Env steps, however many agents acted in each."""
        return self._env_steps

    def env_steps(self) -> int:
        """The same as `count`."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Rows of all policies together."""
        return sum(batch.count for batch in self.policy_batches.values())

    def as_multi_agent(self) -> MultiAgentBatch:
        """Itself."""
        return self

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> Batch:
        """The plain `SampleBatch` where the default policy is the only one, else a `MultiAgentBatch`."""
        if len(policy_batches) == 1 and DEFAULT_POLICY_ID in policy_batches:
            return policy_batches[DEFAULT_POLICY_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(samples: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
        """Rows of each policy in order; env steps add up."""
        if not samples:
            raise BatchError("concat_samples needs at least one batch; it was given none.")
        parts: dict[str, list[SampleBatch]] = {}
        for sample in samples:
            if not isinstance(sample, MultiAgentBatch):
                raise BatchError(f"Only MultiAgentBatches join a MultiAgentBatch; got {type(sample).__name__}.")
            for policy_id, batch in sample.policy_batches.items():
                parts.setdefault(policy_id, []).append(batch)
        joined = {policy_id: SampleBatch.concat_samples(batches) for policy_id, batches in parts.items()}
        return MultiAgentBatch(joined, sum(sample.count for sample in samples))

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Pieces of `k` env steps in lockstep: rows of one (`eps_id`, `t`) stay together. Needs these two columns.

        Raises:
            BatchError: a policy's rows are sequences, which cannot be cut in lockstep.
        """
        _check_positive("timeslices", k)
        for policy_id, batch in self.policy_batches.items():
            if batch.in_sequences:
                raise BatchError(
                    f"timeslices cuts steps, but the rows of {policy_id!r} are sequences of them. Take timeslices of "
                    "one policy's SampleBatch, which keeps sequences whole."
                )
        keys = {
            policy_id: np.stack(batch.columns([SampleBatch.EPS_ID, SampleBatch.T]), axis=1)
            for policy_id, batch in self.policy_batches.items()
        }
        if not keys:
            return []
        steps, step_of_row = np.unique(np.concatenate(list(keys.values())), axis=0, return_inverse=True)
        piece_of_row = np.split(step_of_row.reshape(-1) // k, np.cumsum([len(rows) for rows in keys.values()])[:-1])
        pieces = []
        for piece in range(-(-len(steps) // k)):
            parts = {}
            for (policy_id, batch), pieces_of_batch in zip(self.policy_batches.items(), piece_of_row, strict=True):
                chosen = np.flatnonzero(pieces_of_batch == piece)
                if len(chosen):
                    parts[policy_id] = _unchecked({name: column[chosen] for name, column in batch.items()})
            pieces.append(MultiAgentBatch(parts, min(k, len(steps) - piece * k)))
        return pieces

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A copy of every policy's batch, see `SampleBatch.copy`."""
        return MultiAgentBatch({pid: batch.copy(shallow) for pid, batch in self.policy_batches.items()}, self.count)

    def size_bytes(self) -> int:
        """Bytes of all columns of all policies."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def to_state(self) -> dict[str, Any]:
        """See `Batch.to_state`."""
        policies = {policy_id: batch.to_state() for policy_id, batch in self.policy_batches.items()}
        return {"policies": policies, "env_steps": self._env_steps}

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.count} env steps: {self.policy_batches})"


def batch_from_state(state: Mapping[str, Any]) -> Batch:
    """The batch whose `to_state()` was `state`."""
    if "columns" in state:
        return SampleBatch(state["columns"])
    parts = {policy_id: SampleBatch(part["columns"]) for policy_id, part in state["policies"].items()}
    return MultiAgentBatch(parts, state["env_steps"])


def _unchecked(columns: dict[str, Any]) -> SampleBatch:
    """A batch over columns that are known to fit: taken from a batch, all in the same way."""
    batch = SampleBatch.__new__(SampleBatch)
    dict.update(batch, columns)
    return batch


def _check_positive(what: str, k: int) -> None:
    if k < 1:
        raise BatchError(f"{what} needs pieces of at least one step; got {k}.")
