"""Names to things: envs by id, algorithms by name, callables by `module:name`.

Imports nothing heavy: Gymnasium is imported when an env is made, a framework when an algorithm's class is asked for.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from headwater.errors import ConfigError, EnvError

EnvCreator = Callable[[Any], Any]

ALGORITHMS = {"PPO": "headwater.algorithms.ppo.ppo:PPOTrainer"}
CONFIG_CLASSES = {"PPO": "headwater.algorithms.ppo.config:PPOConfig"}
_ENV_CREATORS: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Let `env=name` mean `creator(env_context)`; a later registration of the same name replaces an earlier one.

    Example:
        >>> register_env("my-cartpole", lambda context: __import__("gymnasium").make("CartPole-v1"))
        >>> env_creator_for("my-cartpole")[0]
        'my-cartpole'
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_env: the name must be a non-empty string, but {name!r} came")
    if not callable(creator):
        raise ConfigError(
            f"register_env({name!r}): the creator must be a function of the env context, but {creator!r} came"
        )
    _ENV_CREATORS[name] = creator


def registered_envs() -> list[str]:
    """The names given to `register_env`, sorted."""
    return sorted(_ENV_CREATORS)


def env_creator_for(spec: str | type | Callable[..., Any] | None) -> tuple[str, EnvCreator]:
    """The id and the creator of what a user gave as `env`.

    Args:
        spec: a registered name, a Gymnasium id, `"pettingzoo:name"` or `"envpool:id"` for those libraries' envs,
            `"module:EnvId"` (the module registers the id with Gymnasium),
            `"module:Name"` (an env class or a function of the env context), a class, or a callable. A class or function
            whose first parameter is the env context (called config, context or the like) gets that, another one gets
            its entries as keyword arguments.

    Returns:
        `(env_id, creator)`; `creator(env_context)` makes one env. `creator.gym_id` is the id that `gymnasium.make_vec`
        takes, or None.

    Raises:
        ConfigError: `spec` is none of these.
        EnvError: (when the creator is called) there is no such id, or what was made is no env.
    """
    if isinstance(spec, str) and spec:
        if spec in _ENV_CREATORS:
            return spec, _creator_of(_ENV_CREATORS[spec], spec)
        return spec, _creator_by_id(spec)
    if callable(spec):
        env_id = spec.__name__ if isinstance(spec, type) else _name_of(spec)
        return env_id, _creator_of(spec, env_id)
    raise ConfigError(
        f"{spec!r} is an invalid env specification: give a Gymnasium id such as 'CartPole-v1', 'module:EnvId', "
        "a name given to register_env, an env class, or a function of the env context"
    )


def _bearing(make: EnvCreator, env_id: str, gym_id: str | None) -> EnvCreator:
    """A creator around `make` that checks what comes out and bears `gym_id`, which the user's own object does not."""

    def create(context: Any) -> Any:
        env = make(context)
        if any(hasattr(env, name) for name in ("poll", "start_episode", "observation_spec")):
            return env  # a BaseEnv, an external env, or one of dm_env's, which has no spaces
        missing = [name for name in ("observation_space", "action_space", "reset", "step") if not hasattr(env, name)]
        if missing:
            made = "None (is a return statement missing?)" if env is None else f"a {type(env).__qualname__}"
            raise EnvError(f"env {env_id!r}: its creator gave {made}, which is no env: it has no {', '.join(missing)}")
        return env

    create.gym_id = gym_id  # type: ignore[attr-defined]
    return create


def _creator_of(make: Callable[..., Any], env_id: str) -> EnvCreator:
    """The creator for a user's class or function: called with the env context, or with its entries as keywords.

    Creators of the 1.x line take the context; Gymnasium's classes take keyword arguments, which env_config then holds.
    """

    def create(context: Mapping[str, Any]) -> Any:
        if _takes_context(make, context):
            return make(context)
        return _call(lambda: make(**context), env_id, context)

    return _bearing(create, env_id, None)


_CONTEXT_NAME = re.compile(r"_*|.*(config|context|cfg|ctx)\w*")


