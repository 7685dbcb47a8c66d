"""The state of a plan: everything in its operators that influences what comes next, for a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from headwater.data.sample_batch import Batch, BatchError, batch_from_state
from headwater.errors import CheckpointError

if TYPE_CHECKING:
    from headwater.execution.stages import Stage

logger = logging.getLogger(__name__)


@runtime_checkable
class Stateful(Protocol):
    """An operator whose state belongs in a checkpoint."""

    def get_state(self) -> Any:
        """JSON values and arrays."""

    def set_state(self, state: Any) -> None:
        """Take over what `get_state` gave."""


def get_plan_state(last: Stage) -> dict[str, Any]:
    """`metrics`, and `operators`: the state of each stage that has one, by its name.

    JSON values only, except for batches held back between two results, whose columns are arrays.
    """
    operators = {key: state for key, stage in _named(last).items() if (state := stage.get_state())}
    return {"metrics": last.metrics.save(), "operators": operators}


def set_plan_state(last: Stage, state: Mapping[str, Any]) -> None:
    """Take over what `get_plan_state` gave for an equal plan.

    Raises:
        CheckpointError: the saved plan had an operator with a state that this one lacks.
    """
    stages = _named(last)
    unknown = sorted(set(state["operators"]) - set(stages))
    if unknown:
        raise CheckpointError(
            f"The saved state belongs to another execution plan: it has {unknown}, this plan has {list(stages)}. "
            "Restore it into a trainer with the plan that it was saved from."
        )
    last.metrics.restore(state["metrics"])
    for key, stage in stages.items():
        stage.set_state(state["operators"].get(key, {}))


def _named(last: Stage) -> dict[str, Stage]:
    """The stages by name; the second of a name is `name#2`, and so on."""
    named: dict[str, Stage] = {}
    counts: dict[str, int] = {}
    for stage in last.walk():
        counts[stage.name] = count = counts.get(stage.name, 0) + 1
        named[stage.name if count == 1 else f"{stage.name}#{count}"] = stage
    return named


def pack_items(holder: str, items: Iterable[Any]) -> list[Any]:
    """Items that a stage holds back, as arrays and JSON values; what cannot be saved is left out with a warning."""
    packed: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Batch):
            try:
                packed.append({"batch": item.to_state()})
                continue
            except BatchError as error:
                reason = str(error)
        elif item is None or isinstance(item, (bool, int, float, str, np.ndarray)):
            packed.append({"value": item})
            continue
        else:
            reason = f"a {type(item).__name__} is neither a batch nor a plain value."
        logger.warning("An item held by %s is not in the saved plan state: %s", holder, reason)
    return packed


def unpack_items(state: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The items of which `pack_items` made `state`."""
    return [batch_from_state(item["batch"]) if "batch" in item else item["value"] for item in state]
