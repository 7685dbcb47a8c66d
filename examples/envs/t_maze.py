"""TMaze: a signal at the start of a corridor says which way to turn at its end (after Bakker 2001)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class TMaze(gym.Env):
    """One walks down a corridor of `length` cells and turns at its end: 1 for the way that the signal at the start
    said, -1 for the other.

    The observation is `[signal, junction]`: the signal is -1 or 1 in the first cell and 0 behind it, the junction 1
    where one turns. Walking goes by itself and actions count at the junction only; otherwise a policy without memory
    could wait on one of the two signals. So it has a mean return of exactly 0, and one with memory can have 1. (Not so
    with `use_prev_action`: a policy can then write the signal into its actions and read it from them.)

    Args:
        length: Steps from the signal to the junction, at least 1.
    """

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at = 0
        self.way = int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        turned = self.at == self.length
        reward = (1.0 if int(action) == self.way else -1.0) if turned else 0.0
        self.at = min(self.at + 1, self.length)
        return self._obs(), reward, turned, False, {}

    def _obs(self) -> np.ndarray:
        signal = 2.0 * self.way - 1.0 if self.at == 0 else 0.0
        return np.array([signal, self.at == self.length], np.float32)