def _takes_context(make: Callable[..., Any], context: Mapping[str, Any]) -> bool:
    """Whether the first parameter is the env context: by its name or annotation, or a function's that must be given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return not isinstance(make, type)
    first = next((p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), None)
    if first is None or first.name in context:
        return False
    needed = first.default is first.empty and (not isinstance(make, type) or first.kind is first.POSITIONAL_ONLY)
    return needed or bool(_CONTEXT_NAME.fullmatch(first.name)) or "EnvContext" in str(first.annotation)


# `scheme:name` for the envs of other libraries: functions (scheme, name) -> creator.
_SCHEMES = dict.fromkeys(("pettingzoo", "envpool"), "headwater.envs.foreign:creator_of_scheme")


def _creator_by_id(env_id: str) -> EnvCreator:
    scheme, _, name = env_id.partition(":")
    if name and scheme in _SCHEMES:
        return _bearing(resolve_reference(_SCHEMES[scheme])(scheme, name), env_id, None)
    named = named_env(env_id)
    if named is not None:
        return _creator_of(named, env_id)

    def make(context: Mapping[str, Any]) -> Any:
        import gymnasium

        check_env_id(env_id)
        try:
            return _call(lambda: gymnasium.make(env_id, **context), env_id, context)
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvError(
                f"env {env_id!r} needs a package that is not installed: {error}.{install_hint(env_id)}"
            ) from error

    return _bearing(make, env_id, env_id)


def _call(make: Callable[[], Any], env_id: str, context: Mapping[str, Any]) -> Any:
    try:
        return make()
    except TypeError as error:
        raise EnvError(
            f"env {env_id!r} could not be made with the keyword arguments in env_config, {dict(context)!r}: {error}"
        ) from error


def named_env(env_id: str) -> Callable[..., Any] | None:
    """What `module:Name` names as an attribute of the module; None where it is a Gymnasium id, which goes first.

    Raises:
        EnvError: the module cannot be imported.
    """
    module_name, separator, name = env_id.partition(":")
    if not separator or module_name in _SCHEMES:
        return None
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        hint = install_hint(env_id)
        if not hint and isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = " For a file of your own, start where it is, or put its directory on PYTHONPATH."
        raise EnvError(f"env {env_id!r}: importing the module {module_name!r} failed: {error}.{hint}") from error
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and name in gymnasium.registry:
        return None
    found = getattr(module, name, None)
    return found if callable(found) else None


def check_env_id(env_id: str) -> None:
    """Raise an `EnvError` with the nearest names unless Gymnasium knows `env_id` (whose module is imported by now)."""
    import gymnasium

    name = env_id.rpartition(":")[2]
    if name in gymnasium.registry or any(known.rpartition("-v")[0] == name for known in gymnasium.registry):
        return
    module_name = env_id.rpartition(":")[0]
    module = sys.modules.get(module_name)
    own = [each for each, value in vars(module).items() if callable(value)] if module is not None else []
    near = difflib.get_close_matches(name, [*_ENV_CREATORS, *gymnasium.registry, *own], n=4, cutoff=0.5)
    near = [f"{module_name}:{each}" if each in own else each for each in near]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    absent = "" if module is None else f", and the module {module_name!r} has no class or function of that name"
    if name.startswith("ALE/"):
        hint = f" It is one of Atari's: give 'ale_py:{name}'.{install_hint('ale_py:' + name)}"
    raise EnvError(
        f"There is no env {env_id!r}: it was not given to register_env, and Gymnasium does not know it{absent}.{hint} "
        "For your own env give 'module:Class' or the class itself; for one of another package, install that and give "
        "'module:EnvId'."
    )


# What the extras bring, by the modules that need it.
_EXTRAS = {
    "ale_py": "atari",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.classic_control": "classic-control",
}


def install_hint(env_id: str) -> str:
    """A sentence that says which extra brings what the env needs; "" where none does."""
    import gymnasium

    module, _, name = env_id.rpartition(":")
    entry_point = getattr(gymnasium.registry.get(name), "entry_point", None)
    if isinstance(entry_point, str):
        module = entry_point.partition(":")[0]
    for needed_by, extra in _EXTRAS.items():
        if module == needed_by or module.startswith(needed_by + "."):
            return f" Install it with: pip install 'headwater[{extra}]'"
    return ""


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name_of(function.func)
    return getattr(function, "__qualname__", type(function).__qualname__)


# Algorithms.


def get_algorithm(name: str) -> type:
    """The Trainer class called `name` (imports its framework)."""
    return resolve_reference(ALGORITHMS[_known_algorithm(name)])


def get_config_class(name: str) -> type:
    """The config class of the algorithm called `name` (imports no framework)."""
    return resolve_reference(CONFIG_CLASSES[_known_algorithm(name)])


def _known_algorithm(name: str) -> str:
    by_lower = {known.lower(): known for known in ALGORITHMS}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_lower, n=2, cutoff=0.4)
    hint = f" Did you mean {' or '.join(by_lower[match] for match in near)}?" if near else ""
    raise ConfigError(f"There is no algorithm {name!r}.{hint} There are: {', '.join(ALGORITHMS)}.")


# Callables by reference.


def callable_reference(thing: Any) -> str | None:
    """`"module:qualified.name"` if that imports to `thing` itself in another process too, else None."""
    module_name, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module_name or not name or module_name == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{name}" if found is thing else None


def resolve_reference(reference: str) -> Any:
    """What `"module:qualified.name"` names. Imports the module: only for references that the user gave or trusts.

    Raises:
        ConfigError: it has another form, or the module or the name is not there.
    """
    module_name, separator, name = reference.partition(":")
    if not (separator and module_name and name):
        raise ConfigError(f"{reference!r} is no reference: it must have the form 'module:name'")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{reference!r}: importing the module {module_name!r} failed: {error}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = difflib.get_close_matches(part, dir(found), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"{reference!r}: {getattr(found, '__name__', found)} has no {part!r}.{hint}") from None
    return found
