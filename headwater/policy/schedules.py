"""Values that change with the global timestep: learning rates and loss coefficients, made from plain config data.

A schedule is a function `timestep -> value`: its first value before its first point, its last one beyond its end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from headwater.errors import ConfigError
from headwater.settings.schedule_data import check_schedule

Schedule = Callable[[int], float]


def make_schedule(data: Any, initial: float, name: str = "schedule") -> Schedule:
    """The schedule that config data describes.

    Args:
        data: None (constant at `initial`), a list of `[timestep, value]` points, or a dict with a `type` of
            "piecewise" (`points`), "linear" or "cosine" (`start`, `end`, `timesteps`).
        initial: The plain setting's value, e.g. that of `lr`.
        name: The setting's name, for error messages.

    Raises:
        ConfigError: the data describes no schedule.

    Example:
        >>> schedule = make_schedule([[0, 1.0], [100, 0.1]], 1.0)
        >>> [round(schedule(t), 3) for t in (0, 50, 100, 1000)]
        [1.0, 0.55, 0.1, 0.1]
    """
    try:
        data = check_schedule(data)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if data is None:
        return constant(initial)
    if isinstance(data, list):
        return piecewise(data)
    if data["type"] == "piecewise":
        return piecewise(data["points"])
    return {"linear": linear, "cosine": cosine}[data["type"]](data["start"], data["end"], data["timesteps"])


def constant(value: float) -> Schedule:
    """Always `value`."""
    return lambda timestep: value


def piecewise(points: Sequence[Sequence[float]]) -> Schedule:
    """Linear between `[timestep, value]` points whose timesteps increase."""
    times, values = zip(*points, strict=True)

    def value_at(timestep: int) -> float:
        after = bisect_right(times, timestep)
        if after == 0:
            return values[0]
        if after == len(times):
            return values[-1]
        fraction = (timestep - times[after - 1]) / (times[after] - times[after - 1])
        return values[after - 1] + fraction * (values[after] - values[after - 1])

    return value_at


def linear(start: float, end: float, timesteps: int) -> Schedule:
    """From `start` to `end` in a straight line over `timesteps`."""
    return piecewise([(0, start), (timesteps, end)])


def cosine(start: float, end: float, timesteps: int) -> Schedule:
    """From `start` to `end` along half a cosine: `end + (start - end) (1 + cos(pi t / timesteps)) / 2`."""

    def value_at(timestep: int) -> float:
        if timestep >= timesteps:
            return end  # exactly: the formula may miss it by a rounding error
        return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * max(timestep, 0) / timesteps))

    return value_at
