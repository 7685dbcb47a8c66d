"""Stages: the machinery under `LocalIterator`. Each pulls items from the stages above it.

A stage keeps what it holds between items in attributes, not in a suspended generator. So a plan goes on after an
exception as if the item that caused it had never come, and a plan's state can be read and set between two items.

Where nothing can be delivered without waiting, a stage returns a `_NextValueNotReady`, which the others hand on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwater.execution.plan_drawing import Kind, compatible, kind_name, operator_name, plain_attributes
from headwater.execution.plan_state import Stateful, pack_items, unpack_items
from headwater.execution.shared_metrics import PlanError, PlanTypeError, SharedMetrics, current_metrics

STAR_PULLS = 100  # the most items in one turn of a branch of weight "*"


class _NextValueNotReady(Exception):
    """Returned, not raised, in the place of an item: ask again later. Its text says what is waited for."""


NOT_READY = _NextValueNotReady("nothing to deliver yet")


class Stage(ABC):
    """One line of a plan.

    Args:
        parents: the stages that it pulls from.
        metrics: shared by all stages of a plan.
        op: the operator, function or source that does the work; it names the stage.
        takes: what items it can take; checked against what the parents give.
        gives: what items it delivers.

    Raises:
        PlanTypeError: a parent gives what `op` cannot take.
        PlanError: a parent already has a consumer.
    """

    def __init__(
        self,
        parents: Sequence[Stage],
        metrics: SharedMetrics,
        op: Any = None,
        *,
        name: str | None = None,
        takes: Kind = Any,
        gives: Kind = Any,
    ) -> None:
        self.parents = list(parents)
        self.metrics = metrics
        self.op = op
        self.name = name or operator_name(op)
        self.takes = takes
        self.gives = gives
        self.consumer: str | None = None
        for parent in self.parents:
            if not compatible(parent.gives, takes):
                raise PlanTypeError(
                    f"{parent.name} gives {kind_name(parent.gives)}, but {self.name} takes {kind_name(takes)}. Put an "
                    "operator between them that turns the one into the other, or change their order."
                )
            parent.claim(self.name)

    def claim(self, consumer: str) -> None:
        """Note who pulls from this stage; there can be one only."""
        if self.consumer is not None:
            raise PlanError(
                f"Items of {self.name} already go to {self.consumer}, so {consumer} would take them away from it. "
                "Use .duplicate(2) to send each item to both."
            )
        self.consumer = consumer

    @abstractmethod
    def pull(self) -> Any:
        """The next item, or a `_NextValueNotReady`; StopIteration at the end."""

    def settings(self) -> dict[str, Any]:
        """What to draw behind the name: the operator's public attributes of plain types."""
        return plain_attributes(self.op)

    def walk(self) -> Iterator[Stage]:
        """This stage and all above it, parents first."""
        seen: set[int] = set()

        def visit(stage: Stage) -> Iterator[Stage]:
            if id(stage) not in seen:
                seen.add(id(stage))
                for parent in stage.parents:
                    yield from visit(parent)
                yield stage

        return visit(self)

    def get_state(self) -> dict[str, Any]:
        """State of the stage and of its operator; empty if there is none."""
        state: dict[str, Any] = {}
        if not isinstance(self.op, type) and isinstance(self.op, Stateful):
            state["op"] = self.op.get_state()
        held = self._get_held()
        if held:
            state["held"] = held
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        if "op" in state:
            self.op.set_state(state["op"])
        self._set_held(state.get("held", {}))

    def _get_held(self) -> dict[str, Any]:
        return {}

    def _set_held(self, held: Mapping[str, Any]) -> None:  # noqa: B027  (most stages hold nothing back)
        """Take over what `_get_held` gave."""


class Source(Stage):
    """Items from `op()`, an iterable made when first asked, and made anew after it raised."""

    _items: Iterator[Any] | None = None

    def pull(self) -> Any:
        if self._items is None:
            self._items = iter(self.op())
        try:
            return next(self._items)
        except StopIteration:
            raise
        except BaseException:
            self._items = None
            raise


class ForEach(Stage):
    """`op(item)` of each item; the item is offered again while `op` is not ready for it."""

    _waiting: tuple[Any] | None = None

    def pull(self) -> Any:
        item = self._fetch()
        if isinstance(item, _NextValueNotReady):
            return item
        result = self.op(item)
        if isinstance(result, _NextValueNotReady):
            self._waiting = (item,)
        return result

    def _fetch(self) -> Any:
        if self._waiting is not None:
            (item,) = self._waiting
            self._waiting = None
            return item
        on_fetch_start = getattr(self.op, "_on_fetch_start", None)
        if on_fetch_start is not None:
            on_fetch_start()
        return self.parents[0].pull()

    def _get_held(self) -> dict[str, Any]:
        return {"items": pack_items(self.name, self._waiting)} if self._waiting is not None else {}

    def _set_held(self, held: Mapping[str, Any]) -> None:
        items = unpack_items(held.get("items", []))
        self._waiting = (items[0],) if items else None


