"""A result as text and as a flat table: strict JSON in which NaN is null, and scalars named by their path."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

# Said once in params.json, not with each result.
_ONCE = "config"
# Lists of episodes: for result.jsonl only.
_LISTS = "hist_stats"


def result_to_json(result: Mapping[str, Any]) -> str:
    """Write a result, without its config, as one line of strict JSON.

    NaN and infinite numbers, which JSON has not, become null; NumPy values become plain ones; anything else that JSON
    has no word for becomes its text.

    Example:
        >>> result_to_json({"episode_reward_mean": float("nan"), "timesteps_total": 128, "config": {"lr": 0.1}})
        '{"episode_reward_mean":null,"timesteps_total":128}'
    """
    compact = {key: value for key, value in result.items() if key != _ONCE}
    try:  # the C encoder, which stops at what it does not know
        return json.dumps(compact, allow_nan=False, separators=(",", ":"), default=_to_plain)
    except (ValueError, TypeError):
        return json.dumps(to_strict(compact), allow_nan=False, separators=(",", ":"))


def to_strict(value: Any, depth: int = 0) -> Any:
    """Return `value` as what strict JSON can hold; what is nested deeper than 50 is cut off as text."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > 50:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): to_strict(part, depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_strict(part, depth + 1) for part in value]
    return to_strict(_to_plain(value), depth + 1)


def flatten_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts of a result by their path, without config, lists and episode histories.

    Example:
        >>> flatten_result({"info": {"learner": {"default_policy": {"kl": 0.01}}}, "hist_stats": {"x": [1]}, "pid": 7})
        {'info/learner/default_policy/kl': 0.01, 'pid': 7}
    """
    flat: dict[str, Any] = {}
    _flatten(result, "", flat, 0)
    return flat


def _flatten(part: Mapping[Any, Any], prefix: str, flat: dict[str, Any], depth: int) -> None:
    for key, value in part.items():
        if isinstance(value, (float, int, str)):
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            if key not in (_ONCE, _LISTS) and depth < 50:
                _flatten(value, f"{prefix}{key}/", flat, depth + 1)
        elif value is None or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
            flat[f"{prefix}{key}"] = None if value is None else value.item()


def _to_plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return value.tolist()
    return str(value)
