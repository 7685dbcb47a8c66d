"""_ExternalEnvToBaseEnv: an external env as a BaseEnv, in which each episode is an env of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from headwater.envs.base_env import BaseEnv, PerAgent, Poll
from headwater.envs.external_env import ExternalEnv
from headwater.errors import EnvError

logger = logging.getLogger(__name__)


class _ExternalEnvToBaseEnv(BaseEnv):
    """An external env as a BaseEnv.

    Args:
        env: the external env; its thread starts at the first poll.
        env_id: for messages; default: the class's name.
    """

    num_envs = 0

    def __init__(self, env: ExternalEnv, env_id: str | None = None) -> None:
        if not hasattr(env, "episodes"):
            raise EnvError(
                f"{type(env).__name__}.__init__ must call super().__init__(action_space, observation_space)."
            )
        self.external_env = env
        self.env_id = type(env).__name__ if env_id is None else env_id
        self.is_multi_agent = env.is_multi_agent
        self.possible_agents = env.possible_agents
        self.envs: Sequence[Any] = [env]

    def observation_space_of(self, agent_id: Any) -> spaces.Space:
        return self.external_env.get_observation_space(agent_id)

    def action_space_of(self, agent_id: Any) -> spaces.Space:
        return self.external_env.get_action_space(agent_id)

    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        """Forget what was handed out; episodes that are running go on, and are new to the sampler."""
        self.external_env.episodes.restart()

    def poll(self) -> Poll:
        env = self.external_env
        env.start()
        return env.episodes.hand_out(env.check_runs, env.timeout_s, self._warn)

    def send_actions(self, action_dict: dict[Any, PerAgent]) -> None:
        self.external_env.episodes.answer(action_dict)

    def try_reset(self, env_id: Any) -> None:
        """Episodes come from outside: one that still runs is lost to its caller, who may start another."""
        self.external_env.episodes.drop(env_id, "the sampler gave it up, for bad values or by a setting; see its log")

    def stop(self) -> None:
        self.external_env.stop()

    def _warn(self) -> None:
        logger.warning(
            "Env %r: no episode has come for %s s; still waiting for one.", self.env_id, self.external_env.timeout_s
        )
