"""The state of a single env as JSON values and arrays: through its wrappers, with its random generator.

An env or wrapper that defines `get_state()` and `set_state(state)` speaks for itself and for all that it wraps.
Otherwise Gymnasium's own classic control and the wrappers of `gymnasium.make` are understood; nothing else is, and then
`has_env_state` says no rather than save half of it.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from headwater.envs.classic_control import CLASSIC_CONTROL, get_attributes, set_attributes
from headwater.envs.info_mask import MaskFromInfo
from headwater.envs.vector_env import VectorEnv
from headwater.errors import EnvError

# Wrapper class -> the attributes that its future hangs on. Exact classes, as a subclass may keep more; those that call
# a function of the user's are absent, as it may keep something too.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.PassiveEnvChecker: (),
    wrappers.RecordEpisodeStatistics: ("episode_count", "episode_returns", "episode_lengths"),
    wrappers.ClipAction: (),
    wrappers.RescaleAction: (),
    wrappers.ClipReward: (),
    wrappers.FlattenObservation: (),
    wrappers.FilterObservation: (),
    wrappers.DtypeObservation: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
    wrappers.GrayscaleObservation: (),
    wrappers.ResizeObservation: (),
    MaskFromInfo: ("_step",),
}
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def has_env_state(env: Any) -> bool:
    """Whether the state of `env` can be saved and set."""
    layers, speaks_for_itself = _layers(env)
    if not speaks_for_itself and type(layers[-1]) not in CLASSIC_CONTROL:
        return False
    return all(type(layer) in _WRAPPERS for layer in layers[:-1]) and _known_generator(layers[-1])


def get_env_state(env: Any) -> dict[str, Any]:
    """Return the state of an env whose `has_env_state` is True.

    Raises:
        EnvError: the env's own `get_state` returned something else than JSON values and arrays.
    """
    layers, speaks_for_itself = _layers(env)
    base = layers[-1]
    state: dict[str, Any] = {"class": type(base).__qualname__}
    state["wrappers"] = [{name: getattr(layer, name) for name in _WRAPPERS[type(layer)]} for layer in layers[:-1]]
    if speaks_for_itself:
        state["own"] = base.get_state()
        foreign = _foreign(state["own"], "get_state()")
        if foreign:
            raise EnvError(
                f"The state of env {type(base).__qualname__} cannot be saved: {foreign}. "
                "Return dicts with string keys, lists, numbers, strings, None and NumPy arrays only."
            )
    else:
        state["attributes"] = get_attributes(base)
    state["generator"] = get_generator_state(getattr(base, "_np_random", None))
    state["generator_seed"] = getattr(base, "_np_random_seed", None)
    return state


def set_env_state(env: Any, state: dict[str, Any]) -> None:
    """Let `env` go on from a state of an env that was made alike.

    Raises:
        EnvError: the state is that of another kind of env.
    """
    layers, speaks_for_itself = _layers(env)
    base = layers[-1]
    if state["class"] != type(base).__qualname__ or len(state["wrappers"]) != len(layers) - 1:
        raise EnvError(
            f"The saved state is that of a {state['class']} in {len(state['wrappers'])} wrappers, but this env is a "
            f"{type(base).__qualname__} in {len(layers) - 1}. Resume with the env and env_config of the saved run."
        )
    for layer, attributes in zip(layers, state["wrappers"], strict=False):
        for name in _WRAPPERS[type(layer)]:
            setattr(layer, name, attributes[name])
        if isinstance(layer, wrappers.PassiveEnvChecker):  # its first look at a reset and a step is past
            for name in ("checked_reset", "checked_step", "checked_data_reuse"):
                setattr(layer, name, True)
    # First the generator: an env that keeps it within its own state may then replace it.
    if state["generator"] is not None:
        base._np_random = make_generator(state["generator"])
        base._np_random_seed = state["generator_seed"]
    if speaks_for_itself:
        base.set_state(state["own"])
    else:
        set_attributes(base, state["attributes"])


def check_kind_of_state(state: dict[str, Any], vector_env: VectorEnv) -> None:
    """Raise EnvError unless `state` is that of a vector env of the same class and number of envs."""
    kind, num_envs = type(vector_env).__name__, vector_env.num_envs
    if state["kind"] != kind or state["num_envs"] != num_envs:
        raise EnvError(
            f"Env {vector_env.env_id!r}: the saved state is that of a {state['kind']} of {state['num_envs']} envs, but "
            f"this is a {kind} of {num_envs}. Resume with the saved run's num_envs_per_worker and vectorization."
        )


def get_generator_state(generator: np.random.Generator | None) -> dict[str, Any] | None:
    """Return the state of a NumPy generator: JSON integers (some above 64 bits), and arrays for MT19937 and Philox."""
    return None if generator is None else dict(generator.bit_generator.state)


def make_generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a NumPy generator that goes on from `get_generator_state`'s result."""
    name = state["bit_generator"]
    if name not in _GENERATORS:
        raise EnvError(f"The saved random generator is a {name!r}; known are {', '.join(_GENERATORS)}.")
    bit_generator = getattr(np.random, name)()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _layers(env: Any) -> tuple[list[Any], bool]:
    """Return the wrappers from the outermost on, down to the first that speaks for itself or the base env."""
    layers = [env]
    while not _speaks_for_itself(layers[-1]):
        if not isinstance(layers[-1], gymnasium.Wrapper):
            return layers, False
        layers.append(layers[-1].env)
    return layers, True


def _speaks_for_itself(env: Any) -> bool:
    """Whether the class defines `get_state()` and `set_state(state)`; these names with other arguments do not count."""
    getter, setter = getattr(type(env), "get_state", None), getattr(type(env), "set_state", None)
    return callable(getter) and callable(setter) and _takes(getter, env) and _takes(setter, env, {})


def _takes(function: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def _known_generator(env: Any) -> bool:
    generator = getattr(env, "_np_random", None)
    if generator is None:
        return True
    return isinstance(generator, np.random.Generator) and type(generator.bit_generator).__name__ in _GENERATORS


def _foreign(value: Any, path: str) -> str | None:
    """Say where a state holds something that is neither JSON nor an array; None where all is well."""
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            return f"{path} has the key {wrong!r}, which is no string"
        return next(filter(None, (_foreign(item, f"{path}[{key!r}]") for key, item in value.items())), None)
    if isinstance(value, (list, tuple)):
        return next(filter(None, (_foreign(item, f"{path}[{i}]") for i, item in enumerate(value))), None)
    is_array = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufU"
    if is_array or value is None or isinstance(value, (bool, int, float, str)):
        return None
    return f"{path} is a {type(value).__name__}"
