"""How a plan reads: the names of operators, the kinds of items that pass between them, and the drawing of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.execution.stages import Stage

Kind = Any  # a type, a tuple of types, or Any: what an operator takes or gives

SAME = object()  # as `gives`: the items that come in, unchanged

PLAIN = (bool, int, float, str, type(None))


def operator_name(op: Any) -> str:
    """A function's name, or an operator's class."""
    return getattr(op, "__name__", None) or type(op).__name__


def plain_attributes(op: Any) -> dict[str, Any]:
    """Public attributes of an operator that are numbers, strings, or short lists of these: its settings."""
    if op is None or isinstance(op, type) or hasattr(op, "__code__"):
        return {}
    return {
        name: value
        for name, value in getattr(op, "__dict__", {}).items()
        if not name.startswith("_") and (isinstance(value, PLAIN) or _is_short_list(value))
    }


def kind_name(kind: Kind) -> str:
    """A kind as the drawing and errors write it."""
    if kind is Any:
        return "any"
    if isinstance(kind, tuple):
        return "|".join(kind_name(part) for part in kind)
    return kind.__name__


def compatible(gives: Kind, takes: Kind) -> bool:
    """Whether something of the kind given may be of the kind taken."""
    if gives is Any or takes is Any:
        return True
    given = gives if isinstance(gives, tuple) else (gives,)
    taken = takes if isinstance(takes, tuple) else (takes,)
    return any(issubclass(g, t) or issubclass(t, g) for g in given for t in taken)


def draw(last: Stage) -> str:
    """One line per operator, in the order in which items pass: place, name, what it takes and gives, its settings.

    Branches that run side by side are indented above the operator that joins them.
    """
    places = {id(stage): place for place, stage in enumerate(last.walk(), start=1)}
    rows: list[tuple[str, str, str]] = []

    def visit(stage: Stage, depth: int) -> None:
        indent = "    " * depth
        if id(stage) not in places:
            return
        if len(stage.parents) == 1:
            visit(stage.parents[0], depth)
        for branch, parent in enumerate(stage.parents if len(stage.parents) > 1 else []):
            rows.append((f"{indent}  branch {branch}:", "", ""))
            visit(parent, depth + 1)
        settings = ", ".join(f"{k}={v!r}" for k, v in stage.settings().items() if v is not None and v != [])
        arrow = f"-> {kind_name(stage.gives)}"
        flow = f"{kind_name(stage.takes)} {arrow}" if stage.parents else arrow
        rows.append((f"{indent}{places.pop(id(stage)):3d}  {stage.name}", flow, settings))

    visit(last, 0)
    name_width, flow_width = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{name:<{name_width}}  {flow:<{flow_width}}  {text}".rstrip() for name, flow, text in rows)


def _is_short_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= 8 and all(isinstance(item, PLAIN) for item in value)
