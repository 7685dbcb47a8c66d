"""Operators between sampling and learning: ParallelRollouts, ConcatBatches, SelectExperiences, StandardizeFields."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headwater.data.advantages import standardized
from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.execution.iterators import AsyncGather, LocalIterator, ParallelIterator
from headwater.execution.plan_state import pack_items, unpack_items
from headwater.execution.shared_metrics import (
    AGENT_STEPS_SAMPLED_COUNTER,
    SAMPLE_TIMER,
    STEPS_SAMPLED_COUNTER,
    PlanError,
    SharedMetrics,
)
from headwater.execution.weight_sync import WeightSender

MODES = ("bulk_sync", "async", "raw")


def ParallelRollouts(workers: Any, *, mode: str = "bulk_sync", num_async: int = 1) -> Any:  # noqa: N802
    """The experience of a worker set, one batch after another; the start of most plans.

    Adds each batch's env steps to the counter `num_steps_sampled`. Without remote workers the local one samples, in
    every mode. With them, their weights are made equal to the local worker's first.

    Args:
        workers: the worker set; remote workers are called through its `engine`.
        mode: "bulk_sync": all remote workers sample, one concatenated batch per round. "async": batches as they get
            ready, each with its worker as `current_actor`. "raw": the `ParallelIterator` itself, nothing counted.
        num_async: in async mode, batches that each worker makes ahead.

    Raises:
        PlanError: an unknown mode.
    """
    if mode not in MODES:
        raise PlanError(f"ParallelRollouts has no mode {mode!r}; choose one of {list(MODES)}.")
    if not workers.remote_workers():
        return LocalIterator(_LocalRollouts(workers, mode), name="ParallelRollouts", gives=Batch)
    WeightSender(workers).send(SharedMetrics(), workers.remote_workers(), wait=True)
    shards = ParallelIterator(workers.remote_workers, workers.engine, "sample")
    if mode == "raw":
        return shards
    rollouts = _AsyncRollouts(shards, num_async) if mode == "async" else _SyncRollouts(shards)
    return LocalIterator(rollouts, name="ParallelRollouts", gives=Batch)


class _LocalRollouts:
    """Source: the local worker samples whenever a batch is asked for."""

    def __init__(self, workers: Any, mode: str) -> None:
        self.mode = mode
        self.samplers = "local worker"
        self._workers = workers

    def __call__(self) -> Iterator[Batch]:
        worker = self._workers.local_worker()
        while True:
            yield _counted(worker.sample())


class _SyncRollouts:
    """Source: one round of all remote workers per batch."""

    def __init__(self, shards: ParallelIterator) -> None:
        self.mode = "bulk_sync"
        self.samplers = "remote workers"
        self._rounds = shards.batch_across_shards()

    def __call__(self) -> Iterator[Batch]:
        for batches in self._rounds:
            yield _counted(SampleBatch.concat_samples(batches))


class _AsyncRollouts(AsyncGather):
    """Source: batches of remote workers as they get ready."""

    def __init__(self, shards: ParallelIterator, num_async: int) -> None:
        super().__init__(shards, num_async)
        self.mode = "async"
        self.samplers = "remote workers"

    def __call__(self) -> Iterator[Any]:
        for item in super().__call__():
            yield _counted(item) if isinstance(item, Batch) else item


def _counted(batch: Batch) -> Batch:
    counters = LocalIterator.get_metrics().counters
    counters[STEPS_SAMPLED_COUNTER] += batch.count
    if isinstance(batch, MultiAgentBatch):
        counters[AGENT_STEPS_SAMPLED_COUNTER] += batch.agent_steps()
    return batch


class ConcatBatches:
    """Hold batches back until they have `min_batch_size` steps together; for `combine`.

    The timer `sample` measures from the first request for experience until enough is there.

    Args:
        min_batch_size: steps; a batch of more is passed as it is.
        count_steps_by: "env_steps", or "agent_steps" of all agents together.
    """

    takes = Batch
    gives = Batch

    def __init__(self, min_batch_size: int, count_steps_by: str = "env_steps") -> None:
        if count_steps_by not in ("env_steps", "agent_steps"):
            raise PlanError(f"ConcatBatches counts 'env_steps' or 'agent_steps'; got {count_steps_by!r}.")
        self.min_batch_size = min_batch_size
        self.count_steps_by = count_steps_by
        self._held: list[Batch] = []
        self._steps = 0
        self._started: float | None = None

    def _on_fetch_start(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def __call__(self, batch: Batch) -> list[Batch]:
        check_batch(batch, self)
        self._held.append(batch)
        self._steps += self._steps_of(batch)
        if self._steps < self.min_batch_size:
            return []
        joined = SampleBatch.concat_samples(self._held)
        if self._started is not None:
            timer = LocalIterator.get_metrics().timers[SAMPLE_TIMER]
            timer.push(time.perf_counter() - self._started)
            timer.push_units_processed(self._steps)
        self._held, self._steps, self._started = [], 0, None
        return [joined]

    def get_state(self) -> dict[str, Any]:
        """The batches held back."""
        return {"held": pack_items("ConcatBatches", self._held)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        self._held = unpack_items(state["held"])
        self._steps = sum(self._steps_of(batch) for batch in self._held)

    def _steps_of(self, batch: Batch) -> int:
        return batch.as_multi_agent().agent_steps() if self.count_steps_by == "agent_steps" else batch.count


class SelectExperiences:
    """Keep only the experience of some policies; env steps stay as counted.

    Args:
        policy_ids: of the policies to keep, usually `workers.trainable_policies()`.
    """

    takes = Batch
    gives = Batch

    def __init__(self, policy_ids: Sequence[str]) -> None:
        if isinstance(policy_ids, str) or not isinstance(policy_ids, (list, tuple)):
            raise PlanError(f"SelectExperiences takes a list of policy ids; got {policy_ids!r}.")
        self.policy_ids = list(policy_ids)

    def __call__(self, batch: Batch) -> Batch:
        check_batch(batch, self)
        if isinstance(batch, MultiAgentBatch):
            kept = {pid: part for pid, part in batch.policy_batches.items() if pid in self.policy_ids}
            return MultiAgentBatch(kept, batch.count)
        return batch


class StandardizeFields:
    """Bring columns to mean 0 and standard deviation 1, per policy: `(x - mean) / max(1e-4, std)`.

    Mean and (population) standard deviation are those of the real rows, where the batch has a column `mask`; the others
    become 0. The batch given and its arrays stay as they are, the result has new columns.

    Args:
        fields: column names, e.g. `["advantages"]`.
    """

    takes = Batch
    gives = Batch

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = list(fields)

    def __call__(self, batch: Batch) -> Batch:
        check_batch(batch, self)
        if isinstance(batch, SampleBatch):
            return self._standardize(batch)
        policy_batches = batch.as_multi_agent().policy_batches
        return MultiAgentBatch({pid: self._standardize(part) for pid, part in policy_batches.items()}, batch.count)

    def _standardize(self, batch: SampleBatch) -> SampleBatch:
        result = batch.copy(shallow=True)
        for name, column in zip(self.fields, batch.columns(self.fields), strict=True):
            result[name] = standardized(np.asarray(column), batch.get(SampleBatch.MASK))
        return result


def check_batch(item: Any, operator: Any) -> None:
    """Refuse what is not a batch, naming the operator that needs one."""
    if not isinstance(item, Batch):
        raise PlanError(
            f"{type(operator).__name__} takes a SampleBatch or a MultiAgentBatch; got {type(item).__name__}."
        )
