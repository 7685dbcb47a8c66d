"""merge_config: a default config overlaid by what a user set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from headwater.settings.problems import Problem, SettingsError
from headwater.settings.settings import NOT_IMPORTABLE, Settings, changes, copied, mark_set, plain, string_keyed

MERGED = ("env_config", "model", "optimizer", "evaluation_config", "exploration_config", "multiagent")
"""Settings that are dicts and merge key by key; any other is replaced."""

Config = TypeVar("Config", bound=Settings)


def merge_config(default: Config, user: Mapping[str, Any] | Settings | None) -> Config:
    """`default` overlaid by what the user set, checked; neither is changed.

    The dicts named in `MERGED` merge key by key, to their depth, except that an exploration_config with another "type"
    replaces the default's. Of a config object only what was set counts; the result has its class where that is derived
    from the default's.

    Raises:
        ConfigError: something is unknown, ill-typed, out of bounds, or cannot work together.
    """
    cls = type(user) if isinstance(user, type(default)) else type(default)
    given = changes(user) if isinstance(user, Settings) else _changes_of_dict(user, cls)
    config = cls(**merged_values(plain(default), given))
    mark_set(config, merged_values(changes(default), given))
    check = getattr(config, "check", None)
    if check is not None:
        check()
    return config


def _changes_of_dict(user: Any, cls: type[Settings]) -> dict[str, Any]:
    given = {} if user is None else string_keyed(user, cls.__name__)
    twice = [key for key in given if cls.key_of(key) != key and cls.key_of(key) in given]
    if twice:
        raise SettingsError(cls.__name__, [Problem(key, f"is {cls.key_of(key)}, which is given too") for key in twice])
    return {cls.key_of(key): changes(value) if isinstance(value, Settings) else value for key, value in given.items()}


def merged_values(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings `base` overlaid by `given`, as a new dict."""
    merged = {key: copied(value) for key, value in base.items()}
    for key, value in given.items():
        old = merged.get(key)
        if key in MERGED and isinstance(old, Mapping) and isinstance(value, Mapping):
            other_type = key == "exploration_config" and value.get("type", old.get("type")) != old.get("type")
            merged[key] = copied(value) if other_type else merge_dicts(old, value)
        else:
            merged[key] = copied(value)
    return merged


def merge_dicts(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: `base` overlaid by `given`, dicts inside dicts likewise."""
    merged = {key: copied(value) for key, value in base.items()}
    for key, value in given.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = merge_dicts(merged[key], value) if both else copied(value)
    return merged


def restored_values(data: Any, overrides: Any, cls: type[Settings]) -> dict[str, Any]:
    """What `to_dict` wrote, overlaid by `overrides`.

    Raises:
        SettingsError: it lacks a callable that could not be stored, and the overrides do not give it again.
    """
    stored = string_keyed(data, cls.__name__)
    merged = merged_values(stored, _changes_of_dict(overrides, cls))
    lost = [
        Problem(path, f"was {text}, which could not be stored: give it again in the config")
        for path, text in _lost(merged)
    ]
    if lost:
        raise SettingsError(cls.__name__, lost)
    return merged


def _lost(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The places of values that `to_json` could not say, and their repr."""
    if isinstance(value, Mapping) and set(value) == {NOT_IMPORTABLE}:
        yield path, value[NOT_IMPORTABLE]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _lost(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _lost(item, f"{path}[{index}]")
