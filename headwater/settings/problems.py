"""What is wrong with a config, said so that the user can mend it: every problem, each with its key's full path."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from headwater.errors import ConfigError
from headwater.settings.number_types import shown

if TYPE_CHECKING:
    from headwater.settings.settings import Settings


class Problem(NamedTuple):
    """One thing wrong with a config: the full path of the key and what is the matter."""

    path: str
    text: str

    def under(self, place: str) -> Problem:
        """The same problem of a group of settings that stands at `place`."""
        return Problem(f"{place}.{self.path}" if self.path else place, self.text)


class SettingsError(ConfigError):
    """All problems of one config in one message; `problems` has them singly."""

    def __init__(self, owner: str, problems: list[Problem]) -> None:
        self.owner, self.problems = owner, problems
        lines = [f"{problem.path}: {problem.text}" if problem.path else problem.text for problem in problems]
        if len(lines) == 1:
            super().__init__(f"{owner}: {lines[0]}")
        else:
            super().__init__("\n  - ".join([f"{owner}: {len(lines)} things are wrong:", *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.owner, self.problems)


def explain_unknown(cls: type[Settings], key: str) -> str:
    """Why `cls` has no `key`: what replaced it, where it belongs, or its nearest neighbours."""
    places = {name: name for name in cls.keys()}  # noqa: SIM118 - a class, whose keys() is no dict's
    former = dict(cls.former)
    for name, field in cls.model_fields.items():
        group: Any = field.annotation
        if hasattr(group, "former"):
            places = {inner: f"{name}.{inner}" for inner in group.keys()} | places  # noqa: SIM118
            former = dict(group.former) | former
    if key in former:
        return former[key]
    if key in places:
        return f"no such setting here; it belongs at {places[key]}"
    near = [places[match] for match in difflib.get_close_matches(key, places, n=3, cutoff=0.6)]
    if near:
        return f"no such setting. Did you mean {' or '.join(near)}?"
    return f"no such setting. There are: {', '.join(cls.keys())}"


_TEXTS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "finite_number": "must be finite",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be a dict",
    "mapping_type": "must be a dict",
    "model_type": "must be a dict",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must not be empty",
}


def problems_of(cls: type[Settings], error: ValidationError) -> list[Problem]:
    """What pydantic found, in our words."""
    problems = []
    for item in error.errors(include_url=False):
        path, context = _path(item["loc"]), item.get("ctx", {})
        cause = context.get("error")
        if item["type"] == "extra_forbidden":
            problems.append(Problem(path, explain_unknown(cls, str(item["loc"][-1]))))
        elif isinstance(cause, SettingsError):
            problems += [inner.under(path) for inner in cause.problems]
        elif item["type"] == "value_error":
            problems.append(Problem(path, str(cause)))
        else:
            bounds = {key: f"{bound:g}" if isinstance(bound, float) else bound for key, bound in context.items()}
            text = _TEXTS[item["type"]].format(**bounds) if item["type"] in _TEXTS else item["msg"]
            problems.append(Problem(path, f"{text}, but {shown(item['input'])} came"))
    return problems


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
