"""Field types for numbers and truths: strict, except that they understand `1e-4`, which YAML reads as a string.

A bool is never a number, a number never a bool, and a float counts as an int only where it is whole (1e6).
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

_EXPONENT = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][+-]?\d+")


def shown(value: Any) -> str:
    """What came, for an error message: its repr, cut, and its type."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def as_float(value: Any) -> float:
    """A real number as a float; a string only in the exponent form that YAML leaves one."""
    understood = isinstance(value, numbers.Real) or (isinstance(value, str) and _EXPONENT.fullmatch(value))
    if isinstance(value, bool) or not understood:
        raise ValueError(f"must be a number, but {shown(value)} came")
    return float(value)


def as_int(value: Any) -> int:
    """A whole number as an int: 1e6 and its YAML string count, a bool and 1.5 do not."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) or (isinstance(value, str) and _EXPONENT.fullmatch(value)):
        number = as_float(value)
        if number.is_integer():
            return int(number)
    raise ValueError(f"must be a whole number, but {shown(value)} came")


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
