"""What a schedule may look like in a config: data, never code, so that files and checkpoints can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.settings.number_types import as_float, as_int, shown

FORMS = (
    "[[timestep, value], ...], or {'type': 'piecewise', 'points': [[timestep, value], ...]}, "
    "or {'type': 'linear' | 'cosine', 'start': value, 'end': value, 'timesteps': number}"
)


def check_schedule(schedule: Any) -> list[list[float]] | dict[str, Any] | None:
    """The schedule with its numbers normalised.

    Raises:
        ValueError: it has none of `FORMS`, times do not increase, or a value is negative.
    """
    if schedule is None:
        return None
    if isinstance(schedule, list | tuple):
        return _points(schedule)
    if not isinstance(schedule, Mapping):
        raise ValueError(f"must be {FORMS}, but {shown(schedule)} came")
    kind = schedule.get("type")
    expected = {
        "piecewise": {"points"},
        "linear": {"start", "end", "timesteps"},
        "cosine": {"start", "end", "timesteps"},
    }
    if kind not in expected:
        raise ValueError(f"its type must be 'piecewise', 'linear' or 'cosine', but {shown(kind)} came")
    if set(schedule) - {"type"} != expected[kind]:
        raise ValueError(
            f"a {kind} schedule has the keys {sorted(expected[kind])}, but {sorted(set(schedule) - {'type'})} came"
        )
    if kind == "piecewise":
        return {"type": kind, "points": _points(schedule["points"])}
    timesteps = as_int(schedule["timesteps"])
    if timesteps < 1:
        raise ValueError(f"its timesteps must be at least 1, but {timesteps} came")
    return {"type": kind, "start": _value(schedule["start"]), "end": _value(schedule["end"]), "timesteps": timesteps}


def _points(points: Any) -> list[list[float]]:
    if not isinstance(points, list | tuple) or not points:
        raise ValueError(f"its points must be [[timestep, value], ...], but {shown(points)} came")
    result: list[list[float]] = []
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError(f"its points must be pairs [timestep, value], but {shown(point)} came")
        timestep = as_int(point[0])
        if timestep < 0 or result and timestep <= result[-1][0]:
            raise ValueError(f"its timesteps must increase from 0 or more, but {shown(points)} came")
        result.append([timestep, _value(point[1])])
    return result


def _value(value: Any) -> float:
    number = as_float(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f"its values must be finite and not negative, but {shown(value)} came")
    return number
