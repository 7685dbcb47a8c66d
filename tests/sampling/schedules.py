"""An env whose agents appear, leave, end, skip turns and are paid at random, and which writes down what is right."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from headwater.envs.multi_agent_env import MultiAgentEnv


class Row(NamedTuple):
    """What a batch must hold of one action."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: float | None  # None: the episode terminated without a last observation


class RandomSchedule(MultiAgentEnv):
    """Every observation is a number that never comes again. `rows[(episode, agent)]` are closed rows, in order."""

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, seed: int, num_agents: int = 4, p_observe: float = 0.6, p_end: float = 0.05) -> None:
        self.rng = np.random.default_rng(seed)
        self.possible_agents = [f"agent{i}" for i in range(num_agents)]
        self.p_observe, self.p_end = p_observe, p_end
        self.counter, self.episode = 0, -1
        self.rows: dict[tuple[int, str], list[Row]] = {}
        self.paid: dict[int, float] = {}
        self.first_number: dict[float, tuple[int, str]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.t = 0
        self.alive: set[str] = set()
        self.gone: set[str] = set()
        self.open: dict[str, list[Any]] = {}  # agent -> [obs, action, reward]
        self.waiting: set[str] = set()
        self.early: dict[str, float] = {}
        self.paid[self.episode] = 0.0
        first = [a for a in self.possible_agents if self.rng.random() < 0.5] or [self.possible_agents[0]]
        return {agent: self._observe(agent) for agent in first}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == self.waiting, (actions, self.waiting)
        self.t += 1
        for agent, action in actions.items():
            self.open[agent] = [self.last[agent], int(action), self.early.pop(agent, 0.0)]
        self.waiting = set()
        rewards = {
            a: float(self.rng.integers(1, 9))
            for a in self.possible_agents
            if self.rng.random() < 0.5 and a not in self.gone
        }
        self.paid[self.episode] += sum(rewards.values())
        for agent, reward in rewards.items():
            if agent in self.open:
                self.open[agent][2] += reward
            else:
                self.early[agent] = self.early.get(agent, 0.0) + reward
        terminateds: dict[str, bool] = {"__all__": False}
        truncateds: dict[str, bool] = {"__all__": False}
        obs: dict[str, Any] = {}
        over = self.rng.random() < 0.08 or self.t >= 30
        if over:
            kind = ("terminated", "truncated", "both")[self.rng.integers(3)]
            terminateds["__all__"], truncateds["__all__"] = kind != "truncated", kind != "terminated"
            for agent in sorted(self.open):
                seen = kind == "truncated" or self.rng.random() < 0.5
                if seen:
                    obs[agent] = self._number(agent)
                self._close(agent, terminateds["__all__"], truncateds["__all__"], obs[agent][0] if seen else None)
            return obs, rewards, terminateds, truncateds, {}
        for agent in self.possible_agents:
            if agent in self.gone:
                continue
            if agent in self.open and self.rng.random() < self.p_end:
                terminated = bool(self.rng.random() < 0.5)
                (terminateds if terminated else truncateds)[agent] = True
                obs[agent] = self._number(agent)
                self._close(agent, terminated, not terminated, obs[agent][0])
                self.gone.add(agent)
                self.alive.discard(agent)
            elif self.rng.random() < (self.p_observe if agent in self.alive else 0.2):
                obs[agent] = self._observe(agent)
        return obs, rewards, terminateds, truncateds, {}

    def _observe(self, agent: str) -> Any:
        value = self._number(agent)
        if agent in self.open:
            self._close(agent, False, False, value[0])
        self.alive.add(agent)
        self.waiting.add(agent)
        self.last = {**getattr(self, "last", {}), agent: float(value[0])}
        return value

    def _number(self, agent: str) -> Any:
        self.counter += 1
        return np.array([self.counter], np.float32)

    def _close(self, agent: str, terminated: bool, truncated: bool, next_obs: Any) -> None:
        obs, action, reward = self.open.pop(agent)
        row = Row(obs, action, reward, terminated, truncated, None if next_obs is None else float(next_obs))
        self.rows.setdefault((self.episode, agent), []).append(row)
