"""PettingZoo envs by script, for what the real ones do not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces


class Turns(pettingzoo.AECEnv):
    """Plays a list of turns: each (who acts, {who: paid for it}, who ends by it and how).

    An observation is [turn, agent's place]. Agents that ended stand in line for the step that PettingZoo wants of them
    until `dead_at` of the turns, or until nobody else is left; that step pays `dead_pay` to whoever is there. Rewards
    are never cleared, as in many envs.
    """

    metadata = {"name": "turns_v0", "render_modes": []}

    def __init__(
        self,
        turns: list[tuple[str, dict[str, float], dict[str, str]]],
        dead_at: dict[str, int] | None = None,
        dead_pay: float = 0.0,
    ) -> None:
        super().__init__()
        self.turns, self.dead_at, self.dead_pay = turns, dead_at or {}, dead_pay
        self.possible_agents = sorted({who for who, *_ in turns})
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(10)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.seeds.append(seed)
        self.t = 0
        self.agents = list(self.possible_agents)
        for name, value in (
            ("rewards", 0),
            ("_cumulative_rewards", 0),
            ("terminations", False),
            ("truncations", False),
        ):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.infos = {agent: {} for agent in self.agents}
        self.taken: list[tuple[str, Any]] = []
        self._choose()

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.t, self.possible_agents.index(agent)], np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        self.taken.append((agent, action))
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            for part in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
                del part[agent]
            self.agents.remove(agent)
            if self.dead_pay:
                self.rewards = dict.fromkeys(self.agents, self.dead_pay)
                self._accumulate_rewards()
        else:
            _, paid, ends = self.turns[self.t]
            self.t += 1
            self._cumulative_rewards[agent] = 0
            if paid:
                self.rewards.update(paid)
                self._accumulate_rewards()
            for who, how in ends.items():
                {"terminated": self.terminations, "truncated": self.truncations}[how][who] = True
        self._choose()

    def _choose(self) -> None:
        dead = [agent for agent in self.agents if self.terminations[agent] or self.truncations[agent]]
        due = [agent for agent in dead if self.dead_at.get(agent, 0) <= self.t or len(dead) == len(self.agents)]
        if due:
            self.agent_selection = due[0]
        elif self.agents:
            self.agent_selection = self.turns[self.t][0]


class Crowd(pettingzoo.ParallelEnv):
    """Agents by script: one entry a step of {agent: "" or how it ends}; whoever is in the next entry too lives on.

    Dicts go on naming agents that ended if `haunted`.
    """

    metadata = {"name": "crowd_v0", "render_modes": []}

    def __init__(self, script: list[dict[str, str]], haunted: bool = False) -> None:
        self.script, self.haunted = script, haunted
        self.possible_agents = sorted({agent for entry in script for agent in entry})

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 100, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.script[0])
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), (actions, self.agents)
        ends = self.script[self.t]
        self.t += 1
        come = self.script[self.t] if self.t < len(self.script) else {}
        self.agents = [agent for agent in come if not ends.get(agent)]
        names = set(ends) | set(come) | (set(self.possible_agents) if self.haunted else set())
        gone = {agent: np.bool_(self.haunted and agent not in self.agents) for agent in names}
        return (
            {agent: np.full(1, self.t, np.float32) for agent in names},
            {agent: 1.0 for agent in ends},
            {agent: gone[agent] or np.bool_(ends.get(agent) == "terminated") for agent in names},
            {agent: np.bool_(ends.get(agent) == "truncated") for agent in names},
            {agent: {} for agent in names},
        )


class Guess(pettingzoo.ParallelEnv):
    """Two agents; the mask of the one choice that is allowed is in infos. Ends after two steps."""

    metadata = {"name": "guess_v0", "render_modes": []}
    render_mode = None
    possible_agents = ["a", "b"]

    def __init__(self, mask_at_step: Any = "right") -> None:
        self.mask_at_step = mask_at_step
        self.resets = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, ["a", "b"]
        self.resets += 1
        return {"a": 0, "b": 0}, self._infos("right")

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        over = self.t == 2
        self.agents = [] if over else self.agents
        infos = {"a": {}, "b": {}} if over else self._infos(self.mask_at_step)
        flags = dict.fromkeys("ab", over)
        return dict.fromkeys("ab", self.t), dict.fromkeys("ab", 1.0), flags, dict.fromkeys("ab", False), infos

    def _infos(self, mask: Any) -> dict[str, Any]:
        if mask is None:
            return {"a": {}, "b": {}}
        if mask != "right":
            return {agent: {"action_mask": mask} for agent in "ab"}
        return {"a": {"action_mask": np.eye(3, dtype=np.int8)[self.t]}, "b": {"action_mask": np.ones(3, np.int8)}}
