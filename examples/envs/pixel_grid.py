"""PixelGrid: walk to the goal in a grid that is seen as an image only."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right, as (row, column)
GROUND, AGENT, GOAL = (40, 40, 40), (220, 60, 60), (60, 220, 60)
STEP_COST = 0.01


class PixelGrid(gym.Env):
    """An agent (red) and a goal (green) at random cells of a grid; 1 for reaching the goal, less 0.01 a step.

    The observation is the picture `[size * cell, size * cell, 3]`, uint8. Walls stop a move. Episodes are cut after
    `4 * size` steps. From a distance of d steps the best return is `1 - 0.01 d`, and d is `2 / 3 * size` in the mean:
    0.96 for a 6x6 grid.

    Args:
        size: Cells a side.
        cell: Pixels a side of a cell.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, size: int = 6, cell: int = 4, render_mode: str | None = None) -> None:
        self.size, self.cell, self.render_mode = size, cell, render_mode
        side = size * cell
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        cells = self.np_random.choice(self.size**2, 2, replace=False)
        self.agent, self.goal = (np.array(divmod(int(cell), self.size)) for cell in cells)
        self.steps = 0
        return self.render(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        self.agent = np.clip(self.agent + MOVES[int(action)], 0, self.size - 1)
        reached = bool((self.agent == self.goal).all())
        return self.render(), float(reached) - STEP_COST, reached, self.steps >= 4 * self.size, {}

    def render(self) -> np.ndarray:
        cells = np.full((self.size, self.size, 3), GROUND, np.uint8)
        cells[tuple(self.goal)] = GOAL
        cells[tuple(self.agent)] = AGENT
        return cells.repeat(self.cell, 0).repeat(self.cell, 1)
