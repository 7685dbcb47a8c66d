"""What a run is asked to do, from the command line and from files: `--set key=value`, YAML and TOML in three forms.

The forms of a file:
    plain          the settings themselves
    by env         {env id: settings, ...}; --env chooses
    tuned example  {name: {run: PPO, env: id, stop: {...}, config: settings}, ...}; --env chooses

A plain file or an entry by env may hold `env`, `run` (the algorithm) and `stop` beside its settings.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError


@dataclass
class RunRequest:
    """What a file or a command line asks for.

    Attributes:
        algorithm, env: as named, or None.
        stop: result key -> bound.
        config: the trainer's settings, as a plain nested dict.
    """

    algorithm: str | None = None
    env: str | None = None
    stop: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["lr=1e-4", "model.fcnet_hiddens=[64, 64]"]` -> `{"lr": 0.0001, "model": {"fcnet_hiddens": [64, 64]}}`.

    Raises:
        ConfigError: one has no `=`, or its value is not YAML.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"--set {assignment!r} is not KEY=VALUE, as in --set lr=3e-4 or --set model.use_x=true.")
        nested: Any = parse_yaml(value, f"The value of --set {assignment!r}")
        for part in reversed(parts):
            nested = {part: nested}
        settings = merge_nested(settings, nested)
    return settings


def merge_nested(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: `above` over `below`, dicts merged key by key."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge_nested(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_yaml(text: str, what: str) -> Any:
    """Safe YAML, with `1e-4` understood as the float that it is (YAML 1.1 takes it for a string).

    Raises:
        ConfigError: `text` is not YAML; the message begins with `what`.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from None


def read_request(path: Path, env: str | None, known: Collection[str]) -> RunRequest:
    """Read a file of any form.

    Args:
        path: a .yaml, .yml or .toml file.
        env: the env asked for, which chooses among several entries.
        known: the names of settings, by which the plain form is told from the others.

    Raises:
        ConfigError: the file cannot be read, is of no known form, or does not hold the env.
    """
    content = _read(path)
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path} must hold settings by name (a mapping), not {type(content).__name__}.")
    if any(key in known or key in ("env", "run", "stop") for key in content) or not _all_mappings(content):
        return _from_plain(path, content)
    if any("config" in entry for entry in content.values()):
        named = {name: _from_tuned_example(path, name, entry) for name, entry in content.items()}
    else:
        named = {name: _from_plain(path, {"env": name, **entry}) for name, entry in content.items()}
    return _choose(path, named, env)


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read the settings in {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8.") from None
    if path.suffix == ".toml":
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"{path} must end in .yaml, .yml, .json or .toml.")
    return parse_yaml(text, str(path)) or {}


def _all_mappings(content: Mapping[str, Any]) -> bool:
    return bool(content) and all(isinstance(value, Mapping) for value in content.values())


def _from_plain(path: Path, content: Mapping[str, Any]) -> RunRequest:
    config = dict(content)
    return _typed(path, config.pop("run", None), config.pop("env", None), config.pop("stop", None), config)


def _from_tuned_example(path: Path, name: str, entry: Mapping[str, Any]) -> RunRequest:
    extra = set(entry) - {"run", "env", "stop", "config"}
    if extra:
        raise ConfigError(f"{path}: {name!r} may hold run, env, stop and config, but not {', '.join(sorted(extra))}.")
    config = dict(entry.get("config") or {})
    env = config.pop("env", None)
    return _typed(path, entry.get("run"), entry.get("env", env), entry.get("stop"), config)


def _typed(path: Path, run: Any, env: Any, stop: Any, config: dict[str, Any]) -> RunRequest:
    for what, value in (("run", run), ("env", env)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{path}: {what!r} must be a name, not {value!r}.")
    if stop is not None and not isinstance(stop, Mapping):
        raise ConfigError(f"{path}: 'stop' must hold bounds by result key, as in {{episode_reward_mean: 475}}.")
    return RunRequest(run, env, dict(stop or {}), config)


def _choose(path: Path, named: Mapping[str, RunRequest], env: str | None) -> RunRequest:
    if env is None and len(named) == 1:
        return next(iter(named.values()))
    envs = [request.env or name for name, request in named.items()]
    held = ", ".join(sorted(set(envs)))
    if env is None:
        raise ConfigError(f"{path} holds settings for several envs; choose one with --env: {held}.")
    fitting = [request for request in named.values() if request.env == env]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(f"{path} holds {len(fitting)} entries for {env}; leave one in the file.")
    near = difflib.get_close_matches(env, envs, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{path} has no settings for {env}; it has: {held}.{hint}")
