"""Settings: the base of every config class. Typed, bounded, documented, readable as a dict, with errors that name the key.

A config class is a pydantic model whose validation errors become one `ConfigError` that lists every problem. The
number types below are strict (a bool is never a number) except that they understand `1e-4`, which YAML reads as a string.
"""

from __future__ import annotations

import difflib
import numbers
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from headwater.errors import ConfigError
from headwater.registry import callable_reference

_EXPONENT = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][+-]?\d+")
NOT_IMPORTABLE = "not_importable"


def shown(value: Any) -> str:
    """What came, for an error message: its repr, cut, and its type."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def as_float(value: Any) -> float:
    """A real number as a float; a string only in the exponent form that YAML leaves one."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"must be a number, but {shown(value)} came")
    return float(value)


def as_int(value: Any) -> int:
    """A whole number as an int: 1e6 and its YAML string count, a bool and 1.5 do not."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value // 1:
        raise ValueError(f"must be a whole number, but {shown(value)} came")
    return int(value)


def as_bool(value: Any) -> bool:
    """True or False, of Python or NumPy; 0, 1 and strings are refused."""
    if isinstance(value, bool) or type(value).__module__ == "numpy" and type(value).__name__.startswith("bool"):
        return bool(value)
    raise ValueError(f"must be true or false, but {shown(value)} came")


def none_or(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`convert`, letting None through."""
    return lambda value: None if value is None else convert(value)


Int = Annotated[int, BeforeValidator(as_int)]
Float = Annotated[float, BeforeValidator(as_float)]
Bool = Annotated[bool, BeforeValidator(as_bool)]
OptionalInt = Annotated[int | None, BeforeValidator(none_or(as_int))]
OptionalFloat = Annotated[float | None, BeforeValidator(none_or(as_float))]


class Problem(NamedTuple):
    """One thing wrong with a config: the full path of the key and what is the matter."""

    path: str
    text: str


class SettingsError(ConfigError):
    """All problems of one config in one message; `problems` has them singly."""

    def __init__(self, owner: str, problems: list[Problem]) -> None:
        self.owner, self.problems = owner, problems
        lines = [f"{problem.path}: {problem.text}" if problem.path else problem.text for problem in problems]
        if len(lines) == 1:
            super().__init__(f"{owner}: {lines[0]}")
        else:
            super().__init__("\n  - ".join([f"{owner}: {len(lines)} settings cannot be used:", *lines]))


