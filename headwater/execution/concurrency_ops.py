"""Operators that run parts of a plan side by side: Concurrently, and the queues Enqueue and Dequeue."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headwater.errors import TrainingError
from headwater.execution.iterators import POLL_S, LocalIterator, join
from headwater.execution.plan_drawing import SAME
from headwater.execution.shared_metrics import PlanError
from headwater.execution.stages import _NextValueNotReady


def Concurrently(  # noqa: N802
    ops: Sequence[LocalIterator],
    *,
    mode: str = "round_robin",
    output_indexes: Sequence[int] | None = None,
    round_robin_weights: Sequence[float | str] | None = None,
) -> LocalIterator:
    """Run several chains as one; they share their metrics from then on.

    Args:
        ops: two or more.
        mode: "round_robin": in turns, waiting for each. "async": whichever is ready.
        output_indexes: of the chains whose items are delivered (none or empty = all). The others run as well.
        round_robin_weights: items per turn of each chain (default 1), see `LocalIterator.union`.

    Raises:
        PlanError: fewer than two chains, an unknown mode, weights in async mode or of another number or all "*", or an
            index without a chain.
    """
    if len(ops) < 2:
        raise PlanError(f"Concurrently runs two or more chains; got {len(ops)}.")
    if mode not in ("round_robin", "async"):
        raise PlanError(f'Concurrently has the modes "round_robin" and "async"; got {mode!r}.')
    if round_robin_weights is not None:
        if mode == "async":
            raise PlanError('Concurrently takes round_robin_weights only in mode "round_robin"; got mode "async".')
        if all(weight == "*" for weight in round_robin_weights):
            raise PlanError('Concurrently needs at least one round_robin_weight that is a number; all are "*".')
    for index in output_indexes or ():
        if not 0 <= index < len(ops):
            raise PlanError(f"Concurrently has no chain {index} to output: it runs {len(ops)}, counted from 0.")
    settings = {
        "mode": mode,
        "output_indexes": list(output_indexes or range(len(ops))),
        "round_robin_weights": round_robin_weights,
    }
    deterministic = mode == "round_robin"
    return join(ops, "Concurrently", deterministic, round_robin_weights, output_indexes or None, settings)


class Enqueue:
    """Put each item into a queue and pass it on. While the queue is full, the rest of the plan goes on.

    Args:
        output_queue: a bounded `queue.Queue`, read by another thread or by `Dequeue`.
    """

    gives = SAME

    def __init__(self, output_queue: queues.Queue) -> None:
        self._queue = _checked_queue(output_queue, "Enqueue")

    def __call__(self, item: Any) -> Any:
        try:
            self._queue.put_nowait(item)
        except queues.Full:
            return _NextValueNotReady("Enqueue: the queue is full")
        return item


def Dequeue(input_queue: queues.Queue, check: Callable[[], bool] = lambda: True) -> LocalIterator:  # noqa: N802
    """The items of a queue, as they come.

    Args:
        input_queue: filled by another thread or by `Enqueue`.
        check: asked before each look; False means that no more will come (a thread died).

    Raises:
        PlanError: `input_queue` is no queue.
        TrainingError: when run, if `check()` is False.
    """
    return LocalIterator(_QueueItems(_checked_queue(input_queue, "Dequeue"), check), name="Dequeue")


class _QueueItems:
    def __init__(self, input_queue: queues.Queue, check: Callable[[], bool]) -> None:
        self._queue = input_queue
        self._check = check

    def __call__(self) -> Iterator[Any]:
        while True:
            if not self._check():
                raise TrainingError("Dequeue: whatever fills the queue has stopped; its own error says why.")
            try:
                item = self._queue.get(timeout=POLL_S)
            except queues.Empty:
                item = _NextValueNotReady("Dequeue: the queue is empty")
            yield item


def _checked_queue(candidate: Any, operator: str) -> queues.Queue:
    if not isinstance(candidate, queues.Queue):
        raise PlanError(f"{operator} needs a queue.Queue; got {type(candidate).__name__}.")
    return candidate
