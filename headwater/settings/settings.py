"""Settings: the base of every config class. Typed, bounded, documented, and readable as a dict.

A pydantic model whose validation errors become one `ConfigError` that lists every problem.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from functools import singledispatch
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from headwater.errors import ConfigError
from headwater.registry import callable_reference
from headwater.settings.number_types import shown
from headwater.settings.problems import Problem, SettingsError, explain_unknown, problems_of

NOT_IMPORTABLE = "not_importable"


class Settings(BaseModel):
    """A typed group of settings that also reads as a dict.

    A field may have an alias that is no Python name: `config["lambda"]` and `config.lambda_` are the same.
    Subclasses may set `former`: names that users of the 1.x line or of other libraries may try, each with the
    sentence that says what to do instead.

    Raises:
        ConfigError: on construction or assignment, listing everything that is unknown, ill-typed or out of bounds.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, populate_by_name=True,
        allow_inf_nan=False, arbitrary_types_allowed=True, protected_namespaces=(),
    )  # fmt: skip
    former: ClassVar[Mapping[str, str]] = {}

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SettingsError(type(self).__name__, problems_of(type(self), error)) from None

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Self:
        if isinstance(obj, cls) and not kwargs:
            return obj
        return cls(**string_keyed(obj, cls.__name__))

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
            raise SettingsError(cls.__name__, problems_of(cls, error)) from None

    # Reading as a dict.

    @classmethod
    def _field_of(cls, key: str) -> str | None:
        """The attribute that holds `key`, which may be a field's name or its alias."""
        return _names(cls).get(key)

    @classmethod
    def key_of(cls, name: str) -> str:
        """The key of the field `name` (`lambda` for `lambda_`); any other name as it is."""
        field = cls.model_fields.get(name)
        return field.alias if field is not None and field.alias else name

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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """`copy()` with some settings changed, which are checked."""
        twin = self.copy()
        for key, value in (update or {}).items():
            twin[key] = value
        return twin

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in changes(self).items())
        return f"{type(self).__name__}({given})"

    __str__ = __repr__

    def to_dict(self) -> dict[str, Any]:
        """JSON values only: a callable as `module:name` where that imports it, else `{"not_importable": its repr}`."""
        return {key: to_json(value) for key, value in self.items()}


def string_keyed(data: Any, owner: str) -> Mapping[str, Any]:
    """`data`, if it is a dict whose keys are strings.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{owner}: settings come as a dict, but {shown(data)} came")
    odd = [key for key in data if not isinstance(key, str)]
    if odd:
        raise ConfigError(f"{owner}: names of settings are strings, but {', '.join(map(shown, odd))} came")
    return data


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


@singledispatch
def to_json(value: Any) -> Any:
    """`value` as JSON values; what JSON cannot say becomes `{"not_importable": its repr}`.

    A function over types by singledispatch: what else can be written registers itself.
    """
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
