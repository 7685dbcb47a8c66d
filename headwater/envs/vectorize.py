"""Vectorizer: from an env creator to a VectorEnv, in the way that `vectorization` names or that suits the env.

auto     the env's own vector entry point where Gymnasium has registered one for its id, else sync; sync where action
         masks come from infos, which a wrapper around each env reads
native   that entry point, or an error
sync     N copies in this process
async    N copies in processes of their own
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from headwater.envs.async_envs import make_async_vector_env
from headwater.envs.base_env import BaseEnv
from headwater.envs.env_context import EnvContext
from headwater.envs.external_env import ExternalEnv
from headwater.envs.foreign import as_known_env
from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.info_mask import MaskFromInfo
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.envs.vector_env import VectorEnv
from headwater.errors import ConfigError, EnvError, HeadwaterError

logger = logging.getLogger(__name__)


_NOT_VECTORS = (MultiAgentEnv, ExternalEnv, BaseEnv)


class Vectorizer:
    """Makes the envs of one worker; the arguments are those of `make_vector_env`."""

    def __init__(
        self,
        creator: Callable[[EnvContext], Any],
        env_id: str,
        num_envs: int,
        config: Any,
        context: EnvContext,
        seeds: Sequence[int] | None,
        validate_env: Callable[[Any, EnvContext], None] | None,
        global_index_offset: int,
    ) -> None:
        self.creator = creator
        self.env_id = env_id
        self.num_envs = num_envs
        self.config = config
        self.context = context
        self.seeds = seeds
        self.validate_env = validate_env
        self.global_index_offset = global_index_offset

    def make(self) -> VectorEnv | MultiAgentEnv | ExternalEnv | BaseEnv:
        """Make the envs and their adapter; of those with several agents, or that run by themselves, only the first."""
        how = self.config.vectorization
        if how == "native" or (how == "auto" and not self.config.action_mask_from_info):
            spec = self._native_spec()
            if spec is not None and (how == "native" or self._suits(spec)):
                native = self._adapt(self._make_native(spec), lambda: self._make_native(spec))
                if how == "native" or self.config.horizon is None or native.can_reset_rows:
                    return native
                native.close()  # a horizon cuts single envs, which copies can do
            elif how == "native":
                raise ConfigError(
                    f"vectorization='native', but env {self.env_id!r} has no vector entry point registered with "
                    "Gymnasium. Set vectorization to 'auto', 'sync' or 'async', or let the env's creator return a "
                    "gymnasium.vector.VectorEnv."
                )
        if how == "async":
            return self._adapt(self._make_async(), self._make_async)
        first = self.make_one(0)
        if isinstance(first, _NOT_VECTORS):
            return first
        if isinstance(first, (VectorEnv, gymnasium.vector.VectorEnv)):
            return self._adapt(first, lambda: self.make_one(0))
        return CopiesVectorEnv(
            self.make_one, self.num_envs, self.env_id, self.config, first, self.seeds, self.context.worker_index
        )

    # Single envs.

    def make_one(self, index: int) -> Any:
        """Make env `index`, checked and, where it is of another API, wrapped."""
        context = self.context.copy_with(vector_index=self.global_index_offset + index)
        where = f"Env {self.env_id!r} (worker {context.worker_index}, sub-env {index})"
        try:
            env = self.creator(context)
        except HeadwaterError:
            raise
        except Exception as error:
            raise EnvError(
                f"{where} could not be made: its creator raised {type(error).__name__}: {error}. It was given the "
                f"env_config {dict(context)!r}."
            ) from error
        env = as_known_env(env, self.env_id)
        if not isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv, VectorEnv, *_NOT_VECTORS)):
            raise EnvError(f"{where}: its creator returned {_described(env)}, expected a gymnasium.Env. {_remedy(env)}")
        if getattr(self.creator, "gym_id", None) is not None and isinstance(env, gymnasium.Env):
            env = _without_passive_checker(env)
        if self.config.vectorization == "async" and isinstance(env, _NOT_VECTORS):
            raise ConfigError(
                f"vectorization='async' gives single Gymnasium envs a process each, but env {self.env_id!r} is "
                f"{_described(env)}. Leave vectorization out, or set remote_worker_envs=True to let each be an actor."
            )
        self._validate(env, context)
        return self._with_mask(env) if self.config.action_mask_from_info else env

    def _with_mask(self, env: Any) -> MaskFromInfo:
        if isinstance(env, gymnasium.Env):
            return MaskFromInfo(env, self.env_id)
        is_vector = isinstance(env, (gymnasium.vector.VectorEnv, VectorEnv))
        kind = "a vector env" if is_vector else _described(env)
        if hasattr(env, "close"):
            env.close()
        raise ConfigError(
            f"action_mask_from_info: the creator of env {self.env_id!r} returned {kind}, whose infos are not "
            "read. Let it return a single env, or one whose observations are a Dict with the key 'action_mask'."
        )

    def _validate(self, env: Any, context: EnvContext) -> None:
        if self.validate_env is None:
            return
        try:
            self.validate_env(env, context)
        except HeadwaterError:
            raise
        except Exception as error:
            raise EnvError(
                f"Env {self.env_id!r} (worker {context.worker_index}) was refused by validate_env: "
                f"{type(error).__name__}: {error}"
            ) from error

    # Vector envs.

    def _adapt(self, env: Any, make_env: Callable[[], Any]) -> VectorEnv:
        if env.num_envs != self.num_envs:
            env.close()
            raise ConfigError(
                f"Env {self.env_id!r} is a vector env of {env.num_envs} envs, but num_envs_per_worker is "
                f"{self.num_envs}: set num_envs_per_worker={env.num_envs}, or make the env with {self.num_envs}."
            )
        if isinstance(env, VectorEnv):
            return env
        return GymnasiumVectorEnv(env, self.env_id, self.config, make_env, self.seeds, self.context.worker_index)

    def _make_async(self) -> gymnasium.vector.VectorEnv:
        return make_async_vector_env(self.make_one, self.num_envs, self.env_id, self.context.worker_index)

    def _native_spec(self) -> EnvSpec | None:
        """Return the spec of the env's id where that has a vector entry point which can stand for it."""
        gym_id = getattr(self.creator, "gym_id", None)
        if gym_id is None:
            return None
        module, _, name = gym_id.rpartition(":")
        if module:
            importlib.import_module(module)
        spec = gymnasium.registry.get(name)
        return spec if spec is not None and spec.vector_entry_point and not spec.additional_wrappers else None

    def _suits(self, spec: EnvSpec) -> bool:
        """Whether "auto" should take it: not for one env where Gymnasium's own single env is the same and faster."""
        own = isinstance(spec.vector_entry_point, str) and spec.vector_entry_point.startswith("gymnasium.envs.classic")
        return self.num_envs > 1 or not own

    def _make_native(self, spec: EnvSpec) -> gymnasium.vector.VectorEnv:
        where = f"Env {self.env_id!r} (worker {self.context.worker_index})"
        try:
            env = gymnasium.make_vec(spec.id, self.num_envs, vectorization_mode="vector_entry_point", **self.context)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise EnvError(
                f"{where}: its native vector env needs a package that is not installed: {error}. Install it, or set "
                "vectorization='sync' to run copies of the single env."
            ) from error
        except Exception as error:
            raise EnvError(
                f"{where}: its native vector env could not be made: {type(error).__name__}: {error}. It was given the "
                f"env_config {dict(self.context)!r}; set vectorization='sync' where only the single env knows that."
            ) from error
        self._validate(env, self.context)
        return env


def _without_passive_checker(env: gymnasium.Env) -> gymnasium.Env:
    """Take out the checker that gymnasium.make puts in: the adapters' own covers it, on every step and with names."""
    if isinstance(env, gymnasium.wrappers.PassiveEnvChecker):
        return env.env
    outer: Any = env
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer.env, gymnasium.wrappers.PassiveEnvChecker):
            outer.env = outer.env.env
        outer = outer.env
    return env


def _described(env: Any) -> str:
    return "None" if env is None else f"a {type(env).__module__}.{type(env).__qualname__}"


def _remedy(env: Any) -> str:
    if env is None:
        return "Its last line may lack a `return`."
    if type(env).__module__.partition(".")[0] == "gym" or any(c.__module__ == "gym.core" for c in type(env).__mro__):
        return "It is an env of the old gym package: derive it from gymnasium.Env, or wrap it with the package shimmy."
    return "Derive the env from gymnasium.Env (several agents: from headwater.envs.multi_agent_env.MultiAgentEnv)."
