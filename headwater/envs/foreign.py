"""Envs of other APIs, as those that headwater knows: PettingZoo, old Gym, dm_control, EnvPool.

as_known_env        what a creator returned -> a Gymnasium env or a MultiAgentEnv; whatever is known stays as it is
creator_of_scheme   "pettingzoo:NAME" and "envpool:ID" -> a creator
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from headwater.envs.base_env import BaseEnv
from headwater.envs.env_context import EnvContext
from headwater.envs.envpool_vector import EnvPoolVectorEnv
from headwater.envs.external_env import ExternalEnv
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.envs.old_gym import OldApiEnv, from_old_gym, has_old_api, is_old_gym, tell
from headwater.envs.pettingzoo import from_pettingzoo, is_pettingzoo, make_pettingzoo
from headwater.envs.vector_env import VectorEnv
from headwater.errors import ConfigError, EnvError, require

_KNOWN = (gymnasium.Env, gymnasium.vector.VectorEnv, VectorEnv, MultiAgentEnv, ExternalEnv, BaseEnv)


def as_known_env(env: Any, env_id: str) -> Any:
    """Convert an env of an API that is recognised; return anything else as it is.

    Args:
        env: what a creator returned.
        env_id: for messages.

    Raises:
        EnvError: the env is of a recognised API, but cannot be converted.
        MissingExtraError: that needs a package which is not installed.

    Example:
        >>> env = gymnasium.make("CartPole-v1")
        >>> as_known_env(env, "CartPole-v1") is env
        True
    """
    if isinstance(env, _KNOWN):
        return env
    if is_pettingzoo(env):
        return from_pettingzoo(env)
    if is_dm_env(env):
        return from_dm_control(env, env_id)
    if is_old_gym(env):
        return from_old_gym(env, env_id)
    if has_old_api(env) and not hasattr(env, "num_envs"):
        tell(env_id, OldApiEnv.__name__)
        return OldApiEnv(env)
    return env


def is_dm_env(env: Any) -> bool:
    """Whether this is a `dm_env.Environment`, as dm_control's are."""
    return any(cls.__module__.partition(".")[0] in ("dm_env", "dm_control") for cls in type(env).__mro__)


def from_dm_control(env: Any, env_id: str) -> gymnasium.Env:
    """A dm_control env as a Gymnasium env, through shimmy.

    Raises:
        EnvError: dm_control is not installed, or the env is another kind of `dm_env.Environment`.
        MissingExtraError: shimmy is not installed.
    """
    shimmy = require("shimmy", "shimmy")
    try:
        return shimmy.DmControlCompatibilityV0(env)
    except ImportError as error:
        raise EnvError(
            f"Env {env_id!r} is a dm_env.Environment, which needs dm_control to be understood. Install it with: "
            "pip install 'shimmy[dm-control]'"
        ) from error
    except Exception as error:
        raise EnvError(
            f"Env {env_id!r} is a dm_env.Environment that shimmy could not convert: {type(error).__name__}: {error}. "
            "Only dm_control's can be; derive others from gymnasium.Env."
        ) from error


def make_envpool(task_id: str, num_envs: int, seed: int | None = None, **kwargs: Any) -> EnvPoolVectorEnv:
    """N of EnvPool's envs as a `gymnasium.vector.VectorEnv`; see `EnvPoolVectorEnv`."""
    return EnvPoolVectorEnv(task_id, num_envs, seed, **kwargs)


def creator_of_scheme(scheme: str, name: str) -> Callable[[EnvContext], Any]:
    """The creator that `scheme:name` means.

    Args:
        scheme: "pettingzoo" (env_config goes to the env, and `aec=True` lets agents act one after the other) or
            "envpool" (env_config goes to EnvPool; the number of envs is `num_envs` in it, else the context's).
        name: the env's name there.

    Raises:
        ConfigError: there is no such scheme.
    """
    if scheme == "pettingzoo":
        return lambda context: make_pettingzoo(name, **context)
    if scheme == "envpool":
        return lambda context: make_envpool(name, **{"num_envs": getattr(context, "num_envs", 1), **context})
    raise ConfigError(f"{scheme!r} in {scheme + ':' + name!r} is no scheme of envs: there are pettingzoo and envpool.")
