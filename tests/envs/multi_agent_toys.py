"""Multi-agent envs by script."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.multi_agent_env import MultiAgentEnv


class Script(MultiAgentEnv):
    """Plays a list of steps over and over: each (who observes, rewards, terminateds, truncateds).

    The first entry says who observes at reset. Observations are [step in the episode]; `taken` has all actions.
    """

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, steps: list[tuple[list[str], dict[str, Any], dict[str, bool], dict[str, bool]]]) -> None:
        self.steps = steps
        self.possible_agents = sorted({agent for observers, *_ in steps for agent in observers})
        self.seeds: list[int | None] = []
        self.taken: list[dict[str, Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.t = 0
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.taken.append(dict(actions))
        self.t += 1
        _, rewards, terminateds, truncateds = self.steps[self.t]
        return self._obs(), rewards, {"__all__": False, **terminateds}, {"__all__": False, **truncateds}, {}

    def _obs(self) -> dict[str, Any]:
        return {agent: np.array([self.t], np.float32) for agent in self.steps[self.t][0]}


# Two players alternate; the last action is 1's, and both are paid for it.
ALTERNATING = [
    (["0"], {}, {}, {}),
    (["1"], {}, {}, {}),
    (["0"], {}, {}, {}),
    (["1"], {}, {}, {}),
    ([], {"0": -1.0, "1": 1.0}, {"__all__": True}, {}),
]
# Three players with unequal turns: a acts at every step, b at 0 and 3, c from 1 on twice; c ends before the others.
UNEQUAL = [
    (["a", "b"], {}, {}, {}),
    (["a", "c"], {"a": 1.0, "b": 10.0}, {}, {}),
    (["a"], {"a": 2.0, "b": 20.0, "c": 100.0}, {}, {}),
    (["a", "b", "c"], {"a": 3.0, "c": 200.0}, {}, {}),
    (["a", "c"], {"a": 4.0, "b": 30.0, "c": 300.0}, {"c": True}, {}),
    (["a", "b"], {"a": 5.0, "b": 40.0}, {}, {"__all__": True}),
]
