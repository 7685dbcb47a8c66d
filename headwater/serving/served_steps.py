"""Steps that clients took with their own copy of the policy: checked, and added to the episodes as logged actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.envs.base_env import AGENT_ID, LoggedAction
from headwater.envs.external_episodes import ExternalEpisodes
from headwater.envs.nested import row_of
from headwater.envs.space_check import Mismatch
from headwater.serving.protocol import StepsRequest
from headwater.serving.values import checked, checked_sampled, numbers

if TYPE_CHECKING:
    from headwater.serving.policy_server import PolicyServerInput


class Steps(NamedTuple):
    """Checked steps."""

    num_steps: int
    observations: Any
    actions: Any
    dist_inputs: NDArray[np.float32] | None  # None: the actions are as the env took them
    rewards: list[float]
    infos: list[Any]
    end: tuple[Any, bool, bool] | None


def checked_steps(env: PolicyServerInput, message: StepsRequest) -> Steps:
    """The steps in a message.

    Raises:
        Mismatch: a value is not what it must be.
    """
    rewards = numbers(message.rewards, "rewards")
    if rewards.ndim != 1:
        raise Mismatch(f"rewards has the shape {rewards.shape}, expected [T]")
    count = len(rewards)
    infos = message.infos or [None] * count
    if len(infos) != count:
        raise Mismatch(f"there are {len(infos)} infos for {count} rewards")
    observations = actions = dist_inputs = None
    if count:
        observations = checked(env.observation_space, message.observations, "observations", count)
        if message.dist_inputs is None:
            actions = checked(env.action_space, message.actions, "actions", count)
        else:
            width = env.shelf.num_outputs()
            if width is None:
                raise Mismatch("dist_inputs came, but the server has no policy attached")
            dist_inputs = numbers(message.dist_inputs, "dist_inputs", (count, width)).astype(np.float32)
            actions = checked_sampled(env.action_space, message.actions, count)
    end = None
    if message.end is not None:
        if not (message.end.terminated or message.end.truncated):
            raise Mismatch("end must be terminated or truncated")
        final = checked(env.observation_space, message.end.observation, "end.observation")
        end = final, message.end.terminated, message.end.truncated
    return Steps(count, observations, actions, dist_inputs, rewards.tolist(), infos, end)


def add_steps(episodes: ExternalEpisodes, episode_id: str, steps: Steps) -> None:
    """Add them to a running episode, and end it where they do."""
    for t in range(steps.num_steps):
        action = row_of(steps.actions, t)
        if steps.dist_inputs is not None:
            action = LoggedAction(action, steps.dist_inputs[t])
        episodes.log(episode_id, {AGENT_ID: row_of(steps.observations, t)}, {AGENT_ID: action})
        info = steps.infos[t]
        episodes.pay(episode_id, {AGENT_ID: float(steps.rewards[t])}, {AGENT_ID: info} if info else None)
    if steps.end is not None:
        final, terminated, truncated = steps.end
        episodes.end(episode_id, {AGENT_ID: final}, terminated, truncated)
