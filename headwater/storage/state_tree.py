"""A state tree as JSON plus named arrays and back, exactly: what a checkpoint's two files hold.

A state tree is a nesting of dicts, lists and tuples whose leaves are None, bools, ints of any size, floats, strings,
NumPy scalars and NumPy arrays of booleans, integers or floats. What JSON has no word for is written as an object with
one key that starts with `$`:

    {"$array": "policies/default_policy/weights/value/out/bias"}    an array, by its name in the tensor file
    {"$float": "inf" | "-inf" | "nan" | "0x7ff8000000000001"}       a float that is not finite (of other NaNs the bits)
    {"$scalar": ["float32", 0.5]}                                   a NumPy scalar
    {"$tuple": [...]}                                               a tuple
    {"$items": [[key, value], ...]}                                 a dict whose keys are not all plain strings
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

# The dtypes that a safetensors file knows and NumPy has, by their names there.
TENSOR_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
_DTYPE_NAMES = {dtype.name for dtype in TENSOR_DTYPES.values()}


def flatten_state(state: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Split a state tree into its JSON part and its arrays (C-ordered, named by their path in the tree).

    Raises:
        TypeError: Something in the tree is neither JSON nor a NumPy array; the message has its path.
        RecursionError: The tree is nested too deeply, or contains itself.
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(state, "", arrays), arrays


def unflatten_state(document: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild the state tree that `flatten_state` split.

    Raises:
        ValueError: The document holds something that `flatten_state` never writes, or names an absent array.
        RecursionError: It is nested too deeply.
    """
    if isinstance(document, list):
        return [unflatten_state(part, arrays) for part in document]
    if not isinstance(document, dict):
        return document
    if len(document) == 1:
        [(tag, value)] = document.items()
        if tag.startswith("$"):
            return _decode_tagged(tag, value, arrays)
    return {key: unflatten_state(part, arrays) for key, part in document.items()}


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.generic):  # before float: np.float64 is one
        return {"$scalar": [_dtype_name(value.dtype, path), _encode(value.item(), path, arrays)]}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": _float_word(value)}
    if isinstance(value, Mapping):
        return _encode_dict(value, path, arrays)
    if isinstance(value, list):
        return [_encode(part, _join(path, index), arrays) for index, part in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(part, _join(path, index), arrays) for index, part in enumerate(value)]}
    if isinstance(value, np.ndarray):
        _dtype_name(value.dtype, path)
        name = path or "state"
        while name in arrays or name == "__metadata__":  # keys may contain the slash that joins them
            name += "'"
        arrays[name] = np.asarray(value, value.dtype.newbyteorder("="), order="C")
        return {"$array": name}
    raise TypeError(
        f"{path or 'the state'} is a {type(value).__module__}.{type(value).__qualname__}; a state holds None, bool, "
        "int, float, str, dict, list, tuple and NumPy arrays or scalars of numbers. "
        "Convert it (a tensor: .detach().cpu().numpy())."
    )


def _encode_dict(value: Mapping[Any, Any], path: str, arrays: dict[str, np.ndarray]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {str(key): _encode(part, _join(path, key), arrays) for key, part in value.items()}
    return {
        "$items": [[_encode(key, path, arrays), _encode(part, _join(path, key), arrays)] for key, part in value.items()]
    }


def _decode_tagged(tag: str, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if tag == "$array" and isinstance(value, str):
        if value not in arrays:
            raise ValueError(f"the array {value!r} is missing from the tensor file")
        return arrays[value]
    if tag == "$float" and isinstance(value, str):
        return _float_from_word(value)
    if tag == "$scalar" and isinstance(value, list) and len(value) == 2 and value[0] in _DTYPE_NAMES:
        return _scalar(value[0], unflatten_state(value[1], arrays))
    if tag == "$tuple" and isinstance(value, list):
        return tuple(unflatten_state(part, arrays) for part in value)
    if tag == "$items" and isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        try:
            return {unflatten_state(key, arrays): unflatten_state(part, arrays) for key, part in value}
        except TypeError as error:
            raise ValueError(f"a dict has a key that cannot be one: {error}") from None
    raise ValueError(f"an object tagged {tag!r} does not hold what it should: {str(value)[:80]}")


def _scalar(dtype: str, value: Any) -> np.generic:
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"a scalar of dtype {dtype} holds {str(value)[:80]!r}")
    try:
        with np.errstate(all="ignore"):
            return np.dtype(dtype).type(value)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a scalar of dtype {dtype} holds {value!r}: {error}") from None


def _dtype_name(dtype: np.dtype[Any], path: str) -> str:
    if dtype.name not in _DTYPE_NAMES:
        raise TypeError(
            f"{path or 'the state'} has dtype {dtype}, which a checkpoint does not hold; "
            f"it holds {', '.join(sorted(_DTYPE_NAMES))}. Convert it."
        )
    return dtype.name


def _float_word(value: float) -> str:
    word = str(float(value))
    if struct.pack(">d", float(word)) == struct.pack(">d", value):
        return word
    return "0x" + struct.pack(">d", value).hex()


def _float_from_word(word: str) -> float:
    if word in ("inf", "-inf", "nan"):
        return float(word)
    try:
        [value] = struct.unpack(">d", bytes.fromhex(word.removeprefix("0x")))
    except (ValueError, struct.error):
        raise ValueError(f"{word[:80]!r} is not a float") from None
    return value


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
