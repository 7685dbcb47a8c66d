"""MultiAgentEnv: an env of several agents, which may appear, leave, skip turns and act at different rates.

    reset() -> observations of those who act first;  step(their actions) -> observations of those who act next

`headwater.envs.pettingzoo` makes one of PettingZoo's; `with_agent_groups` makes several agents into one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from headwater.envs.base_env import ALL_DONE, AgentID, PerAgent, space_by_agent
from headwater.errors import EnvError

StepReturn = tuple[PerAgent, PerAgent, PerAgent, PerAgent, PerAgent]


class MultiAgentEnv(ABC):
    """Several agents in one world. Subclass it for your own.

    Who is in the observations acts next; who is not is not asked. Rewards may go to any agent at any step: what is paid
    to an agent between its own turns belongs to its last action. An agent ends by a true value under its id in
    `terminateds` (a true end) or `truncateds` (a cut, which needs a final observation), and does not observe again in
    this episode; under "__all__" the whole episode ends.

    Attributes:
        observation_space, action_space: of each agent, where all are alike.
        observation_spaces, action_spaces: {agent id: space}, where they are not.
        possible_agents: ids of all agents that may appear, where that is known.

    Example:
        >>> class Countdown(MultiAgentEnv):  # two agents count down together, one from 1 and one from 2
        ...     possible_agents = ["short", "long"]
        ...     observation_space = spaces.Box(0, 2, (1,))
        ...     action_space = spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         self.left = {"short": 1, "long": 2}
        ...         return {agent: [float(n)] for agent, n in self.left.items()}, {}
        ...     def step(self, actions):
        ...         self.left = {agent: self.left[agent] - 1 for agent in actions}
        ...         ended = {agent: n == 0 for agent, n in self.left.items()}
        ...         return (
        ...             {agent: [float(n)] for agent, n in self.left.items()}, dict.fromkeys(actions, 1.0),
        ...             {**ended, "__all__": ended["long"]}, {}, {},
        ...         )
        >>> env = Countdown()
        >>> obs, infos = env.reset()
        >>> env.step({"short": 0, "long": 1})[2]
        {'short': True, 'long': False, '__all__': False}
    """

    observation_space: spaces.Space | None = None
    action_space: spaces.Space | None = None
    observation_spaces: Mapping[Any, spaces.Space] | None = None
    action_spaces: Mapping[Any, spaces.Space] | None = None
    possible_agents: Sequence[Any] | None = None

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        """Begin an episode.

        Returns:
            Observations and infos, each {agent id: value}, of the agents that act first.
        """

    @abstractmethod
    def step(self, actions: PerAgent) -> StepReturn:
        """Take the actions of the agents that observed, {agent id: action}.

        Returns:
            Observations (of those who act next, and final ones), rewards, terminateds, truncateds (both with
            "__all__"), infos; each {agent id: value}. Whoever is missing has nothing new, was paid nothing, goes on.
        """

    def get_observation_space(self, agent_id: AgentID) -> spaces.Space:
        """The observation space of an agent.

        Raises:
            EnvError: there is none.
        """
        return space_by_agent(
            type(self).__name__, "observation", self.observation_spaces, self.observation_space, agent_id
        )

    def get_action_space(self, agent_id: AgentID) -> spaces.Space:
        """The action space of an agent.

        Raises:
            EnvError: there is none.
        """
        return space_by_agent(type(self).__name__, "action", self.action_spaces, self.action_space, agent_id)

    @property
    def unwrapped(self) -> Any:
        """The env itself, without adapters."""
        return self

    def with_agent_groups(
        self,
        groups: Mapping[Any, Sequence[Any]],
        obs_space: spaces.Tuple | None = None,
        act_space: spaces.Tuple | None = None,
    ) -> MultiAgentEnv:
        """This env with groups of agents that act as one.

        Args:
            groups: {group id: [agent ids]}; an agent in none stays on its own.
            obs_space, act_space: Tuple spaces of a group, where groups are alike; None: made from the agents'.
        """
        return AgentGroups(self, groups, obs_space, act_space)

    def render(self) -> Any:
        """A frame, as Gymnasium's envs give it; None where there is nothing to see."""
        return None

    def close(self) -> None:  # noqa: B027  (nothing to release is a fair default)
        """Release what the env holds."""


