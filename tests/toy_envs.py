"""Small envs whose right answers are known by heart, and a critic that is known too."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class CounterEnv(gym.Env):
    """Observes [t], pays 1 each step and ends at step `length`, terminated, truncated or both; actions do nothing."""

    def __init__(self, length: int = 3, end: str = "truncated") -> None:
        self.length, self.end = length, end
        self.observation_space = spaces.Box(0.0, 1000.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        ended = self.t >= self.length
        return (
            np.array([self.t], np.float32),
            1.0,
            ended and self.end in ("terminated", "both"),
            ended and self.end in ("truncated", "both"),
            {},
        )


def counter_vector(mode: AutoresetMode, num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    """Gymnasium's own vector env over counters, in one of its autoreset modes."""
    return SyncVectorEnv([lambda: CounterEnv(**kwargs)] * num_envs, autoreset_mode=mode)


class RandomLengthEnv(gym.Env):
    """Episodes of 1 to 20 steps, drawn from the env's generator; the observation is [seeded number, t]."""

    log: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, tag: str = "") -> None:
        self.tag = tag
        self.observation_space = spaces.Box(-1.0, 1000.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.number = float(self.np_random.random())
        self.length = int(self.np_random.integers(1, 21))
        self.t = 0
        self.log.append(("reset", self.tag))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        ended = self.t >= self.length
        if ended:
            self.log.append(("end", self.tag))
        return self._obs(), 1.0, ended, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.number, self.t], np.float32)


class EchoEnv(gym.Env):
    """Pays the action that it is given; observes the step number; remembers every action."""

    def __init__(self, length: int = 7, action_space: spaces.Space | None = None) -> None:
        self.length = length
        self.observation_space = spaces.Box(0.0, 1000.0, (1,), np.float32)
        self.action_space = action_space or spaces.Discrete(10)
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.actions.append(np.array(action))
        return np.array([self.t], np.float32), float(np.sum(action)), self.t >= self.length, False, {}


class Recall(gym.Env):
    """Shows a sign in the first of four steps, and pays for the action that names it in the last."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.sign, self.t = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.sign - 1.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        over = self.t == 4
        return np.zeros(1, np.float32), float(over and action == self.sign), over, False, {}


class HiddenVelocities(gym.ObservationWrapper):
    """CartPole that shows positions only: how fast they change must be remembered."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        bounds = np.array([4.8, 0.42], np.float32)
        self.observation_space = spaces.Box(-bounds, bounds)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


class LinearCritic(torch.nn.Module):
    """V(obs) = obs[0] + 1; the policy's outputs are a parameter, zero at first."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str) -> None:
        super().__init__()
        self.outputs = torch.nn.Parameter(torch.zeros(num_outputs))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.outputs.expand(len(obs), -1), obs[:, 0] + 1.0
