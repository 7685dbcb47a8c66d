"""What a model of the user's own must return, in any framework."""

from __future__ import annotations

from typing import Any

from headwater.errors import ConfigError
from headwater.frameworks.ops import Array, Ops


def checked_outputs(
    ops: Ops, result: Any, rows: int, num_outputs: int, name: str, call: str, hint: str
) -> tuple[Array, Array]:
    """A model's outputs for `rows` observations, as the distribution's inputs [rows, K] and values [rows].

    Args:
        ops: The framework's operations.
        result: What the model returned.
        rows: B.
        num_outputs: K.
        name: The model's, for messages.
        call: How it was called.
        hint: What to do where it does not return two arrays.

    Raises:
        ConfigError: it returned other things, or other shapes.
    """
    if not (isinstance(result, tuple | list) and len(result) == 2 and all(hasattr(x, "shape") for x in result)):
        raise ConfigError(
            f"custom_model {name}: {call} must return (dist_inputs, values), but returned {_shown(result)}. {hint}"
        )
    dist_inputs, values = result
    if tuple(dist_inputs.shape) != (rows, num_outputs):
        raise ConfigError(
            f"custom_model {name}: for {rows} observations the distribution's inputs must have the shape "
            f"{(rows, num_outputs)}, but have {tuple(dist_inputs.shape)}. End with num_outputs outputs."
        )
    if tuple(values.shape) not in ((rows,), (rows, 1)):
        raise ConfigError(
            f"custom_model {name}: for {rows} observations the values must have the shape {(rows,)}, "
            f"but have {tuple(values.shape)}. Return one value for each observation."
        )
    return dist_inputs, ops.reshape(values, (rows,))


def _shown(result: Any) -> str:
    if hasattr(result, "shape"):
        return f"one tensor of shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        return f"{len(result)} things ({', '.join(type(part).__name__ for part in result)})"
    return f"a {type(result).__name__}"
