"""MultiAgentCartPole: several poles at once, each balanced by an agent of its own, until the last has fallen."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from headwater.envs.multi_agent_env import MultiAgentEnv


class MultiAgentCartPole(MultiAgentEnv):
    """CartPole-v1 for agents "0", "1", ...; an agent whose pole fell has ended, the others go on.

    The best return of each agent is `max_steps`; a random policy's is about 22.

    Args:
        num_agents: How many.
        max_steps: Steps after which all that stand are cut.
    """

    def __init__(self, num_agents: int = 4, max_steps: int = 500) -> None:
        self.max_steps = max_steps
        self.poles = {str(i): CartPoleEnv() for i in range(num_agents)}
        self.possible_agents = list(self.poles)
        one = self.poles["0"]
        self.observation_space, self.action_space = one.observation_space, one.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        self.steps, self.standing = 0, len(self.poles)
        obs = {}
        for i, (agent, pole) in enumerate(self.poles.items()):
            obs[agent], _ = pole.reset(seed=None if seed is None else seed + i)
        return obs, {}

    def step(self, actions: dict[Any, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self.steps += 1
        obs, rewards, terminateds = {}, {}, {}
        for agent, action in actions.items():
            obs[agent], rewards[agent], fallen, _, _ = self.poles[agent].step(action)
            if fallen:
                terminateds[agent] = True
                self.standing -= 1
        terminateds["__all__"] = not self.standing
        return obs, rewards, terminateds, {"__all__": self.steps >= self.max_steps and self.standing > 0}, {}

    def close(self) -> None:
        for pole in self.poles.values():
            pole.close()
