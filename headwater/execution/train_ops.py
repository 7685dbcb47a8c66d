"""Operators that learn: TrainOneStep, or ComputeGradients, AverageGradients and ApplyGradients; UpdateTargetNetwork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headwater.data.sample_batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch
from headwater.execution.iterators import LocalIterator
from headwater.execution.plan_drawing import SAME
from headwater.execution.rollout_ops import check_batch
from headwater.execution.shared_metrics import (
    AGENT_STEPS_TRAINED_COUNTER,
    APPLY_GRADS_TIMER,
    COMPUTE_GRADS_TIMER,
    LAST_TARGET_UPDATE_TS,
    LEARN_TIMER,
    LEARNER_INFO,
    NUM_TARGET_UPDATES,
    STEPS_SAMPLED_COUNTER,
    STEPS_TRAINED_COUNTER,
    WORKER_UPDATE_TIMER,
    PlanError,
)
from headwater.execution.weight_sync import WeightSender, receivers, set_global_vars


class TrainResult(NamedTuple):
    """What `TrainOneStep` gives: the batch, and {policy id: statistics}."""

    batch: Batch
    info: dict[str, dict[str, Any]]


class Gradients(NamedTuple):
    """Gradients, as nested dicts or lists of arrays, and the env steps they are the mean of."""

    gradients: Any
    num_steps: int


class TrainOneStep:
    """Each trained policy learns from its part of the batch.

    The new weights are the local worker's; put `SyncWeights` behind it where remote workers sample.

    Args:
        workers: the worker set.
        policies: ids of those to train; empty = all trainable ones.
        num_sgd_iter: passes over the batch.
        sgd_minibatch_size: rows per update; 0 = the whole batch.
    """

    takes = Batch
    gives = TrainResult

    def __init__(
        self, workers: Any, policies: Sequence[str] = (), num_sgd_iter: int = 1, sgd_minibatch_size: int = 0
    ) -> None:
        self.policies = list(policies)
        self.num_sgd_iter = num_sgd_iter
        self.sgd_minibatch_size = sgd_minibatch_size
        self._workers = workers

    def __call__(self, batch: Batch) -> TrainResult:
        check_batch(batch, self)
        metrics = LocalIterator.get_metrics()
        worker = self._workers.local_worker()
        with metrics.timers[LEARN_TIMER] as timer:
            info = worker.learn_on_batch(batch, self.num_sgd_iter, self.sgd_minibatch_size, self.policies)
        timer.push_units_processed(batch.count)
        metrics.counters[STEPS_TRAINED_COUNTER] += batch.count
        if isinstance(batch, MultiAgentBatch):
            metrics.counters[AGENT_STEPS_TRAINED_COUNTER] += batch.agent_steps()
        metrics.info[LEARNER_INFO] = info
        set_global_vars(self._workers, metrics)
        return TrainResult(batch, info)


class KeepInfo:
    """Of a `TrainResult` only the statistics, {policy id: statistics}."""

    takes = TrainResult
    gives = dict

    def __call__(self, result: TrainResult) -> dict[str, dict[str, Any]]:
        return result.info


class ComputeGradients:
    """The gradients of a batch by the local worker, not yet applied.

    Args:
        workers: the worker set.
    """

    takes = Batch
    gives = Gradients

    def __init__(self, workers: Any) -> None:
        self._workers = workers

    def __call__(self, batch: Batch) -> Gradients:
        check_batch(batch, self)
        metrics = LocalIterator.get_metrics()
        with metrics.timers[COMPUTE_GRADS_TIMER]:
            gradients, info = self._workers.local_worker().compute_gradients(batch)
        metrics.info[LEARNER_INFO] = info if isinstance(batch, MultiAgentBatch) else {DEFAULT_POLICY_ID: info}
        return Gradients(gradients, batch.count)


class AverageGradients:
    """The mean of several gradients, weighted by the env steps behind each: the gradient of all the steps together."""

    takes = list
    gives = Gradients

    def __call__(self, parts: Sequence[tuple[Any, int]]) -> Gradients:
        if not parts:
            raise PlanError("AverageGradients needs at least one (gradients, count); got an empty list.")
        total = sum(count for _, count in parts)
        if total <= 0:
            raise PlanError(f"AverageGradients needs gradients of at least one env step; the counts sum to {total}.")
        weights = [count / total for _, count in parts]
        return Gradients(_weighted_sum([gradients for gradients, _ in parts], weights), total)


class ApplyGradients:
    """The local worker takes one step along gradients; the new weights are sent to the remote workers.

    Args:
        workers: the worker set.
        policies: ids of those whose weights are sent; empty = all.
        update_all: send to all remote workers, else only to the one that computed the gradients.
    """

    takes = tuple

    def __init__(self, workers: Any, policies: Sequence[str] = (), update_all: bool = True) -> None:
        self.policies = list(policies)
        self.update_all = update_all
        self._workers = workers
        self._sender = WeightSender(workers, policies)

    def __call__(self, item: tuple[Any, int]) -> None:
        if not isinstance(item, tuple) or len(item) != 2:
            raise PlanError(f"ApplyGradients takes (gradients, count); got {type(item).__name__}.")
        gradients, count = item
        metrics = LocalIterator.get_metrics()
        with metrics.timers[APPLY_GRADS_TIMER] as timer:
            self._workers.local_worker().apply_gradients(gradients)
        timer.push_units_processed(count)
        metrics.counters[STEPS_TRAINED_COUNTER] += count
        set_global_vars(self._workers, metrics)
        if self._workers.remote_workers():
            to = receivers(self._workers, metrics, "all" if self.update_all else "source")
            with metrics.timers[WORKER_UPDATE_TIMER]:
                self._sender.send(metrics, to)


class UpdateTargetNetwork:
    """Now and then copy weights to the policies' target networks (`policy.update_target()`); items pass unchanged.

    Args:
        workers: the worker set.
        target_update_freq: steps that must have passed since the last update.
        by_steps_trained: count trained instead of sampled steps.
        policies: ids; empty = all trainable ones.
    """

    gives = SAME

    def __init__(
        self, workers: Any, target_update_freq: int, by_steps_trained: bool = False, policies: Sequence[str] = ()
    ) -> None:
        self.target_update_freq = target_update_freq
        self.by_steps_trained = by_steps_trained
        self.policies = list(policies)
        self._workers = workers

    def __call__(self, item: Any) -> Any:
        counters = LocalIterator.get_metrics().counters
        now = counters[STEPS_TRAINED_COUNTER if self.by_steps_trained else STEPS_SAMPLED_COUNTER]
        if now - counters[LAST_TARGET_UPDATE_TS] > self.target_update_freq:
            for policy_id in self.policies or self._workers.trainable_policies():
                self._workers.local_worker().get_policy(policy_id).update_target()
            counters[NUM_TARGET_UPDATES] += 1
            counters[LAST_TARGET_UPDATE_TS] = now
        return item


def _weighted_sum(trees: Sequence[Any], weights: Sequence[float]) -> Any:
    """Leaf by leaf over equally nested dicts and lists of arrays."""
    first = trees[0]
    if isinstance(first, Mapping):
        if any(tree.keys() != first.keys() for tree in trees):
            raise PlanError(f"Gradients to average must be of the same parameters; got {[sorted(t) for t in trees]}.")
        return {key: _weighted_sum([tree[key] for tree in trees], weights) for key in first}
    if isinstance(first, (list, tuple)):
        return [_weighted_sum(leaves, weights) for leaves in zip(*trees, strict=True)]
    if first is None:
        return None
    total = np.multiply(first, weights[0])
    for leaf, weight in zip(trees[1:], weights[1:], strict=True):
        total += np.multiply(leaf, weight)
    return total.astype(np.asarray(first).dtype, copy=False)
