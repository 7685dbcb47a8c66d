"""`headwater list` and `headwater config`: what there is to train with, and every setting of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from headwater.cli.output import reporting_errors, say

_WIDTH = 96


@dataclass(frozen=True)
class Setting:
    """One setting as a user sees it: dotted name, type, default and bounds as text, and what it means."""

    name: str
    type: str
    default: Any
    bounds: str
    meaning: str


def list_algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: name -> what it is.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Name the algorithms.

    \b
    Example:
      headwater list
    """
    with reporting_errors(debug):
        from headwater.registry import ALGORITHMS, get_config_class

        summaries = {name: _summary(get_config_class(name).__doc__) for name in sorted(ALGORITHMS)}
        if as_json:
            say(json.dumps(summaries, indent=2))
            return
        for name, summary in summaries.items():
            say(f"{name:<8} {summary}")
        say("\nSettings: headwater config NAME     Train: headwater train NAME --env CartPole-v1")


def config(
    algorithm: Annotated[str, typer.Argument(help="An algorithm of `headwater list`.")],
    setting: Annotated[
        str | None, typer.Argument(help="One setting, or the group before a dot (model). Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of the settings.")] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="A file of the defaults, for `train --config`.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Show every setting: type, default, bounds, meaning.

    \b
    Example:
      headwater config PPO
      headwater config PPO clip_param
      headwater config PPO --yaml > ppo.yaml
    """
    with reporting_errors(debug):
        from headwater.registry import get_config_class

        settings = select(settings_of(get_config_class(algorithm)), setting, algorithm)
        if as_json:
            say(json.dumps([asdict(each) for each in settings], indent=2))
        elif as_yaml:
            say(_as_yaml(settings))
        else:
            say("\n\n".join(_as_text(each) for each in settings))


def settings_of(config_class: Any, prefix: str = "", defaults: Any = None) -> list[Setting]:
    """The settings of a pydantic config class, those of its sub-models under dotted names.

    Args:
        defaults: a config object to take the defaults from; a fresh one when None.
    """
    from pydantic import BaseModel

    defaults = config_class() if defaults is None else defaults
    found: list[Setting] = []
    for field_name, field in config_class.model_fields.items():
        name = prefix + (field.alias or field_name)
        value = getattr(defaults, field_name)
        if isinstance(value, BaseModel):
            found += settings_of(type(value), f"{name}.", value)
            continue
        bounds = _bounds_of(field)
        kind = (field.json_schema_extra or {}).get("kind", "").replace("None", "null") or _type_text(field.annotation)
        found.append(Setting(name, kind, _plain(value), bounds, field.description or ""))
    return found


def select(settings: list[Setting], wanted: str | None, algorithm: str) -> list[Setting]:
    """The setting called `wanted`, the group before its dot, or all when None.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    if wanted is None:
        return settings
    chosen = [each for each in settings if each.name == wanted or each.name.startswith(f"{wanted}.")]
    if chosen:
        return chosen
    import difflib

    from headwater.errors import ConfigError

    near = difflib.get_close_matches(wanted, [each.name for each in settings], n=3, cutoff=0.5)
    hint = f"Near it: {', '.join(near)}." if near else f"`headwater config {algorithm}` shows them all."
    raise ConfigError(f"{algorithm} has no setting {wanted!r}. {hint}")


def _bounds_of(field: Any) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "min_length": "length >=", "max_length": "length <="}
    return ", ".join(
        f"{sign} {getattr(part, attribute)}"
        for part in _metadata_of(field)
        for attribute, sign in signs.items()
        if getattr(part, attribute, None) is not None
    )


def _metadata_of(field: Any) -> list[Any]:
    """The bounds of a field, also those inside `Annotated[...] | None`."""
    from typing import get_args

    inner = [part for option in get_args(field.annotation) for part in getattr(option, "__metadata__", ())]
    found: list[Any] = []
    for part in [*field.metadata, *inner]:
        found += _metadata_of(part) if hasattr(part, "annotation") and hasattr(part, "metadata") else [part]
    return found


def _type_text(annotation: Any) -> str:
    import types
    from typing import Literal, Union, get_args, get_origin

    if annotation is Any:
        return "any"
    if annotation is None or annotation is type(None):
        return "null"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_type_text(argument) for argument in arguments))
    if isinstance(annotation, list):  # the arguments of a Callable
        return ", ".join(_type_text(argument) for argument in annotation)
    name = getattr(origin or annotation, "__name__", str(annotation))
    inner = ", ".join("..." if argument is Ellipsis else _type_text(argument) for argument in arguments)
    return f"{name.lower()}[{inner}]" if inner else name


def _plain(value: Any) -> Any:
    """`value` as JSON can say it; a class as `module:Class`, which a file can hold; anything else by its name."""
    from headwater.registry import callable_reference

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return callable_reference(value) or getattr(value, "__name__", str(value))


def _summary(docstring: str | None) -> str:
    """The first paragraph of a config class's docstring ("Settings of ..."), as what the algorithm is."""
    text = " ".join((docstring or "").strip().split("\n\n")[0].split()).removeprefix("Settings of ")
    return text[:1].upper() + text[1:]


def _as_text(setting: Setting) -> str:
    import textwrap

    bounds = f", {setting.bounds}" if setting.bounds else ""
    head = f"{setting.name} = {json.dumps(setting.default)}   ({setting.type}{bounds})"
    return "\n".join([head, *textwrap.wrap(setting.meaning, _WIDTH, initial_indent="    ", subsequent_indent="    ")])


def _as_yaml(settings: list[Setting]) -> str:
    import textwrap

    lines: list[str] = []
    group = ""
    for setting in settings:
        before, dot, name = setting.name.rpartition(".")
        if before != group:
            group = before
            lines += [f"{group}:"] if group else []
        indent = "  " if dot else ""
        bounds = f" ({setting.bounds})" if setting.bounds else ""
        lines += textwrap.wrap(
            setting.meaning + bounds, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        lines.append(f"{indent}{name}: {json.dumps(setting.default)}")
    return "\n".join(lines)
