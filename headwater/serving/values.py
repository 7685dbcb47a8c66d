"""Values from the network, checked before anything is done with them: whoever sends nonsense disturbs only himself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.nested import as_row
from headwater.envs.space_check import Mismatch, check_value


def checked(space: spaces.Space, value: Any, path: str, num_rows: int | None = None) -> Any:
    """A value of the space, or `num_rows` of them, as arrays of its dtypes.

    Raises:
        Mismatch: it is not in the space.

    Example:
        >>> checked(spaces.Box(0, 1, (2,)), [0, 0.5], "observation")
        array([0. , 0.5], dtype=float32)
    """
    check_value(space, value, path, num_rows)
    return as_row(space, value)


def checked_sampled(space: spaces.Space, value: Any, num_rows: int, path: str = "actions") -> Any:
    """`num_rows` actions as a policy samples them, before they are stretched or counted from `start` for the env.

    Raises:
        Mismatch: they cannot be.
    """
    if isinstance(space, spaces.Dict):
        if not (isinstance(value, dict) and value.keys() == space.spaces.keys()):
            raise Mismatch(f"{path} has not the keys {sorted(space.spaces)} of the action space")
        return {key: checked_sampled(child, value[key], num_rows, f"{path}[{key!r}]")
                for key, child in space.spaces.items()}  # fmt: skip
    if isinstance(space, spaces.Tuple):
        if not (isinstance(value, (list, tuple)) and len(value) == len(space.spaces)):
            raise Mismatch(f"{path} is no list of {len(space.spaces)}, as the action space is")
        parts = zip(space.spaces, value, strict=True)
        return tuple(checked_sampled(child, part, num_rows, f"{path}[{i}]") for i, (child, part) in enumerate(parts))
    array = numbers(value, path)
    size = math.prod(space.shape or ())
    if array.shape[:1] != (num_rows,) or array.size != num_rows * size:
        raise Mismatch(f"{path} has the shape {array.shape}, expected {num_rows} times {space.shape}")
    if isinstance(space, spaces.Box):
        return array.astype(np.float32)
    if isinstance(space, spaces.Discrete):
        limits: Any = int(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        limits = space.nvec.reshape(-1)
    else:
        limits = 2
    flat = array.reshape(num_rows, -1)
    if (flat != np.floor(flat)).any() or (flat < 0).any() or (flat >= limits).any():
        raise Mismatch(f"{path} has a choice that is no integer from 0 on below {np.max(limits)}")
    return array.astype(np.int64)


def numbers(value: Any, path: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """An array of finite numbers.

    Raises:
        Mismatch: it is none, or has another shape.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise Mismatch(f"{path} has no regular shape") from None
    if shape is not None and array.shape != shape:
        raise Mismatch(f"{path} has the shape {array.shape}, expected {shape}")
    if array.size and array.dtype.kind not in "biuf":
        raise Mismatch(f"{path} holds no numbers, but {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Mismatch(f"{path} holds NaN or infinite numbers")
    return array
