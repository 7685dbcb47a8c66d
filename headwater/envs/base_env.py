"""BaseEnv: the universal contract of whatever gives experience: many envs, many agents, each ready in its own time.

    poll -> what is ready -> policies -> send_actions -> poll -> ...

Everything is keyed `{env_id: {agent_id: value}}`. Adapters turn vector, multi-agent, external and remote envs into one;
`BaseEnvSampler` runs on it. A vector env with one agent each takes the array path of `VectorSampler` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.errors import EnvError

if TYPE_CHECKING:
    from gymnasium import spaces

EnvID = Hashable
AgentID = Hashable
PerAgent = dict[Any, Any]  # {agent_id: value}

ALL_DONE = "__all__"
AGENT_ID = "agent0"  # the agent of an env that has one only
ASYNC_RESET_RETURN = "async_reset_return"


class LostEpisode(NamedTuple):
    """In place of an env's observations: its running episode is lost, and nothing of it is learned from."""

    reason: str


class LoggedAction(NamedTuple):
    """An off-policy action together with what it was drawn from.

    Attributes:
        action: as the policy sampled it, before it was clipped or stretched for the env.
        dist_inputs: float32 [K], the inputs of the distribution that it was drawn from.
    """

    action: Any
    dist_inputs: Any


class Poll(NamedTuple):
    """What is ready, each `{env_id: {agent_id: value}}`. An env that is not ready is in none of them.

    Attributes:
        obs: observations of the agents that are to act now, and the final observations of those that end. The first
            ones of an env that has no running episode begin one. A `LostEpisode` in place of the inner dict says that
            the running episode is lost; a new one begins when observations come again.
        rewards: paid since the env's last poll; also to agents that do not observe now. Empty where an episode begins.
        terminateds: agents whose episode truly ended; under "__all__" whether the whole episode did. Whoever is
            missing goes on.
        truncateds: the same for episodes that were cut. An agent that is cut needs a final observation.
        infos: of agents in `obs`; may lack any.
        off_policy_actions: actions that were taken already at these observations, as the env takes them or as
            `LoggedAction`: they are recorded, and nothing is sent for these agents.
    """

    obs: dict[Any, Any]
    rewards: dict[Any, PerAgent]
    terminateds: dict[Any, PerAgent]
    truncateds: dict[Any, PerAgent]
    infos: dict[Any, PerAgent]
    off_policy_actions: dict[Any, PerAgent]


class BaseEnv(ABC):
    """Many envs of many agents.

    The loop of its user: `start_episodes(seeds)`; then for ever `poll()`, `try_reset(env_id)` where an episode ended,
    and `send_actions(...)`.

    Attributes:
        env_id: the name for messages.
        num_envs: envs that are reset on request, with the ids 0 to `num_envs - 1`; 0 where episodes come from outside,
            each with an id of its own that never comes again.
        is_multi_agent: False where every env has the one agent "agent0".
        possible_agents: ids of all agents that may ever appear; None where that is not known.
        envs: the single envs, unwrapped, where they are objects in this process; else empty.
        num_faults: faults of envs that were survived.
    """

    env_id: str
    num_envs: int
    is_multi_agent: bool = True
    possible_agents: Sequence[Any] | None = None
    envs: Sequence[Any] = ()
    num_faults: int = 0

    @abstractmethod
    def observation_space_of(self, agent_id: AgentID) -> spaces.Space:
        """The observation space of an agent."""

    @abstractmethod
    def action_space_of(self, agent_id: AgentID) -> spaces.Space:
        """The action space of an agent."""

    @abstractmethod
    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        """Drop all running episodes and start one in every env; their observations come with later polls.

        Args:
            seeds: one for each of the `num_envs`; None lets each go on with its own random generator.
        """

    @abstractmethod
    def poll(self) -> Poll:
        """Return what is ready; waits until something is.

        Raises:
            EnvError: an env failed, and by setting that ends the run.
        """

    @abstractmethod
    def send_actions(self, action_dict: dict[Any, PerAgent]) -> None:
        """Give actions, as the envs take them, to the agents that observed in the last poll.

        Args:
            action_dict: an entry for every env in that poll whose episode goes on, empty where nobody is to act.
        """

    @abstractmethod
    def try_reset(self, env_id: EnvID) -> PerAgent | str | None:
        """Start a new episode in an env, whether the last one ended or is to be dropped.

        Returns:
            Its first observations {agent_id: observation}; "async_reset_return" where they come with a later poll; None
            where the env cannot be reset: its episodes come from outside.
        """

    def get_unwrapped(self) -> list[Any]:
        """The single envs without their wrappers; [] where they are not objects in this process."""
        return list(self.envs)

    def stop(self) -> None:  # noqa: B027  (nothing to release is a fair default)
        """Release what the envs hold. May be called twice."""


def poll_of_start(obs: dict[Any, PerAgent], infos: dict[Any, PerAgent] | None = None) -> Poll:
    """The poll in which episodes begin: observations, and nothing else."""
    return Poll(obs, {i: {} for i in obs}, {i: {} for i in obs}, {i: {} for i in obs}, infos or {}, {})


def space_by_agent(env_id: str, kind: str, by_agent: Any, one: Any, agent_id: Any) -> spaces.Space:
    """The space of an agent: its own where there is a mapping by agent, else the one of all.

    Raises:
        EnvError: there is none.
    """
    if by_agent is not None:
        try:
            return by_agent[agent_id]
        except KeyError:
            raise EnvError(
                f"Env {env_id!r}: agent {agent_id!r} appeared, but {kind}_spaces has {', '.join(map(str, by_agent))}. "
                f"Give every agent that may appear an entry, or set {kind}_space for all of them."
            ) from None
    if one is None:
        raise EnvError(
            f"Env {env_id!r} has no {kind} space: set {kind}_space (of each agent) or {kind}_spaces "
            "({agent_id: space}) in its constructor."
        )
    return one
