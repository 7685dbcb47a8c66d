"""Trajectory: one fragment of experience, the `[T, N, ...]` columns that a sampler fills and a policy postprocesses.

    sampler -> Trajectory -> Policy.postprocess_trajectory -> SampleBatch (-> folded into sequences, with memory)

Columns are indexed [time, env] while their memory runs env by env, so that flattening a whole fragment into rows (each
env's steps in order) copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.data.sequences import fold
from headwater.envs.vector_env import StepResult


class ValueFunction(Protocol):
    """What a trajectory needs of a policy."""

    def values(self, obs: NDArray, state: NDArray | None = None) -> NDArray[np.float32]:
        """[B, ...] observations, with memory the states [B, S] before them -> [B] state values."""


class Memory(NamedTuple):
    """What a policy with memory remembered during a fragment, where that is needed afterwards."""

    every: int  # L
    grid: NDArray[np.bool_]  # [T, N] or [T, 1]: rows at which a sequence begins if none does between
    state_before: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray]  # (t, n), each [M], of the grid -> [M, S]
    final_states: NDArray[np.float32]  # [M, S] after the `final_rows`
    last_state: NDArray[np.float32]  # [N, S] after the last row


def time_major(num_envs: int, capacity: int, shape: tuple[int, ...], dtype: Any) -> NDArray:
    """An uninitialised `[capacity, num_envs, *shape]` column in env-major memory."""
    return np.empty((num_envs, capacity, *shape), dtype).swapaxes(0, 1)


class Trajectory:
    """A fragment of T steps of N envs.

    Attributes:
        columns: name -> `[T, N, ...]`; obs, actions, rewards, terminateds, truncateds, action_dist_inputs, eps_id,
            unroll_id, and what postprocessing adds.
        valid: `[T, N]` bool, False where a row is no transition (an autoreset row, or a dropped episode); None = all.
        final_rows: `[M, 2]` (t, n) of the rows after which nothing belongs to them: those that ended an episode, and
            those where a piece of one ends that lies between others.
        final_obs: `[M, ...]` the observations after those rows, encoded as `obs` is.
        last_obs: `[N, ...]` the observations after the last row, encoded as `obs` is.
        memory: of a policy with memory; `vf_preds` is then among the columns from the start.
    """

    def __init__(
        self,
        columns: dict[str, NDArray],
        last_obs: NDArray,
        final_rows: NDArray[np.int64],
        final_obs: NDArray,
        valid: NDArray[np.bool_] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.columns = columns
        self.last_obs = last_obs
        self.final_rows = final_rows
        self.final_obs = final_obs
        self.valid = valid
        self.memory = memory

    @property
    def shape(self) -> tuple[int, int]:
        """(T, N)."""
        return self.columns[SampleBatch.REWARDS].shape

    @property
    def count(self) -> int:
        """Transitions: rows that are valid."""
        return int(np.prod(self.shape)) if self.valid is None else int(self.valid.sum())

    def __getitem__(self, name: str) -> NDArray:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def add(self, name: str, column: NDArray) -> None:
        """Add (or replace) a `[T, N, ...]` column."""
        if column.shape[:2] != self.shape:
            raise ValueError(f"column {name!r} has shape {column.shape}; a fragment's columns begin with {self.shape}")
        self.columns[name] = column

    def rows(self, name: str) -> NDArray:
        """All rows of a column, valid or not, env by env: `[N * T, ...]`, a view where the fragment is full."""
        column = self.columns[name].swapaxes(0, 1)
        return column.reshape(-1, *column.shape[2:])

    def from_rows(self, rows: NDArray) -> NDArray:
        """`[N * T, ...]` results of a batched call over `rows(...)`, as a `[T, N, ...]` column."""
        steps, envs = self.shape
        return rows.reshape(envs, steps, *rows.shape[1:]).swapaxes(0, 1)

    @property
    def cuts(self) -> NDArray[np.bool_]:
        """`[T, N]` bool: nothing after the row belongs to it (episode end, or the fragment's last row)."""
        cuts = self[SampleBatch.TERMINATEDS] | self[SampleBatch.TRUNCATEDS]
        cuts[-1] = True
        cuts[self.final_rows[:, 0], self.final_rows[:, 1]] = True
        if self.valid is not None:
            cuts[:-1] |= ~self.valid[1:]
        return cuts

    def values(self, policy: ValueFunction) -> NDArray[np.float32]:
        """V of each row's own observation, `[T, N]`; with memory they came with the actions."""
        if self.memory is not None:
            return self[SampleBatch.VF_PREDS]
        return self.from_rows(policy.values(self.rows(SampleBatch.OBS)))

    def next_values(self, values: NDArray[np.float32], policy: ValueFunction) -> NDArray[np.float32]:
        """V of each row's successor observation: `[T, N]`, 0 after a termination.

        The successor of a truncated row is its final observation, that of the last row the observation that came after
        it; never the first observation of the next episode.

        Args:
            values: `[T, N]` V of each row's own observation.
            policy: gives the values of the observations that are not rows.
        """
        terminateds = self[SampleBatch.TERMINATEDS]
        t, n = self.final_rows.T
        is_truncated = ~terminateds[t, n]
        state = None
        if self.memory is not None:
            state = np.concatenate([self.memory.last_state, self.memory.final_states[is_truncated]])
        extra = policy.values(np.concatenate([self.last_obs, self.final_obs[is_truncated]]), state)
        envs = self.shape[1]
        next_values = np.empty_like(values)
        next_values[:-1] = values[1:]
        next_values[-1] = extra[:envs]
        next_values[t[is_truncated], n[is_truncated]] = extra[envs:]
        next_values[terminateds] = 0.0
        return next_values

    def new_obs(self) -> NDArray:
        """Each row's successor observation, `[T, N, ...]`: made on demand, as on-policy losses do not need it."""
        obs = self[SampleBatch.OBS]
        new_obs = time_major(obs.shape[1], obs.shape[0], obs.shape[2:], obs.dtype)
        new_obs[:-1] = obs[1:]
        new_obs[-1] = self.last_obs
        t, n = self.final_rows.T
        new_obs[t, n] = self.final_obs
        return new_obs

    def to_batch(self) -> SampleBatch:
        """The valid rows, env by env and each env's in order of time."""
        return SampleBatch({name: self._valid_rows(self.columns[name]) for name in self.columns})

    def fold(self, batch: SampleBatch) -> SampleBatch:
        """`to_batch()` in sequences, with the state before each; as it is for a policy without memory.

        A sequence begins where an episode does, and every L steps of the fragment; no row that is not valid lies in it.
        """
        if self.memory is None:
            return batch
        begins = np.array(np.broadcast_to(self.memory.grid, self.shape))
        on_grid = begins.copy()
        begins[1:] |= self.cuts[:-1]
        if self.valid is not None:
            begins[1:] |= ~self.valid[:-1]
            begins &= self.valid
        n, t = np.nonzero(begins.T)
        known = on_grid[t, n]
        states = np.zeros((len(t), self.memory.last_state.shape[1]), np.float32)
        states[known] = self.memory.state_before(t[known], n[known])
        return fold(batch, np.flatnonzero(self._valid_rows(begins)), self.memory.every, states)

    def _valid_rows(self, column: NDArray) -> NDArray:
        rows = column.swapaxes(0, 1).reshape(-1, *column.shape[2:])
        return rows if self.valid is None else rows[self.valid.swapaxes(0, 1).reshape(-1)]


class TrajectoryBuilder:
    """The fragment under construction: `[capacity, N, ...]` columns, allocated at the first row, grown where needed."""

    _NAMES = (
        SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.ACTION_DIST_INPUTS,
        SampleBatch.REWARDS, SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.VF_PREDS,
    )  # fmt: skip

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._num_envs, self._capacity = num_envs, capacity
        self._columns: list[NDArray] = []
        self._valid: NDArray[np.bool_] | None = None

    def write(
        self,
        t: int,
        obs: NDArray,
        actions: NDArray,
        dist_inputs: NDArray,
        result: StepResult,
        values: NDArray | None = None,
    ) -> None:
        if not self._columns:
            known = () if values is None else (values,)
            self._allocate((obs, actions, dist_inputs, result.rewards, result.terminateds, result.truncateds, *known))
        elif t == self._capacity:
            self._grow()
        columns = self._columns
        columns[0][t] = obs
        columns[1][t] = actions
        columns[2][t] = dist_inputs
        columns[3][t] = result.rewards
        columns[4][t] = result.terminateds
        columns[5][t] = result.truncateds
        if values is not None:
            columns[6][t] = values

    def invalidate(self, start: int, end: int, env_indices: NDArray[np.int64]) -> None:
        if self._valid is None:
            self._valid = np.ones((self._capacity, self._num_envs), bool)
        self._valid[start:end, env_indices] = False

    def count_invalid(self, steps: int) -> int:
        return 0 if self._valid is None else int(steps * self._num_envs - self._valid[:steps].sum())

    def cut(self, steps: int) -> tuple[dict[str, NDArray], NDArray[np.bool_] | None]:
        """The columns of the rows written, and which of them are transitions."""
        valid = None if self._valid is None or self._valid[:steps].all() else self._valid[:steps]
        return {name: column[:steps] for name, column in zip(self._NAMES, self._columns, strict=False)}, valid

    def _allocate(self, first: tuple[NDArray, ...]) -> None:
        self._columns = [time_major(self._num_envs, self._capacity, row.shape[1:], row.dtype) for row in first]

    def _grow(self) -> None:
        old = self._capacity
        self._capacity = 2 * old
        for i, column in enumerate(self._columns):
            self._columns[i] = time_major(self._num_envs, self._capacity, column.shape[2:], column.dtype)
            self._columns[i][:old] = column
        if self._valid is not None:
            self._valid = np.concatenate([self._valid, np.ones_like(self._valid)])


class MemoryBuilder:
    """Takes the policy's states of a fragment as they come, and keeps those that are needed.

    Args:
        state: `[N, S]` before the first step.
        every: L, the steps from one state that is kept to the next.
    """

    def __init__(self, state: NDArray[np.float32], every: int) -> None:
        self._every = every
        self._steps = 0
        self._starts = [state]
        self._finals = [state[:0]]
        self._state = state

    def after_step(
        self, state: NDArray[np.float32], done: NDArray[np.bool_], over: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """The states before the next step.

        Args:
            state: `[N, S]` after the step; kept without a copy.
            done: `[N]` rows that ended an episode.
            over: `[N]` after which rows nothing is remembered: those, and what is no transition.
        """
        if over.any():
            self._finals.append(state[done])
            state = np.where(over[:, None], np.float32(0.0), state)
        self._steps += 1
        if self._steps % self._every == 0:
            self._starts.append(state)
        self._state = state
        return state

    def finish(self) -> Memory:
        """All that was kept."""
        every, starts = self._every, np.stack(self._starts)
        grid = np.arange(self._steps)[:, None] % every == 0
        finals = np.concatenate(self._finals)
        return Memory(every, grid, lambda t, n: starts[t // every, n], finals, self._state)
