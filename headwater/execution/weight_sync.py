"""SyncWeights: the step of a plan that sends the learner's weights to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.execution.iterators import LocalIterator
from headwater.execution.plan_drawing import SAME
from headwater.execution.shared_metrics import STEPS_SAMPLED_COUNTER, WORKER_UPDATE_TIMER, PlanError, SharedMetrics


class SyncWeights:
    """Send the local worker's weights to the remote ones, and tell all of them the timestep; items pass unchanged.

    Put it behind `TrainOneStep`. With only a local worker there is nothing to send: its policies are what learns.

    Args:
        workers: the worker set.
        policies: ids of those to send; empty = all.
        to: "all" remote workers, or only the "source" that the item came from (asynchronous plans).
    """

    gives = SAME

    def __init__(self, workers: Any, policies: Sequence[str] = (), to: str = "all") -> None:
        if to not in ("all", "source"):
            raise PlanError(f'SyncWeights(to=...) is "all" or "source"; got {to!r}.')
        self.policies = list(policies)
        self.to = to
        self._workers = workers
        self._sender = WeightSender(workers, policies)

    def __call__(self, item: Any) -> Any:
        metrics = LocalIterator.get_metrics()
        set_global_vars(self._workers, metrics)
        if self._workers.remote_workers():
            with metrics.timers[WORKER_UPDATE_TIMER]:
                self._sender.send(metrics, receivers(self._workers, metrics, self.to))
        return item


def receivers(workers: Any, metrics: SharedMetrics, to: str) -> list[Any]:
    """The remote workers that new weights go to."""
    if to == "all":
        return list(workers.remote_workers())
    if metrics.current_actor is None:
        raise PlanError(
            "The item to update the source of came from no single remote worker. Use a plan over "
            "ParallelRollouts(mode='async') or AsyncGradients, or send to all workers."
        )
    return [metrics.current_actor]


class WeightSender:
    """Stores the local worker's weights once and sets them, with the timestep, on remote workers.

    It does not wait for workers that are busy sampling, but at most one broadcast is under way: the next one waits for
    it, and raises what it raised.

    Args:
        workers: the worker set.
        policies: ids; empty = all.
    """

    def __init__(self, workers: Any, policies: Sequence[str] = ()) -> None:
        self._workers = workers
        self._policies = list(policies) or None
        self._under_way: list[Any] = []

    def send(self, metrics: SharedMetrics, to: Sequence[Any], wait: bool = False) -> None:
        """Send to the workers `to`; with `wait`, return when they have the weights."""
        engine = self._workers.engine
        self._finish()
        weights = engine.put(self._workers.local_worker().get_weights(self._policies))
        timestep = {"timestep": metrics.counters[STEPS_SAMPLED_COUNTER]}
        self._under_way = [engine.submit(worker, "set_weights", weights, timestep) for worker in to]
        if wait:
            self._finish()

    def _finish(self) -> None:
        calls, self._under_way = self._under_way, []
        for call in calls:
            self._workers.engine.get(call)


def set_global_vars(workers: Any, metrics: SharedMetrics) -> None:
    """Tell the local policies how many steps have been sampled: schedules follow it."""
    workers.local_worker().set_global_vars({"timestep": metrics.counters[STEPS_SAMPLED_COUNTER]})