class AgentGroups(MultiAgentEnv):
    """Groups of agents as agents: tuples of observations and actions, summed rewards.

    The members of a group observe together, in the order given. The group's info holds "individual_rewards" {agent id:
    reward} and "infos" {agent id: info}. A group ends when all its members have; those that ended before keep their
    last observation, and their actions go nowhere.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[Any, Sequence[Any]],
        obs_space: spaces.Tuple | None = None,
        act_space: spaces.Tuple | None = None,
    ) -> None:
        self.env = env
        self.groups = {group: list(members) for group, members in groups.items()}
        self._group_of = {agent: group for group, members in self.groups.items() for agent in members}
        if len(self._group_of) != sum(map(len, self.groups.values())):
            raise EnvError(f"with_agent_groups: an agent is in two groups: {self.groups}.")
        self._obs_space, self._act_space = obs_space, act_space
        if env.possible_agents is not None:
            singles = [agent for agent in env.possible_agents if agent not in self._group_of]
            self.possible_agents = [*self.groups, *singles]
        self._obs: PerAgent = {}
        self._ended: dict[Any, str] = {}

    def get_observation_space(self, agent_id: AgentID) -> spaces.Space:
        if agent_id not in self.groups:
            return self.env.get_observation_space(agent_id)
        return self._obs_space or spaces.Tuple([self.env.get_observation_space(a) for a in self.groups[agent_id]])

    def get_action_space(self, agent_id: AgentID) -> spaces.Space:
        if agent_id not in self.groups:
            return self.env.get_action_space(agent_id)
        return self._act_space or spaces.Tuple([self.env.get_action_space(a) for a in self.groups[agent_id]])

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        obs, infos = self.env.reset(seed=seed, options=options)
        self._obs, self._ended = dict(obs), {}
        return self._grouped_obs(obs), self._grouped_infos(obs, {}, infos)

    def step(self, actions: PerAgent) -> StepReturn:
        single: PerAgent = {}
        for agent, action in actions.items():
            if agent in self.groups:
                members = zip(self.groups[agent], action, strict=True)
                single.update({member: part for member, part in members if member not in self._ended})
            else:
                single[agent] = action
        obs, rewards, terminateds, truncateds, infos = self.env.step(single)
        self._obs.update(obs)
        for kind, flags in (("terminated", terminateds), ("truncated", truncateds)):
            self._ended.update({agent: kind for agent, flag in flags.items() if flag and agent in self._group_of})
        over = bool(terminateds.get(ALL_DONE) or truncateds.get(ALL_DONE))
        paid: PerAgent = {}
        for agent, reward in rewards.items():
            group = self._group_of.get(agent, agent)
            paid[group] = paid.get(group, 0.0) + reward
        seen = self._grouped_obs({**obs, **{agent: None for agent in single if over and agent in self._obs}})
        return (
            seen,
            paid,
            self._grouped_flags(terminateds, "terminated"),
            self._grouped_flags(truncateds, "truncated"),
            self._grouped_infos(seen, rewards, infos),
        )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _grouped_obs(self, agents: PerAgent) -> PerAgent:
        """Observations of the groups and single agents that `agents` names."""
        grouped: PerAgent = {}
        for agent in agents:
            group = self._group_of.get(agent)
            if group is None:
                grouped[agent] = self._obs[agent]
            elif group not in grouped:
                absent = [member for member in self.groups[group] if member not in self._obs]
                if absent:
                    raise EnvError(
                        f"Group {group!r}: its members {absent} have not observed yet, but others of it have. The "
                        "members of a group must observe together: leave those out that take turns."
                    )
                grouped[group] = tuple(self._obs[member] for member in self.groups[group])
        return grouped

    def _grouped_flags(self, flags: PerAgent, kind: str) -> PerAgent:
        grouped = {agent: flag for agent, flag in flags.items() if agent not in self._group_of}
        for group, members in self.groups.items():
            kinds = [self._ended.get(member) for member in members]
            if None not in kinds:  # cut where one member was cut: the group's value goes on
                grouped[group] = ("truncated" if "truncated" in kinds else "terminated") == kind
        return grouped

    def _grouped_infos(self, seen: PerAgent, rewards: PerAgent, infos: PerAgent) -> PerAgent:
        grouped = {agent: info for agent, info in infos.items() if agent not in self._group_of}
        for group, members in self.groups.items():
            if group in seen or any(member in seen for member in members):
                grouped[group] = {
                    "individual_rewards": {agent: rewards[agent] for agent in members if agent in rewards},
                    "infos": {agent: infos[agent] for agent in members if agent in infos},
                }
        return grouped
