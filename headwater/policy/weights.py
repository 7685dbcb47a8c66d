"""Weights by name: checked where they come from outside, before any of them is used; and laid into one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CheckpointError
from headwater.frameworks.ops import Array, Ops


def fitting_weights(
    given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], strict: bool = True, what: str = "weights"
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Sort out which of the given weights fit.

    Args:
        given: Name -> array.
        shapes: Name -> shape of every weight that there is.
        strict: Raise where anything does not fit.
        what: What they are, for the message.

    Returns:
        The fitting arrays by name, and a sentence for each name that does not fit.

    Raises:
        CheckpointError: listing every mismatch (with `strict`), or every array that holds NaN or infinity.
    """
    fitting: dict[str, NDArray[Any]] = {}
    mismatches, broken = [], []
    for name, shape in shapes.items():
        if name not in given:
            mismatches.append(f"{name}: missing, expected shape {shape}")
            continue
        array = np.asarray(given[name])
        if array.dtype.kind not in "biuf":
            mismatches.append(f"{name}: expected numbers, got dtype {array.dtype}")
        elif array.shape != tuple(shape):
            mismatches.append(f"{name}: expected shape {tuple(shape)}, got {array.shape}")
        elif not np.isfinite(array).all():
            broken.append(f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} values are NaN or infinite")
        else:
            fitting[name] = array
    mismatches += [f"{name}: not part of this policy" for name in given if name not in shapes]
    if broken or (strict and mismatches):
        lines = "\n  ".join(broken + mismatches if strict else broken)
        raise CheckpointError(
            f"The {what} do not fit this policy, and none of them was taken:\n  {lines}\n"
            "Use the model settings and spaces that they were made with"
            + ("" if broken else ", or set_weights(..., strict=False) to take those that fit")
            + "."
        )
    return fitting, mismatches


def flattened(named: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> NDArray[np.float32]:
    """Name -> array as one [P] float32 vector, in the order of `shapes`."""
    return np.concatenate([np.ravel(named[name]).astype(np.float32, copy=False) for name in shapes])


def by_name(ops: Ops, vector: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The inverse, over any framework's [P] vector."""
    parts = ops.split(vector, [math.prod(shape) for shape in shapes.values()])
    return {name: ops.reshape(part, shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
