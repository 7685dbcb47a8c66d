"""SingleAgentWorld: what is asked of a Gymnasium env."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

from headwater.envs.action_masks import ACTION_MASK
from headwater.envs.env_checks.findings import Findings, Stopped, shown
from headwater.envs.env_checks.signatures import check_reset_signature
from headwater.envs.env_checks.values import (
    check_action_space,
    check_flag,
    check_mask_space,
    check_observation_space,
    check_reward,
)
from headwater.envs.env_checks.world import Moment, World
from headwater.envs.env_faults import wrong_reset_result

SOLE = None  # the agent


class SingleAgentWorld(World):
    """A Gymnasium env; the arguments are those of `World`."""

    def __init__(self, env: Any, findings: Findings) -> None:
        super().__init__(env, findings)
        self.limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)

    def named(self, agent: Any) -> str:
        return ""

    def check_spaces(self) -> None:
        if not isinstance(self.env, gymnasium.Env):
            self.findings.error(
                "env-class", "a gymnasium.Env", f"a {type(self.env).__module__}.{type(self.env).__qualname__}",
                "Derive the env from gymnasium.Env; the package shimmy wraps envs of the old gym package.",
            )  # fmt: skip
        obs_space, action_space = self.observation_space(SOLE), self.action_space(SOLE)
        has_obs = check_observation_space(self.findings, obs_space)
        has_actions = check_action_space(self.findings, action_space)
        if has_obs and has_actions:
            check_mask_space(self.findings, obs_space, action_space)
        self.takes_seed = check_reset_signature(self.findings, self.env)
        if self.findings.has("reset-signature"):
            self.env = getattr(self.env, "unwrapped", self.env)  # wrappers pass on what it does not take
        if not has_actions:
            raise Stopped

    def observation_space(self, agent: Any) -> Any:
        return _attribute(self.env, "observation_space")

    def action_space(self, agent: Any) -> Any:
        return _attribute(self.env, "action_space")

    def reset(self, seed: int | None) -> Moment:
        result = self._reset_env(self.env, seed)
        wrong = wrong_reset_result(result)
        obs, info = (result, {}) if wrong else result
        if wrong:
            is_pair = isinstance(result, tuple) and len(result) == 2
            if is_pair and not isinstance(self.observation_space(SOLE), spaces.Tuple):
                obs = result[0]
                self.findings.error("info-type", "a dict as info", shown(result[1]), "Return (observation, {}).")
            else:
                self.findings.error(
                    "reset-result", "(observation, info) from reset()", shown(result),
                    "The observation alone is the old gym API: return (observation, {}).",
                )  # fmt: skip
        self._check_observation(SOLE, obs)
        return Moment({SOLE: obs}, {SOLE: info}, {}, [SOLE], False)

    def step(self, actions: Any) -> Moment:
        self._next_step()
        result = self.findings.call("step-raised", lambda: self.env.step(actions[SOLE]))
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise self._stop(
                "step-result", "(observation, reward, terminated, truncated, info) from step()", shown(result),
                "Return these five.",
            )  # fmt: skip
        if len(result) == 4:
            self.findings.error(
                "step-result", "(observation, reward, terminated, truncated, info) from step()", "a tuple of 4",
                "That is the old gym API: return terminated, for a true end, and truncated, for a time limit.",
            )  # fmt: skip
            result = (*result[:3], False, result[3])
        obs, reward, terminated, truncated, info = result
        self._check_observation(SOLE, obs)
        check_reward(self.findings, reward)
        over = check_flag(self.findings, "terminated", terminated)
        over = check_flag(self.findings, "truncated", truncated) or over
        if not isinstance(info, dict):
            self.findings.error("info-type", "a dict as info", shown(info), "Return {} where there is nothing to tell.")
            info = {}
        if ACTION_MASK in info and not (isinstance(obs, dict) and ACTION_MASK in obs):
            self.findings.warning(
                "mask-in-info", "action masks among the observations", "a mask in info, which policies do not see",
                "Set action_mask_from_info=True, or give observations as a Dict with the key 'action_mask'.",
            )  # fmt: skip
        return Moment({SOLE: obs}, {SOLE: info}, {SOLE: reward}, [] if over else [SOLE], over)


def _attribute(env: Any, name: str) -> Any:
    try:
        return getattr(env, name, None)
    except Exception:  # a property of the user's
        return None
