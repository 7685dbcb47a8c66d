"""How fast a run goes and how far it is from its end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headwater.storage.nested_keys import look_up

# Bounds that a run approaches at a steady pace; the way to any other (a return) is no matter of time.
_STEPS, _ITERATIONS, _SECONDS = "timesteps_total", "training_iteration", "time_total_s"
_WINDOW_S = 10.0


class Way(NamedTuple):
    """The way to one stop criterion: how much of it is done (0 to 1), and the seconds left where they can be known."""

    key: str
    value: float
    bound: float
    done: float
    seconds_left: float | None


class Pace:
    """Measures a run by its results, over the last ten seconds.

    Args:
        stop: Result key -> the bound at which the run ends; nested keys joined by "/".
        clock: Monotonic seconds.
    """

    def __init__(self, stop: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop = dict(stop or {})
        self._clock = clock
        self._marks: deque[tuple[float, float, float]] = deque()  # (seconds, steps, iterations)
        self._first_values: dict[str, float] = {}
        self._fallback_rates = (math.nan, math.nan)

    def add(self, result: Mapping[str, Any]) -> None:
        """Take in a new result."""
        now = self._clock()
        self._marks.append((now, look_up(result, _STEPS), look_up(result, _ITERATIONS)))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_S:
            self._marks.popleft()
        seconds = look_up(result, "time_this_iter_s") or math.nan
        self._fallback_rates = (look_up(result, "timesteps_this_iter") / seconds, 1.0 / seconds)
        for key in self._stop:
            value = look_up(result, key)
            if key not in self._first_values and math.isfinite(value):
                self._first_values[key] = value

    @property
    def steps_per_second(self) -> float:
        """Env steps per second; NaN if unknown."""
        return self._rate(1)

    def ways(self, result: Mapping[str, Any]) -> list[Way]:
        """Return the way to each stop criterion, the nearest end first."""
        ways = [self._way(key, bound, look_up(result, key)) for key, bound in self._stop.items()]
        return sorted(ways, key=lambda way: (-way.done, way.seconds_left or 0.0))

    def _way(self, key: str, bound: float, value: float) -> Way:
        if key not in (_STEPS, _ITERATIONS, _SECONDS):
            first = self._first_values.get(key, value)
            return Way(key, value, bound, _fraction(value - first, bound - first), None)
        rate = 1.0 if key == _SECONDS else self._rate(1 if key == _STEPS else 2)
        seconds_left = max(0.0, bound - value) / rate if rate > 0 else math.nan
        return Way(key, value, bound, _fraction(value, bound), seconds_left if math.isfinite(seconds_left) else None)

    def _rate(self, column: int) -> float:
        if len(self._marks) > 1 and self._marks[-1][0] > self._marks[0][0]:
            first, last = self._marks[0], self._marks[-1]
            rate = (last[column] - first[column]) / (last[0] - first[0])
            if math.isfinite(rate):
                return rate
        return self._fallback_rates[column - 1]


def _fraction(done: float, whole: float) -> float:
    if not (math.isfinite(done) and math.isfinite(whole)):
        return 0.0
    return 1.0 if whole <= 0 else min(1.0, max(0.0, done / whole))
