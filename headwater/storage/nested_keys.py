"""Keys of nested dicts, their parts joined by "/", as results, files and settings name them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def look_up(result: Mapping[str, Any], key: str) -> float:
    """The number under `key`, such as `evaluation/episode_reward_mean`; NaN where there is none."""
    value: Any = result
    for part in key.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    try:
        return float(value) if value is not None else math.nan
    except (TypeError, ValueError):
        return math.nan
