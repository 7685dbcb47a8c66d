"""When a training is done: bounds on the numbers of its results."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from headwater.errors import ConfigError

REWARD = "episode_reward_mean"
TIMESTEPS = "timesteps_total"
ITERATIONS = "training_iteration"
SECONDS = "time_total_s"


class StopCriteria:
    """Stops when any of the given results reaches its bound.

    Args:
        bounds: result key -> the value that is enough. A nested result is written with slashes, as in
            `evaluation/episode_reward_mean`.
        window: how many episodes the running means are taken over; a mean counts only once so many have ended.

    Raises:
        ConfigError: a bound is not a number, or one that is reached before the first iteration.
    """

    def __init__(self, bounds: Mapping[str, Any], window: int = 1) -> None:
        self.bounds: dict[str, float] = {}
        self.window = window
        for key, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise ConfigError(f"The stop criterion {key!r} must be a number, not {value!r}.")
            if key in (TIMESTEPS, ITERATIONS, SECONDS) and value <= 0:
                raise ConfigError(f"The stop criterion {key!r} must be above 0, not {value!r}.")
            self.bounds[key] = value

    def __str__(self) -> str:
        if not self.bounds:
            return "none (runs until Ctrl-C)"
        return " or ".join(f"{key} >= {value:.10g}" for key, value in self.bounds.items())

    def reached(self, result: Mapping[str, Any]) -> str | None:
        """Why to stop after `result`, or None to go on.

        Raises:
            ConfigError: a bound's key is no result.
        """
        for key, bound in self.bounds.items():
            value = self._look_up(key, result)
            if value is None or math.isnan(value) or value < bound:
                continue
            if key.startswith("episode_") and result.get("episodes_total", self.window) < self.window:
                continue  # a mean over a few lucky episodes is not the mean that was asked for
            return f"{key} {value:.6g} >= {bound:.10g}"
        return None

    @staticmethod
    def _look_up(key: str, result: Mapping[str, Any]) -> float | None:
        value: Any = result
        parts = key.split("/")
        for part in parts:
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif parts[0] in ("evaluation", "custom_metrics"):
                return None  # there only in some iterations
            else:
                names = [name for name, number in result.items() if isinstance(number, (int, float))]
                near = difflib.get_close_matches(key, names, n=3) or [REWARD, TIMESTEPS, ITERATIONS, SECONDS]
                raise ConfigError(f"The stop criterion {key!r} is no result of training. Near it: {', '.join(near)}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"The stop criterion {key!r} is {type(value).__name__}, not a number, in the results.")
        return value
