"""Checks of single settings that need more than a type and bounds. Each returns the value in its normal form.

A `ValueError` becomes part of the one `ConfigError` that names the setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from headwater.settings.number_types import as_bool, as_float, as_int, shown


def check_env(value: Any) -> Any:
    if value is None or isinstance(value, str) and value or callable(value):
        return value
    raise ValueError(
        f"{value!r} is an invalid env specification: give a Gymnasium id such as 'CartPole-v1', 'module:EnvId', a name "
        "given to register_env, an env class, or a function of the env context"
    )


def check_clip_rewards(value: Any) -> bool | float | None:
    if value is None or isinstance(value, bool):
        return value
    try:
        number = as_float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"must be true, false, null or a number greater than 0, but {shown(value)} came")
    return number


def check_num_workers(value: Any) -> int:
    number = as_int(value)
    if number > 0:
        raise ValueError(
            f"remote samplers are not available in this version yet: must be 0, but {number} came "
            "(num_envs_per_worker steps more envs together; vectorization 'async' gives each a process)"
        )
    return number


def check_fragment(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, str) and not value[:1].isdigit():
        raise ValueError(f"must be a whole number or 'auto', but {shown(value)} came")
    number = as_int(value)
    if number < 1:
        raise ValueError(f"must be 'auto' or at least 1, but {number} came")
    return number


def check_framework(value: Any) -> str:
    if value in ("tf", "tfe"):
        return "tf2"
    if value in ("torch", "tf2", "jax"):
        return str(value)
    raise ValueError(f"must be 'torch', 'tf2' or 'jax', but {shown(value)} came")


def check_device(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        return value
    raise ValueError(f"must be 'auto', 'cpu', 'cuda' or 'cuda:<index>', but {shown(value)} came")


def check_log_level(value: Any) -> str:
    name = value.upper() if isinstance(value, str) else value
    name = "WARN" if name == "WARNING" else name
    if name in ("DEBUG", "INFO", "WARN", "ERROR"):
        return name
    raise ValueError(f"must be 'DEBUG', 'INFO', 'WARN' or 'ERROR', but {shown(value)} came")


def check_exploration(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind != "StochasticSampling":
        raise ValueError(
            f"its type must be 'StochasticSampling' (others are not available yet), but {shown(kind)} came"
        )
    unknown = sorted(set(value) - {"type", "random_timesteps"})
    if unknown:
        raise ValueError(f"StochasticSampling has the one setting random_timesteps, but {', '.join(unknown)} came")
    if "random_timesteps" not in value:
        return value
    steps = as_int(value["random_timesteps"])
    if steps < 0:
        raise ValueError(f"its random_timesteps must be at least 0, but {steps} came")
    return {**value, "random_timesteps": steps}


def check_reference(value: Any) -> Any:
    if value is None or callable(value) or isinstance(value, str) and value:
        return value
    raise ValueError(f"must be a class or function, its 'module:name', or a registered name, but {shown(value)} came")


def check_callbacks(value: Any) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(
            "a dict of functions is no longer taken: derive a class from headwater.callbacks.DefaultCallbacks"
        )
    if value is None or isinstance(value, bool | int | float | list | tuple) or value == "":
        raise ValueError(
            f"must be a DefaultCallbacks class or instance, or its 'module:Class', but {shown(value)} came"
        )
    return value


def check_input(value: Any) -> Any:
    if isinstance(value, str) and value or callable(value) or hasattr(value, "next"):
        return value
    if isinstance(value, Mapping) and value:
        return {str(source): as_float(share) for source, share in value.items()}
    if isinstance(value, list | tuple) and value:
        return [str(path) for path in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise ValueError(
        f"must be 'sampler', a path or glob, a list of them, 'minari:ID', {{source: share}} or a function, but "
        f"{shown(value)} came"
    )


def check_output(value: Any) -> Any:
    if value is None or isinstance(value, str) and value or callable(value) or hasattr(value, "write"):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise ValueError(f"must be a directory, 'logdir', 'minari:ID', a function or null, but {shown(value)} came")


def check_space(value: Any) -> Any:
    if value is None or hasattr(value, "sample") or isinstance(value, Mapping) and "type" in value:
        return value
    raise ValueError(f"must be a gymnasium space or null, but {shown(value)} came")


def check_bool_or_auto(value: Any) -> bool | str:
    try:
        return "auto" if isinstance(value, str) and value == "auto" else as_bool(value)
    except ValueError:
        raise ValueError(f"must be true, false or 'auto', but {shown(value)} came") from None


def check_filters(value: Any) -> list[list[int]] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be [[channels, kernel, stride], ...] or null, but {shown(value)} came")
    filters = []
    for layer in value:
        if not isinstance(layer, list | tuple) or len(layer) != 3:
            raise ValueError(f"each layer must be [channels, kernel, stride], but {shown(layer)} came")
        sizes = [_square(size) for size in layer]
        if min(sizes) < 1:
            raise ValueError(f"channels, kernel and stride must be at least 1, but {shown(layer)} came")
        filters.append(sizes)
    return filters


def _square(size: Any) -> int:
    """One size; the 1.x line's pair [8, 8] is the size 8."""
    if isinstance(size, list | tuple):
        if len(size) != 2 or size[0] != size[1]:
            raise ValueError(f"kernels and strides are square: one number (or twice the same), but {shown(size)} came")
        size = size[0]
    return as_int(size)