class Settings(BaseModel):
    """A typed group of settings that also reads as a dict.

    A field may have an alias that is no Python name: `config["lambda"]` and `config.lambda_` are the same.
    Subclasses may set `former`: names that users of the 1.x line (or of other libraries) may try, each with the sentence
    that says what to do instead.

    Raises:
        ConfigError: on construction or assignment, listing everything that is unknown, ill-typed or out of bounds.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, validate_by_name=True, validate_by_alias=True,
        allow_inf_nan=False, arbitrary_types_allowed=True, protected_namespaces=(),
    )  # fmt: skip
    former: ClassVar[Mapping[str, str]] = {}

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SettingsError(type(self).__name__, _problems(type(self), error)) from None

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Self:
        if isinstance(obj, cls) and not kwargs:
            return obj
        if not isinstance(obj, Mapping):
            raise ConfigError(f"{cls.__name__}: settings come as a dict, but {shown(obj)} came")
        return cls(**obj)

    def __setattr__(self, name: str, value: Any) -> None:
        cls = type(self)
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        field = cls._field_of(name)
        if field is None:
            raise SettingsError(cls.__name__, [Problem(name, explain_unknown(cls, name))])
        try:
            super().__setattr__(field, value)
        except ValidationError as error:
            raise SettingsError(cls.__name__, _problems(cls, error)) from None

    # Reading as a dict.

    @classmethod
    def _field_of(cls, key: str) -> str | None:
        """The attribute that holds `key`, which may be a field's name or its alias."""
        return _names(cls).get(key)

    @classmethod
    def keys(cls) -> list[str]:
        """The names as users write them (`lambda`, not `lambda_`)."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    def values(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields]

    def items(self) -> list[tuple[str, Any]]:
        return list(zip(self.keys(), self.values(), strict=True))

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.keys())

    def __len__(self) -> int:
        return len(type(self).model_fields)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._field_of(key) is not None

    def __getitem__(self, key: str) -> Any:
        field = self._field_of(key)
        if field is None:
            raise KeyError(f"{key}: {explain_unknown(type(self), key)}")
        return getattr(self, field)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def get(self, key: str, default: Any = None) -> Any:
        field = self._field_of(key)
        return default if field is None else getattr(self, field)

    def copy(self) -> Self:  # type: ignore[override]
        """An independent copy: dicts, lists and sub-settings are copied, callables and other objects are shared."""
        twin = type(self)(**plain(self))
        mark_set(twin, changes(self))
        return twin

    def to_dict(self) -> dict[str, Any]:
        """JSON values only: a callable as `module:name` where that imports it, else `{"not_importable": its repr}`."""
        return {key: to_json(value) for key, value in self.items()}


def _names(cls: type[Settings]) -> dict[str, str]:
    names = cls.__dict__.get("_name_table")
    if names is None:
        names = {name: name for name in cls.model_fields}
        names |= {field.alias: name for name, field in cls.model_fields.items() if field.alias}
        type.__setattr__(cls, "_name_table", names)
    return names


def plain(settings: Settings) -> dict[str, Any]:
    """As a dict of plain dicts and lists that shares no container with `settings`; other values stay as they are."""
    return {key: copied(value) for key, value in settings.items()}


def copied(value: Any) -> Any:
    """Dicts, lists and settings copied to their depth; everything else shared."""
    if isinstance(value, Settings):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def changes(settings: Settings) -> dict[str, Any]:
    """What was set: fields given explicitly, and those that differ from the class's defaults."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), field.alias or name
        if isinstance(value, Settings):
            inner = changes(value)
            if inner:
                found[key] = inner
        elif name in settings.model_fields_set or value != field.get_default(call_default_factory=True):
            found[key] = copied(value)
    return found


def mark_set(settings: Settings, set_keys: Mapping[str, Any]) -> None:
    """Make `model_fields_set` say that just the fields in `set_keys` (nested for sub-settings) were given."""
    fields = {type(settings)._field_of(key): value for key, value in set_keys.items()}
    settings.__pydantic_fields_set__.clear()
    settings.__pydantic_fields_set__.update(name for name in fields if name is not None)
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            given = fields.get(name)
            mark_set(value, given if isinstance(given, Mapping) else {})


def to_json(value: Any) -> Any:
    """`value` as JSON values; what JSON cannot say becomes `{"not_importable": its repr}`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Settings):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    reference = callable_reference(value) if callable(value) else None
    return reference if reference is not None else {NOT_IMPORTABLE: repr(value)}


# Errors.

def explain_unknown(cls: type[Settings], key: str) -> str:
    """Why `cls` has no `key`, with what replaced it or its nearest neighbours."""
    if key in cls.former:
        return cls.former[key]
    places: dict[str, str] = {}
    for name, field in cls.model_fields.items():
        places.setdefault(field.alias or name, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            for inner in field.annotation.keys():
                places.setdefault(inner, f"{name}.{inner}")
            if key in field.annotation.former:
                return field.annotation.former[key]
    if key in places:
        return f"no such setting here; it belongs at {places[key]}"
    near = [places[match] for match in difflib.get_close_matches(key, places, n=3, cutoff=0.6)]
    if not near:
        return f"no such setting. There are: {', '.join(cls.keys())}"
    return f"no such setting. Did you mean {' or '.join(near)}?"


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
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must not be empty",
}


def _problems(cls: type[Settings], error: ValidationError) -> list[Problem]:
    problems = []
    for item in error.errors(include_url=False):
        path, context = _path(item["loc"]), item.get("ctx", {})
        cause = context.get("error")
        if item["type"] == "extra_forbidden":
            problems.append(Problem(path, explain_unknown(cls, str(item["loc"][-1]))))
        elif isinstance(cause, SettingsError):
            problems += [Problem(f"{path}.{inner.path}", inner.text) for inner in cause.problems]
        elif item["type"] == "value_error":
            problems.append(Problem(path, str(cause)))
        else:
            text = _TEXTS.get(item["type"], item["msg"]).format(**context)
            problems.append(Problem(path, f"{text}, but {shown(item['input'])} came"))
    return problems


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
