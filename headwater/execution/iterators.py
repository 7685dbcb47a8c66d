"""LocalIterator: a chain of operators over a stream of items; ParallelIterator: such streams in several workers.

A plan is a `LocalIterator` whose items are the results of `Trainer.train()`. Nothing runs while it is built; each
`next()` pulls one item through the whole chain. `print(plan)` draws it. Operators are callables; those that declare the
class attributes `takes` and `gives` (types, or `SAME` for what passes unchanged) are checked against their neighbours
when the plan is built.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headwater.engines import Engine
from headwater.errors import TrainingError
from headwater.execution import stages
from headwater.execution.plan_drawing import SAME, Kind, draw
from headwater.execution.plan_state import get_plan_state, set_plan_state
from headwater.execution.shared_metrics import PlanError, SharedMetrics, current_metrics, metrics_context
from headwater.execution.stages import NOT_READY, Stage, _NextValueNotReady

logger = logging.getLogger(__name__)

POLL_S = 0.001
WARN_AFTER_S = 60.0


class LocalIterator:
    """A stream of items in this process, and the operators that they pass.

    Each method adds an operator and returns the longer chain; an iterator has one consumer.

    Args:
        base_fn: makes the iterable of the first items, when the first is asked for. It may yield
            `_NextValueNotReady` where it has nothing to deliver yet.
        metrics: what the chain's operators share; None = new.
        name: of the source in drawings.
        gives: the type of its items, if known.

    Example:
        >>> squares = LocalIterator.from_items([1, 2, 3, 4]).for_each(lambda x: x * x)
        >>> squares.filter(lambda x: x % 2 == 0).take(2)
        [4, 16]
    """

    def __init__(
        self,
        base_fn: Callable[[], Iterable[Any]],
        metrics: SharedMetrics | None = None,
        name: str | None = None,
        *,
        gives: Kind = Any,
    ) -> None:
        self._stage: Stage = stages.Source([], metrics or SharedMetrics(), base_fn, name=name, gives=gives)

    @staticmethod
    def from_items(items: Sequence[Any], name: str = "from_items") -> LocalIterator:
        """The items of a list."""
        return LocalIterator(lambda: items, name=name)

    @classmethod
    def _of(cls, stage: Stage) -> LocalIterator:
        iterator = cls.__new__(cls)
        iterator._stage = stage
        return iterator

    # --- operators

    def for_each(self, fn: Callable[[Any], Any]) -> LocalIterator:
        """`fn(item)` of each. While `fn` returns a `_NextValueNotReady`, it is offered the same item again."""
        takes, gives = getattr(fn, "takes", Any), getattr(fn, "gives", Any)
        gives = self._stage.gives if gives is SAME else gives
        return self._of(stages.ForEach([self._stage], self.shared_metrics, fn, takes=takes, gives=gives))

    def filter(self, fn: Callable[[Any], bool]) -> LocalIterator:
        """The items for which `fn(item)` is true."""
        takes, gives = getattr(fn, "takes", Any), self._stage.gives
        return self._of(stages.Filter([self._stage], self.shared_metrics, fn, takes=takes, gives=gives))

    def batch(self, n: int) -> LocalIterator:
        """Lists of `n` items; the last may be shorter."""
        if n < 1:
            raise PlanError(f"batch(n) makes lists of n >= 1 items; got {n}.")
        return self._of(stages.Gather([self._stage], self.shared_metrics, n))

    def flatten(self) -> LocalIterator:
        """The items of each item, which is a list."""
        return self._of(stages.Combine([self._stage], self.shared_metrics, name="flatten", takes=(list, tuple)))

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> LocalIterator:
        """The items of each list `fn(item)`, which may be empty."""
        takes, gives = getattr(fn, "takes", Any), getattr(fn, "gives", Any)
        return self._of(stages.Combine([self._stage], self.shared_metrics, fn, takes=takes, gives=gives))

    def zip_with_source_actor(self) -> LocalIterator:
        """(worker, item) for each item; an error where items do not come from remote workers one by one."""
        return self._of(stages.WithSource([self._stage], self.shared_metrics))

    def duplicate(self, n: int) -> list[LocalIterator]:
        """`n` iterators that each get every item. One that is ahead waits until the others have caught up."""
        if n < 2:
            raise PlanError(f"duplicate(n) makes n >= 2 iterators; got {n}.")
        queues: list[deque[Any]] = [deque() for _ in range(n)]
        return [self._of(stages.Split(self._stage, self.shared_metrics, queues, i)) for i in range(n)]

    def union(
        self,
        *others: LocalIterator,
        deterministic: bool = False,
        round_robin_weights: Sequence[float | str] | None = None,
    ) -> LocalIterator:
        """Items of this and other iterators in turns; their metrics become one.

        Args:
            others: at least one.
            deterministic: wait for each iterator in its turn; else pass over those that are not ready.
            round_robin_weights: items per turn of each iterator (default 1). A fraction is saved up until it makes a
                whole item; "*" takes what is ready.
        """
        settings = {"deterministic": deterministic, "weights": round_robin_weights}
        return join([self, *others], "union", deterministic, round_robin_weights, settings=settings)

    # --- use

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with metrics_context(self.shared_metrics):
            item = self._stage.pull()
            if isinstance(item, _NextValueNotReady):
                item = self._wait(item)
            return item

    def _wait(self, item: Any) -> Any:
        warn_at = time.monotonic() + WARN_AFTER_S
        while isinstance(item, _NextValueNotReady):
            if time.monotonic() > warn_at:
                logger.warning("%r has had nothing to deliver for %.0f s: %s", self, WARN_AFTER_S, item)
                warn_at += WARN_AFTER_S
            time.sleep(POLL_S)
            item = self._stage.pull()
        return item

    def take(self, n: int) -> list[Any]:
        """The next `n` items, or as many as there are."""
        return [item for _, item in zip(range(n), self, strict=False)]

    def show(self, n: int = 20) -> None:
        """Print the next `n` items."""
        for item in self.take(n):
            print(item)

    @property
    def shared_metrics(self) -> SharedMetrics:
        """What the chain's operators share."""
        return self._stage.metrics

    @staticmethod
    def get_metrics() -> SharedMetrics:
        """The metrics of the running chain, for use inside operators; elsewhere a `PlanError`."""
        return current_metrics()

    def operators(self) -> list[Any]:
        """The operators, functions and sources of the chain, in the order in which items pass."""
        return [stage.op for stage in self._stage.walk() if stage.op is not None]

    def get_state(self) -> dict[str, Any]:
        """Counters, info, and the state of every operator that has one, for a checkpoint."""
        return get_plan_state(self._stage)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` of an equal chain gave."""
        set_plan_state(self._stage, state)

    def __str__(self) -> str:
        return draw(self._stage)

    def __repr__(self) -> str:
        return f"LocalIterator[{' > '.join(stage.name for stage in self._stage.walk())}]"


def join(
    iterators: Sequence[LocalIterator],
    name: str,
    deterministic: bool,
    weights: Sequence[float | str] | None,
    outputs: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
) -> LocalIterator:
    """Several iterators as one, see `LocalIterator.union`; only items of `outputs` (None = all) are delivered.

    Raises:
        PlanError: fewer than two iterators, something else among them, or weights that do not fit them.
    """
    for iterator in iterators:
        if not isinstance(iterator, LocalIterator):
            raise PlanError(f"{name} joins LocalIterators; got a {type(iterator).__name__}.")
    if len(iterators) < 2:
        raise PlanError(f"{name} joins two or more iterators; got {len(iterators)}.")
    if weights is None:
        weights = [1] * len(iterators)
    if len(weights) != len(iterators):
        raise PlanError(f"{name} needs one weight per iterator: got {len(weights)} weights for {len(iterators)}.")
    for weight in weights:
        if weight != "*" and (isinstance(weight, str) or weight <= 0):
            raise PlanError(f'Weights of {name} are numbers above 0 or "*"; got {weight!r}.')
    metrics = SharedMetrics()
    parents = [iterator._stage for iterator in iterators]
    for merged in {id(parent.metrics): parent.metrics for parent in parents}.values():
        metrics.absorb(merged)
    union = stages.Union(parents, metrics, name=name, weights=weights, outputs=outputs, settings=settings or {})
    for stage in union.walk():
        stage.metrics = metrics
        if not deterministic and isinstance(stage.op, AsyncGather):
            stage.op.blocking = False
    return LocalIterator._of(union)


class ParallelIterator:
    """A stream of items in each of several workers; gathered, they are a `LocalIterator`.

    Args:
        workers: lists the workers; asked before each round, so that replaced ones take part.
        engine: calls them.
        method: of a worker, makes its next item.

    Example:
        >>> from headwater.engines import InlineEngine
        >>> counters = [iter([1, 2]), iter([10, 20])]
        >>> ParallelIterator(lambda: counters, InlineEngine(), "__next__").gather_sync().take(4)
        [1, 10, 2, 20]
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[Any]],
        engine: Engine,
        method: str = "sample",
        fns: Sequence[Callable[[Any], Any]] = (),
    ) -> None:
        self._workers = workers
        self._engine = engine
        self.method = method
        self._fns = tuple(fns)

    def for_each(self, fn: Callable[[Any], Any]) -> ParallelIterator:
        """`fn(item)` of each, computed in the worker."""
        return ParallelIterator(self._workers, self._engine, self.method, [*self._fns, fn])

    def batch_across_shards(self) -> LocalIterator:
        """Lists with one item of each worker, in the workers' order."""

        def rounds() -> Iterator[list[Any]]:
            while True:
                workers = self._living_workers()
                yield [self._engine.get(call) for call in [self._submit(worker) for worker in workers]]

        return LocalIterator(rounds, name=f"every worker's {self.method}", gives=list)

    def gather_sync(self) -> LocalIterator:
        """One item of each worker per round, in the workers' order."""
        return self.batch_across_shards().flatten()

    def gather_async(self, num_async: int = 1) -> LocalIterator:
        """Items as they get ready; `current_actor` is the worker that made the item.

        Args:
            num_async: items that each worker makes ahead. No more are ever pending, however slow the consumer.
        """
        return LocalIterator(AsyncGather(self, num_async), name=f"any worker's {self.method}")

    def _living_workers(self) -> Sequence[Any]:
        workers = self._workers()
        if not workers:
            raise TrainingError(f"No worker is left that could {self.method}; the plan was built for remote workers.")
        return workers

    def _submit(self, worker: Any) -> Any:
        if not self._fns:
            return self._engine.submit(worker, self.method)
        return self._engine.submit(worker, "apply", _next_item, self.method, self._fns)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("The items of a ParallelIterator are in its workers: use gather_sync() or gather_async().")


class AsyncGather:
    """The source under `ParallelIterator.gather_async`.

    Calls are submitted when an item is asked for: so an update sent to a worker after its last item is in force for its
    next one.
    """

    def __init__(self, shards: ParallelIterator, num_async: int) -> None:
        if num_async < 1:
            raise PlanError(f"Workers sample ahead by num_async >= 1 items; got {num_async}.")
        self.num_async = num_async
        self.blocking = True
        self._shards = shards
        self._pending: dict[Any, Any] = {}  # call -> worker, the oldest first

    def __call__(self) -> Iterator[Any]:
        engine = self._shards._engine
        while True:
            busy = [id(worker) for worker in self._pending.values()]
            for worker in self._shards._living_workers():
                for _ in range(self.num_async - busy.count(id(worker))):
                    self._pending[self._shards._submit(worker)] = worker
            ready = engine.wait(list(self._pending), None if self.blocking else 0)
            if not ready:
                yield NOT_READY
                continue
            worker = self._pending.pop(ready[0])
            item = engine.get(ready[0])
            current_metrics().current_actor = worker
            yield item


def _next_item(worker: Any, method: str, fns: Sequence[Callable[[Any], Any]]) -> Any:
    """Runs in the worker."""
    item = getattr(worker, method)()
    for fn in fns:
        item = fn(item)
    return item
