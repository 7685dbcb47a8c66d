"""NoEnv: spaces without an env, for runs whose experience comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from headwater.envs.base_env import BaseEnv, Poll
from headwater.envs.space_json import as_space
from headwater.errors import ConfigError, EnvError

NO_ENV = "no env"


class NoEnv(BaseEnv):
    """Has the spaces of agents, and no episodes.

    Raises:
        ConfigError: a space is missing.
    """

    env_id = NO_ENV
    num_envs = 0
    is_multi_agent = False

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if space is None:
                raise ConfigError(
                    f"env: without an env the setting {name} must say what the rows of `input` hold. Set it, or give "
                    "the env that they come from."
                )
        self._observation_space, self._action_space = as_space(observation_space), as_space(action_space)

    def observation_space_of(self, agent_id: Any) -> spaces.Space:
        return self._observation_space

    def action_space_of(self, agent_id: Any) -> spaces.Space:
        return self._action_space

    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        raise EnvError(
            "This run has no env to step or evaluate in: its experience comes from `input`. Give one as env."
        )

    def poll(self) -> Poll:
        raise EnvError("This run has no env to poll.")

    def send_actions(self, action_dict: dict[Any, dict[Any, Any]]) -> None:
        raise EnvError("This run has no env to act in.")

    def try_reset(self, env_id: Any) -> None:
        return None
