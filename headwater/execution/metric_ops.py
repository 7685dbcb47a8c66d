"""The end of a plan: StandardMetricsReporting turns what happened into the results of `Trainer.train()`."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from headwater.execution.iterators import LocalIterator
from headwater.execution.shared_metrics import (
    LEARNER_INFO,
    STEPS_SAMPLED_COUNTER,
    STEPS_TRAINED_COUNTER,
    PlanError,
    SharedMetrics,
)
from headwater.execution.train_ops import TrainOneStep
from headwater.execution.weight_sync import SyncWeights
from headwater.sampling.filters import gather_in_process
from headwater.sampling.metrics import RolloutMetrics, collect_episodes, mean_perf_stats, summarize_episodes


def StandardMetricsReporting(train_op: LocalIterator, workers: Any, config: Any) -> LocalIterator:  # noqa: N802
    """The results of a plan, one per iteration.

    An iteration lasts until `timesteps_per_iteration` steps were sampled and `min_iter_time_s` seconds have passed.

    Args:
        train_op: the plan so far; its items only say that something was learned.
        workers: the worker set, asked for the episodes that ended.
        config: read for `timesteps_per_iteration`, `min_iter_time_s` and `metrics_smoothing_episodes`.

    Raises:
        PlanError: remote workers sample, and nothing in the plan sends them new weights.
    """
    operators = train_op.operators()
    learns = any(isinstance(op, TrainOneStep) for op in operators)
    if workers.remote_workers() and learns and not any(isinstance(op, SyncWeights) for op in operators):
        raise PlanError(
            f"This plan trains, but never sends the new weights to its {len(workers.remote_workers())} remote workers. "
            "Put .for_each(SyncWeights(workers)) behind TrainOneStep."
        )
    return (
        train_op.filter(OncePerTimestepsElapsed(config["timesteps_per_iteration"]))
        .filter(OncePerTimeInterval(config["min_iter_time_s"]))
        .for_each(CollectMetrics(workers, min_history=config["metrics_smoothing_episodes"]))
    )


class OncePerTimestepsElapsed:
    """True when `delay_steps` steps were sampled since it was true last; 0 = always."""

    def __init__(self, delay_steps: int) -> None:
        self.delay_steps = delay_steps
        self._last = 0

    def __call__(self, item: Any) -> bool:
        if self.delay_steps <= 0:
            return True
        now = LocalIterator.get_metrics().counters[STEPS_SAMPLED_COUNTER]
        if now - self._last < self.delay_steps:
            return False
        self._last = now
        return True

    def get_state(self) -> dict[str, Any]:
        """The count at which it was true last."""
        return {"last": self._last}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        self._last = state["last"]


class OncePerTimeInterval:
    """True at first, and when more than `delay_s` seconds have passed since it was true last; 0 = always."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._last: float | None = None

    def __call__(self, item: Any) -> bool:
        if self.delay_s <= 0:
            return True
        now = time.monotonic()
        if self._last is not None and now - self._last <= self.delay_s:
            return False
        self._last = now
        return True

    def get_state(self) -> dict[str, Any]:
        """Seconds since it was true last: clocks of two processes have nothing in common."""
        return {"elapsed_s": None if self._last is None else time.monotonic() - self._last}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        elapsed_s = state["elapsed_s"]
        self._last = None if elapsed_s is None else time.monotonic() - elapsed_s


class CollectMetrics:
    """The result of an iteration: episodes, counters, timers and what the learner said.

    If fewer than `min_history` episodes ended in it, the last ones before it fill the window.

    Args:
        workers: the worker set.
        min_history: episodes that means are taken over; more, if more ended in the iteration.
    """

    gives = dict

    def __init__(self, workers: Any, min_history: int = 100) -> None:
        self.min_history = min_history
        self._workers = workers
        self._history: deque[RolloutMetrics] = deque(maxlen=max(0, min_history))
        self._episodes_total = 0

    def __call__(self, _: Any) -> dict[str, Any]:
        metrics = LocalIterator.get_metrics()
        remotes = self._workers.remote_workers()
        gather = self._workers.engine.gather if remotes else gather_in_process
        local = self._workers.local_worker()
        new = collect_episodes(local, remotes, gather)
        perf = mean_perf_stats(gather(remotes, "perf_stats")) if remotes else local.perf_stats()
        self._episodes_total += len(new)
        window = new
        if len(new) < self.min_history:
            self._history.extend(new)
            window = list(self._history)
        else:
            self._history.extend(new[-self.min_history :] if self.min_history > 0 else [])
        result = summarize_episodes(window, new, perf)
        result["off_policy_estimator"] = local.get_estimates()
        result["episodes_total"] = self._episodes_total
        result["num_healthy_workers"] = len(remotes)
        result["timesteps_total"] = metrics.counters[STEPS_SAMPLED_COUNTER]
        result["timers"] = timer_results(metrics)
        result["info"] = {
            LEARNER_INFO: {},
            STEPS_SAMPLED_COUNTER: 0,
            STEPS_TRAINED_COUNTER: 0,
            **metrics.counters,
            **copy.deepcopy(metrics.info),
        }
        return result

    def get_state(self) -> dict[str, Any]:
        """The episodes remembered and the number of all."""
        return {
            "episodes_total": self._episodes_total,
            "history": [episode.to_state() for episode in self._history],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        self._episodes_total = state["episodes_total"]
        self._history.clear()
        self._history.extend(RolloutMetrics.from_state(episode) for episode in state["history"])


def timer_results(metrics: SharedMetrics) -> dict[str, float]:
    """`<timer>_time_ms` of each timer, and `<timer>_throughput` (units per second) of those that count units."""
    results = {}
    for name, timer in metrics.timers.items():
        results[f"{name}_time_ms"] = round(timer.mean * 1000, 3)
        if timer.has_units_processed():
            results[f"{name}_throughput"] = round(timer.mean_throughput, 3)
    return results
