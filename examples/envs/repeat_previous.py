"""RepeatPrevious: name the symbol that was shown some steps ago."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
from gymnasium import spaces


class RepeatPrevious(gym.Env):
    """Each step shows a random symbol; 1 for the action that names the symbol shown `delay` steps before.

    `paid` actions are paid; an episode has `delay + paid` steps, the first ones without pay. With memory the best
    return is `paid`. The symbols are independent, so that what is seen now says nothing about the one asked for:
    every policy without memory has a mean return of exactly `paid / symbols`.

    Args:
        symbols: How many there are.
        delay: Steps to remember, at least 1.
        paid: Actions that are paid.
    """

    def __init__(self, symbols: int = 4, delay: int = 2, paid: int = 24) -> None:
        self.symbols, self.delay, self.paid = symbols, delay, paid
        self.observation_space = spaces.Discrete(symbols)
        self.action_space = spaces.Discrete(symbols)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.shown: deque[int] = deque(maxlen=self.delay + 1)
        self.steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        right = self.steps >= self.delay and int(action) == self.shown[0]
        self.steps += 1
        return self._show(), float(right), self.steps >= self.delay + self.paid, False, {}

    def _show(self) -> int:
        self.shown.append(int(self.np_random.integers(self.symbols)))
        return self.shown[-1]
