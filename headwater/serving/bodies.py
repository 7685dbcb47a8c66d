"""Bodies of requests and replies: JSON, or JSON with arrays beside it; see `headwater.serving.protocol`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

JSON_TYPE = "application/json"
ARRAYS_TYPE = "application/x-headwater-arrays"
_ARRAY = "$array"
SMALL = 256  # numbers; more of them in one message go as arrays


class BadBody(ValueError):
    """A body cannot be read."""


def encode(message: Mapping[str, Any], content_type: str) -> bytes:
    """The bytes of a message, whose values may hold arrays and NumPy's numbers.

    Raises:
        ValueError: NaN or infinite numbers, which JSON does not know.

    Example:
        >>> encode({"observation": np.array([0.5, 1.0], np.float32)}, JSON_TYPE)
        b'{"observation":[0.5,1.0]}'
        >>> body = encode({"observation": np.zeros(3, np.float32)}, ARRAYS_TYPE)
        >>> decode(body, ARRAYS_TYPE)["observation"].dtype
        dtype('float32')
    """
    if content_type == JSON_TYPE:
        return _dumps(message, default=_plain).encode()
    arrays: dict[str, np.ndarray] = {}

    def put(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
            return {_ARRAY: name}
        return _plain(value)

    text = _dumps(message, default=put)
    return save(arrays, {"message": text})


def decode(body: bytes, content_type: str) -> dict[str, Any]:
    """The message in a body.

    Raises:
        BadBody: it is damaged, no object, or holds NaN in its JSON.
    """
    if content_type == JSON_TYPE:
        return _loads(body)
    if content_type != ARRAYS_TYPE:
        raise BadBody(f"the content type is {content_type!r}, expected {JSON_TYPE} or {ARRAYS_TYPE}")
    try:
        arrays = load(body)
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        text = header["__metadata__"]["message"]
    except Exception as error:  # the reader of safetensors has many, some of its own
        raise BadBody(f"it is no safetensors body with a message: {type(error).__name__}: {error}"[:300]) from error

    def take(node: dict[str, Any]) -> Any:
        if node.keys() != {_ARRAY}:
            return node
        if not isinstance(node[_ARRAY], str) or node[_ARRAY] not in arrays:
            raise BadBody(f"there is no array {str(node[_ARRAY])[:50]!r} beside the message")
        return arrays[node[_ARRAY]]

    return _loads(text, take)


def content_type_for(*values: Any) -> str:
    """JSON for few numbers, arrays for many."""
    return JSON_TYPE if sum(map(_size, values)) <= SMALL else ARRAYS_TYPE


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return 1


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent: {str(value)[:100]}")


def _dumps(message: Mapping[str, Any], default: Any) -> str:
    return json.dumps(message, allow_nan=False, default=default, separators=(",", ":"))


def _loads(text: str | bytes, object_hook: Any = None) -> dict[str, Any]:
    try:
        message = json.loads(text, parse_constant=_refuse, object_hook=object_hook)
    except BadBody:
        raise
    except (ValueError, RecursionError) as error:
        raise BadBody(f"it is no JSON: {type(error).__name__}: {error}"[:300]) from error
    if not isinstance(message, dict):
        raise BadBody(f"it is a {type(message).__name__}, expected an object")
    return message


def _refuse(constant: str) -> Any:
    raise BadBody(f"it holds {constant}, which is no JSON number")
