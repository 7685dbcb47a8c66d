"""MaskFromInfo: an env that gives its action mask in `info` (Gymnasium's Taxi does) gives it in its observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.action_masks import ACTION_MASK, MaskMismatch, flat_mask, num_choices
from headwater.errors import ConfigError, EnvError


class MaskFromInfo(gymnasium.Wrapper):
    """Observes `{"observation": the env's, "action_mask": the mask as one flat row}`.

    Args:
        env: one whose infos have "action_mask" at every reset and every step that does not end the episode.
        env_id: for messages.

    Raises:
        ConfigError: there is nothing to mask in the env's actions.
        EnvError: from `reset` and `step`, an info has no mask, or one that does not fit the actions.

    Example:
        >>> env = MaskFromInfo(gymnasium.make("Taxi"), "Taxi")
        >>> env.observation_space
        Dict('action_mask': Box(0, 1, (6,), int8), 'observation': Discrete(500))
    """

    def __init__(self, env: gymnasium.Env, env_id: str) -> None:
        super().__init__(env)
        self._env_id, self._step = env_id, 0
        width = num_choices(env.action_space)
        if not width:
            raise ConfigError(
                f"action_mask_from_info: the actions of env {env_id!r} are a {env.action_space}, of which there is "
                "nothing to mask. Leave the setting out."
            )
        self._nothing_allowed = np.zeros(width, np.int8)
        mask_space = spaces.Box(0, 1, (width,), np.int8)
        self.observation_space = spaces.Dict({"observation": env.observation_space, ACTION_MASK: mask_space})

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As the env, with the mask."""
        observation, info = self.env.reset(**kwargs)
        self._step = 0
        return self._with(observation, self._mask(info, "reset()")), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """As the env, with the mask; after an episode's last step it may be absent."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        if (terminated or truncated) and ACTION_MASK not in info:
            mask = self._nothing_allowed
        else:
            mask = self._mask(info, f"step {self._step} of an episode")
        return self._with(observation, mask), reward, terminated, truncated, info

    def _with(self, observation: Any, mask: NDArray[np.int8]) -> dict[str, Any]:
        return {"observation": observation, ACTION_MASK: mask}

    def _mask(self, info: dict[str, Any], when: str) -> NDArray[np.int8]:
        if ACTION_MASK not in info:
            raise EnvError(
                f"Env {self._env_id!r}: the info of {when} has no 'action_mask', only {sorted(map(str, info))}. "
                "Give it at every reset and step, or leave action_mask_from_info out."
            )
        try:
            return flat_mask(self.env.action_space, info[ACTION_MASK])
        except MaskMismatch as mismatch:
            raise EnvError(f"Env {self._env_id!r}: the info of {when} has a wrong action mask: {mismatch}.") from None