class Combine(ForEach):
    """Each of the items that `op(item)` lists. Without `op`, each of those that the item lists."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listed: deque[Any] = deque()

    def pull(self) -> Any:
        while not self._listed:
            items = self._fetch() if self.op is None else super().pull()
            if isinstance(items, _NextValueNotReady):
                return items
            self._listed.extend(items)
        return self._listed.popleft()

    def _get_held(self) -> dict[str, Any]:
        held = super()._get_held()
        return {**held, "listed": pack_items(self.name, self._listed)} if self._listed else held

    def _set_held(self, held: Mapping[str, Any]) -> None:
        super()._set_held(held)
        self._listed = deque(unpack_items(held.get("listed", [])))


class Filter(Stage):
    """The items for which `op(item)` is true."""

    def pull(self) -> Any:
        while True:
            item = self.parents[0].pull()
            if isinstance(item, _NextValueNotReady) or self.op(item):
                return item


class Gather(Stage):
    """Lists of `n` items; the last may be shorter."""

    def __init__(self, parents: Sequence[Stage], metrics: SharedMetrics, n: int) -> None:
        super().__init__(parents, metrics, name="batch", gives=list)
        self.n = n
        self._gathered: list[Any] = []

    def pull(self) -> Any:
        while len(self._gathered) < self.n:
            try:
                item = self.parents[0].pull()
            except StopIteration:
                if not self._gathered:
                    raise
                break
            if isinstance(item, _NextValueNotReady):
                return item
            self._gathered.append(item)
        gathered, self._gathered = self._gathered, []
        return gathered

    def settings(self) -> dict[str, Any]:
        return {"n": self.n}

    def _get_held(self) -> dict[str, Any]:
        return {"items": pack_items(self.name, self._gathered)} if self._gathered else {}

    def _set_held(self, held: Mapping[str, Any]) -> None:
        self._gathered = unpack_items(held.get("items", []))


class WithSource(Stage):
    """(worker, item) for each item that came from a remote worker."""

    def __init__(self, parents: Sequence[Stage], metrics: SharedMetrics) -> None:
        super().__init__(parents, metrics, name="zip_with_source_actor", gives=tuple)

    def pull(self) -> Any:
        item = self.parents[0].pull()
        if isinstance(item, _NextValueNotReady):
            return item
        actor = current_metrics().current_actor
        if actor is None:
            raise PlanError(
                "zip_with_source_actor found no source: the items of this plan do not come one by one from remote "
                "workers. Use it behind ParallelRollouts(mode='async') with num_workers > 0."
            )
        return actor, item


class Split(Stage):
    """One of several branches that each get every item of `parent`."""

    def __init__(self, parent: Stage, metrics: SharedMetrics, queues: list[deque[Any]], index: int) -> None:
        super().__init__([] if index else [parent], metrics, name=f"duplicate[{index}]", gives=parent.gives)
        self.parents = [parent]
        self._queues = queues
        self._index = index

    def pull(self) -> Any:
        queue = self._queues[self._index]
        if not queue:
            if any(self._queues):
                return NOT_READY  # ahead of the others, which must catch up first
            item = self.parents[0].pull()
            if isinstance(item, _NextValueNotReady):
                return item
            for other in self._queues:
                other.append(item)
        return queue.popleft()

    def _get_held(self) -> dict[str, Any]:
        queue = self._queues[self._index]
        return {"items": pack_items(self.name, queue)} if queue else {}

    def _set_held(self, held: Mapping[str, Any]) -> None:
        self._queues[self._index] = deque(unpack_items(held.get("items", [])))


class Union(Stage):
    """Items of several branches, taken in turns.

    Args:
        weights: pulls of each branch per turn; a fraction is saved up until it makes a whole pull. "*" takes what is
            ready, up to `STAR_PULLS`. A branch that is not ready loses the rest of its turn.
        outputs: the branches whose items are delivered (None = all); those of the others are dropped.
    """

    def __init__(
        self,
        parents: Sequence[Stage],
        metrics: SharedMetrics,
        *,
        name: str,
        weights: Sequence[float | str],
        outputs: Sequence[int] | None,
        settings: dict[str, Any],
    ) -> None:
        kinds = [parents[i].gives for i in (outputs or range(len(parents)))]
        super().__init__(parents, metrics, name=name, gives=kinds[0] if all(k == kinds[0] for k in kinds) else Any)
        self.weights = list(weights)
        self.outputs = set(range(len(parents)) if outputs is None else outputs)
        self._settings = settings
        self._finished: set[int] = set()
        self._turn = 0
        self._pulls_left: int | None = None
        self._credit = [0.0] * len(parents)

    def settings(self) -> dict[str, Any]:
        return self._settings

    def pull(self) -> Any:
        unready = 0
        while not self.outputs <= self._finished:
            if unready >= len(self.parents) - len(self._finished):
                return NOT_READY
            branch = self._turn
            if self._pulls_left is None:
                self._pulls_left = 0 if branch in self._finished else self._pulls_of(branch)
            if self._pulls_left == 0:
                self._end_turn()
                continue
            try:
                item = self.parents[branch].pull()
            except StopIteration:
                self._finished.add(branch)
                self._end_turn()
                continue
            if isinstance(item, _NextValueNotReady):
                unready += 1
                self._end_turn()
                continue
            unready = 0
            self._pulls_left -= 1
            if branch in self.outputs:
                return item
        raise StopIteration

    def _pulls_of(self, branch: int) -> int:
        weight = self.weights[branch]
        if isinstance(weight, str):
            return STAR_PULLS
        self._credit[branch] += weight
        pulls = int(self._credit[branch] + 1e-9)  # so that ten times 0.1 is one
        self._credit[branch] -= pulls
        return pulls

    def _end_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self.parents)
        self._pulls_left = None

    def _get_held(self) -> dict[str, Any]:
        return {"turn": self._turn, "pulls_left": self._pulls_left, "credit": list(self._credit)}

    def _set_held(self, held: Mapping[str, Any]) -> None:
        self._turn = held.get("turn", 0)
        self._pulls_left = held.get("pulls_left")
        self._credit = list(held.get("credit", [0.0] * len(self.parents)))
