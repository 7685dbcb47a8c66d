"""Envs for the tests of the env layer: episodes by script, faults on order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from headwater.envs.vector_env import StepResult, VectorEnv


def make_config(**changes: Any) -> SimpleNamespace:
    """What the env layer reads of a TrainerConfig."""
    settings: dict[str, Any] = {
        "on_env_error": "raise",
        "on_bad_values": "raise",
        "max_env_errors_in_a_row": 3,
        "check_env_steps": False,
        "env_hang_warn_s": None,
        "vectorization": "auto",
        "action_mask_from_info": False,
        "horizon": None,
    }
    return SimpleNamespace(**{**settings, **changes})


class ScriptEnv(gym.Env):
    """Episode k has `lengths[k % len]` steps and ends as `kinds[k % len]` says; obs is [env, episode, t, action]."""

    def __init__(self, number: int = 0, lengths: list[int] | None = None, kinds: list[str] | None = None) -> None:
        self.number, self.lengths, self.kinds = number, lengths or [3], kinds or ["truncated"]
        self.observation_space = spaces.Box(-1e6, 1e6, (4,), np.float32)
        self.action_space = spaces.Discrete(10)
        self.episode, self.t, self.running = -1, 0, False
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        self.episode += 1
        self.t, self.running = 0, True
        return self._obs(-1), {"started": self.episode}

    def step(self, action: Any) -> Any:
        assert self.running, "stepped after its end"
        self.t += 1
        ended = self.t >= self.lengths[self.episode % len(self.lengths)]
        kind = self.kinds[self.episode % len(self.kinds)] if ended else ""
        self.running = not ended
        info = {"ended": self.episode} if ended else {}
        return self._obs(action), float(action), kind in ("terminated", "both"), kind in ("truncated", "both"), info

    def _obs(self, action: Any) -> np.ndarray:
        return np.array([self.number, self.episode, self.t, action], np.float32)


class NestedEnv(gym.Env):
    """Dict observations with a Tuple inside, Dict actions; ends after `length` steps."""

    def __init__(self, length: int = 3) -> None:
        self.length, self.t = length, 0
        self.observation_space = spaces.Dict(
            {
                "pose": spaces.Tuple([spaces.Box(-100, 100, (2,), np.float32), spaces.Discrete(50, start=-1)]),
                "image": spaces.Box(0, 255, (3, 3, 1), np.uint8),
            }
        )
        self.action_space = spaces.Dict({"go": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.actions.append(action)
        return self._obs(), 1.0, self.t >= self.length, False, {}

    def _obs(self) -> Any:
        return {
            "image": np.full((3, 3, 1), self.t, np.uint8),
            "pose": (np.array([self.t, -self.t]), self.t),  # float64 and a Python int are welcome
        }


class FaultyEnv(gym.Env):
    """A well-behaved env until `fault(self, where)` returns what `reset` or `step` shall return, or raises.

    Args:
        fault: called with the env and "reset" or "step"; None lets the env behave.
        length: steps of an episode.
        space: of the observations, which are zeros.
    """

    made = 0

    def __init__(self, fault: Any = None, length: int = 5, space: spaces.Space | None = None) -> None:
        type(self).made += 1
        self.fault = fault or (lambda env, where: None)
        self.length, self.t, self.resets, self.closed = length, 0, 0, False
        self.observation_space = space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.resets += 1
        result = self.fault(self, "reset")
        return (self._obs(), {}) if result is None else result

    def step(self, action: Any) -> Any:
        self.t += 1
        result = self.fault(self, "step")
        return (self._obs(), 1.0, self.t >= self.length, False, {}) if result is None else result

    def close(self) -> None:
        self.closed = True

    def _obs(self) -> np.ndarray:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


def roll(
    env: VectorEnv, num_rows: int, seeds: list[int] | None = None, actions: Any = None
) -> list[list[tuple[Any, ...]]]:
    """Use a vector env as the sampler does, and return each env's first `num_rows` transitions.

    A transition is (obs, action, reward, next obs, terminated, truncated), in numbers. `actions(i, k)` is the action of
    env i for its transition k.
    """
    actions = actions or (lambda i, k: (3 * i + k) % 10)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
    obs = env.reset(seeds)
    while min(map(len, rows)) < num_rows:
        taken = np.array([actions(i, len(rows[i])) for i in range(env.num_envs)])
        result = env.step(taken)
        for i in range(env.num_envs):
            if result.valid is None or result.valid[i]:
                rows[i].append(
                    (
                        tuple(obs[i].tolist()),
                        taken[i].item(),
                        float(result.rewards[i]),
                        tuple(result.obs[i].tolist()),
                        bool(result.terminateds[i]),
                        bool(result.truncateds[i]),
                    )
                )
        obs = result.obs
        done = result.terminateds | result.truncateds
        if done.any():
            obs = env.reset_done(done)
    return [part[:num_rows] for part in rows]


def step_many(env: VectorEnv, num_steps: int, action: int = 0) -> list[StepResult]:
    """Step with the same action, resetting what ends."""
    results = []
    for _ in range(num_steps):
        results.append(env.step(np.full(env.num_envs, action)))
        done = results[-1].terminateds | results[-1].truncateds
        if done.any():
            env.reset_done(done)
    return results
