"""Models of the user's own: how they are made, and what they must return, in every framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headwater.errors import ConfigError
from headwater.frameworks.ops import Array, Ops
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import mask_of
from headwater.policy.network import masked_logits
from headwater.policy.network_description import ActionMask


def make_custom_model(policy: Any, name_by_keyword: bool = False, may_remember: bool = False) -> Any:
    """The policy's `custom_model`: Model(obs_space, action_space, num_outputs, model_config, name, **its config).

    Args:
        policy: Whose.
        name_by_keyword: Give the name as `name=...` rather than by its place.
        may_remember: Whether the framework takes models with an `initial_state()`.

    Raises:
        ConfigError: it does not take these arguments, or wants a memory that its framework has not for it.
    """
    model_config = policy.config["model"]
    model_class: Any = ModelCatalog.get_custom_model(model_config)
    arguments = [policy.observation_space, policy.action_space, policy.num_outputs, model_config]
    name = "default_model"
    try:
        if name_by_keyword:
            model = model_class(*arguments, name=name, **model_config["custom_model_config"])
        else:
            model = model_class(*arguments, name, **model_config["custom_model_config"])
    except TypeError as error:
        raise ConfigError(
            f"custom_model: {model_class!r} could not be made: {error}. A model is made as Model(obs_space, "
            "action_space, num_outputs, model_config, name, **custom_model_config)."
        ) from error
    if hasattr(model, "initial_state") and not may_remember:
        raise ConfigError(
            f"custom_model {type(model).__name__}: it has initial_state(), but models of one's own have no memory in "
            f"{policy.framework}. Learn with torch, or take model.memory in place of custom_model."
        )
    return model


def output_mask(policy: Any, ops: Ops) -> Callable[[Array, Array], Array]:
    """What the action mask of the policy's observations does to a model's outputs: (obs [B, D], [B, K]) -> [B, K].

    The model itself need not care for the mask, though it sees it.
    """
    part = mask_of(policy.observation_space)
    if part is None:
        return lambda obs, dist_inputs: dist_inputs
    columns = ModelCatalog.get_mask_columns(policy.observation_space, policy.action_space, policy.config["model"])
    return functools.partial(masked_logits, ops, ActionMask(part.start, columns), policy.num_outputs)


def check_outputs(
    name: str, result: Any, rows: tuple[int, ...], num_outputs: int, is_array: Callable[[Any], bool], hint: str
) -> tuple[Array, Array]:
    """What a model returned for some rows: distribution inputs [*rows, K], and values [*rows] or [*rows, 1].

    Args:
        name: The model's.
        result: What it returned.
        rows: How many observations it was given: (B,), or with memory (M, L).
        num_outputs: K.
        is_array: Whether something is an array of the framework.
        hint: How else to give values, where only one array came.

    Raises:
        ConfigError: it is something else, or has other shapes; both are named.
    """
    if not (isinstance(result, tuple | list) and len(result) == 2 and all(is_array(part) for part in result)):
        returned = _shown(result, is_array)
        raise ConfigError(f"custom_model {name}: it must return (dist_inputs, values), but returned {returned}. {hint}")
    dist_inputs, values = result
    count = " sequences of ".join(map(str, rows))
    if tuple(dist_inputs.shape) != (*rows, num_outputs):
        raise ConfigError(
            f"custom_model {name}: for {count} observations the distribution's inputs must have the shape "
            f"{(*rows, num_outputs)}, but have {tuple(dist_inputs.shape)}. End with num_outputs outputs."
        )
    if tuple(values.shape) not in (rows, (*rows, 1)):
        raise ConfigError(
            f"custom_model {name}: for {count} observations the values must have the shape {rows}, "
            f"but have {tuple(values.shape)}. Return one value for each observation."
        )
    return dist_inputs, values


def _shown(result: Any, is_array: Callable[[Any], bool]) -> str:
    if is_array(result):
        return f"one tensor of shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        return f"{len(result)} things ({', '.join(type(part).__name__ for part in result)})"
    return f"a {type(result).__name__}"
