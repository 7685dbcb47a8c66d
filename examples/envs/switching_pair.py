"""SwitchingPair: two choices at once; the second must follow from the first, the first must not be foreseeable."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class SwitchingPair(gym.Env):
    """1 for each pair of bits `(a1, a2)` with `a1` other than the step before and `a2 = a1 xor key`.

    The observation is the key, drawn once an episode; the bit before is not shown. A policy without memory that takes
    `a1 = 1` with probability p switches with probability `2 p (1 - p)`: at most 1/2, at p = 1/2. If it chooses `a2`
    from the key and from `a1`, it can be right whenever it switches: 1/2 a step. If it chooses both independently, `a2`
    being right for `a1 = 1` with probability q, it is paid with probability

        p (1 - p) q + (1 - p) p (1 - q) = p (1 - p) <= 1/4.

    So the best mean return is `paid / 2`, and that of an independent pair `paid / 4`. (A deterministic `a1` is never
    paid: in a plain bandit it would be as good as any, and a pair chosen independently then lacks nothing.)

    Args:
        paid: Paid steps; one more before them sets the bit to switch from.
    """

    def __init__(self, paid: int = 20) -> None:
        self.paid = paid
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.key = int(self.np_random.integers(2))
        self.before: int | None = None
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        first, second = (int(choice) for choice in action)
        switched = self.before is not None and first != self.before
        self.before = first
        self.steps += 1
        return self._obs(), float(switched and second == first ^ self.key), self.steps > self.paid, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.key], np.float32)
