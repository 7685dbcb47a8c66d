"""Gymnasium spaces as JSON and back, exactly: what a checkpoint says about what its policy was trained for."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.errors import UnsupportedSpaceError
from headwater.settings.settings import to_json


@singledispatch
def space_to_json(space: Any) -> dict[str, Any]:
    """Return a JSON description of `space`: its type, shape, dtype and bounds (infinite ones as `"inf"`).

    Raises:
        UnsupportedSpaceError: No description exists for this kind of space.

    Example:
        >>> space_to_json(spaces.Discrete(3, start=-1))
        {'type': 'Discrete', 'n': 3, 'start': -1, 'dtype': 'int64'}
        >>> space_from_json(space_to_json(spaces.Box(-np.inf, 1.0, (2,)))).low.tolist()
        [-inf, -inf]
    """
    raise UnsupportedSpaceError(
        f"The space {space!r} cannot be written to a file. Written can be: {', '.join(sorted(_READERS))}. "
        "Wrap the env so that its spaces are made of these."
    )


@to_json.register
def _(space: spaces.Space) -> Any:  # where a config holds one
    return space_to_json(space)


@space_to_json.register
def _(space: spaces.Box) -> dict[str, Any]:
    return {
        "type": "Box",
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bounds_to_json(space.low),
        "high": _bounds_to_json(space.high),
    }


@space_to_json.register
def _(space: spaces.Discrete) -> dict[str, Any]:
    return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}


@space_to_json.register
def _(space: spaces.MultiDiscrete) -> dict[str, Any]:
    return {
        "type": "MultiDiscrete",
        "nvec": space.nvec.tolist(),
        "start": np.asarray(space.start).tolist(),
        "dtype": str(space.dtype),
    }


@space_to_json.register
def _(space: spaces.MultiBinary) -> dict[str, Any]:
    return {"type": "MultiBinary", "n": int(space.n) if isinstance(space.n, int) else list(space.shape)}


@space_to_json.register
def _(space: spaces.Dict) -> dict[str, Any]:
    return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}


@space_to_json.register
def _(space: spaces.Tuple) -> dict[str, Any]:
    return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}


def register_reader(kind: str, reader: Callable[[Mapping[str, Any]], spaces.Space[Any]]) -> None:
    """Let `space_from_json` read descriptions of another type, which `space_to_json` was registered to write."""
    _READERS[kind] = reader


def space_from_json(description: Mapping[str, Any]) -> spaces.Space[Any]:
    """Build the space that `space_to_json` described.

    Raises:
        UnsupportedSpaceError: The description names an unknown kind, or its parts do not make such a space.
    """
    kind = description.get("type") if isinstance(description, Mapping) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise UnsupportedSpaceError(
            f"Expected the description of a space, with a type out of {', '.join(sorted(_READERS))}; "
            f"got {str(description)[:200]}."
        )
    try:
        return reader(description)
    except UnsupportedSpaceError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError, MemoryError) as error:
        raise UnsupportedSpaceError(
            f"The description of a {kind} space does not make one ({type(error).__name__}: {error}): "
            f"{str(description)[:200]}."
        ) from error


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """Give one number where all bounds are equal bit for bit, else nested lists of the space's shape."""
    if bounds.size and bounds.tobytes() == bounds.flat[0].tobytes() * bounds.size:
        return _number_to_json(bounds.flat[0].item())
    return _map_nested(_number_to_json, bounds.tolist())


def _bounds_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    values = np.array(_map_nested(_number_from_json, value), dtype=dtype)
    if values.shape not in ((), shape):
        raise ValueError(f"bounds of shape {values.shape} in a Box of shape {shape}")
    return np.full(shape, values, dtype) if values.shape == () else values


def _map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    return [_map_nested(function, part) for part in value] if isinstance(value, list) else function(value)


def _number_to_json(value: Any) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _number_from_json(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _checked_shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(int(size) for size in sizes)
    if math.prod(shape) > _MAX_ELEMENTS or len(shape) > 32 or any(size < 0 for size in shape):
        raise ValueError(f"shape {shape} is not plausible")
    return shape


def _read_box(description: Mapping[str, Any]) -> spaces.Space[Any]:
    shape, dtype = _checked_shape(description["shape"]), np.dtype(description["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"a Box holds numbers, not {dtype}")
    low, high = (_bounds_from_json(description[key], shape, dtype) for key in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _read_discrete(description: Mapping[str, Any]) -> spaces.Space[Any]:
    return spaces.Discrete(description["n"], start=description["start"], dtype=np.dtype(description["dtype"]).type)


def _read_multi_discrete(description: Mapping[str, Any]) -> spaces.Space[Any]:
    dtype = np.dtype(description["dtype"])
    nvec, start = (np.array(description[key], dtype) for key in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _read_multi_binary(description: Mapping[str, Any]) -> spaces.Space[Any]:
    n = description["n"]
    sizes = _checked_shape([n] if isinstance(n, int) else n)
    return spaces.MultiBinary(n if isinstance(n, int) else sizes)


def _read_dict(description: Mapping[str, Any]) -> spaces.Space[Any]:
    # An OrderedDict keeps its order where Dict would sort a plain one.
    return spaces.Dict(OrderedDict((key, space_from_json(part)) for key, part in description["spaces"]))


# A hostile file must not make us allocate: no observation that is learned from is larger than this.
_MAX_ELEMENTS = 2**28

_READERS: dict[str, Callable[[Mapping[str, Any]], spaces.Space[Any]]] = {
    "Box": _read_box,
    "Discrete": _read_discrete,
    "MultiDiscrete": _read_multi_discrete,
    "MultiBinary": _read_multi_binary,
    "Dict": _read_dict,
    "Tuple": lambda description: spaces.Tuple([space_from_json(part) for part in description["spaces"]]),
}


def as_space(value: Any) -> Any:
    """A space as it is, one of a stored config read; None stays None."""
    return space_from_json(value) if isinstance(value, Mapping) and not isinstance(value, spaces.Space) else value
