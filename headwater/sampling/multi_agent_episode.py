"""MultiAgentEpisode: one running episode of a BaseEnv's env, as the sampler keeps it and callbacks see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.envs.base_env import AGENT_ID
from headwater.sampling.metrics import RolloutMetrics

if TYPE_CHECKING:
    from headwater.sampling.lanes import Lanes


class Agent:
    """One agent in one episode.

    Attributes:
        lanes: of the policy that plays it, and `lane` its number there.
        index: of the agent in its episode, in order of appearance.
        row: its latest row in the lanes' rows, as long as its successor is not known; -1: none.
        early_reward: paid before its first action, which gets it.
        reward: all that it was paid.
        ended: whether it has ended, though the episode may go on.
        seen: its latest observation as the env gave it.
        last: what callbacks may ask for, kept where there are any.
    """

    __slots__ = (
        "agent_id",
        "early_reward",
        "ended",
        "episode",
        "index",
        "lane",
        "lanes",
        "last",
        "reward",
        "row",
        "seen",
    )

    def __init__(self, episode: MultiAgentEpisode, agent_id: Any, index: int, lanes: Lanes, lane: int) -> None:
        self.episode, self.agent_id, self.index = episode, agent_id, index
        self.lanes, self.lane = lanes, lane
        self.row = -1
        self.early_reward = self.reward = 0.0
        self.ended = False
        self.seen: Any = None
        self.last: dict[str, Any] = {}


class MultiAgentEpisode:
    """A running episode; its numbers stay readable after the end.

    Attributes:
        episode_id: unique in the run.
        env_id: which of the BaseEnv's envs.
        length: env steps so far.
        total_reward: sum of the raw rewards of all agents so far.
        user_data: anything that your callbacks or policy_mapping_fn keep for the episode.
        custom_metrics: name -> number; reported as mean, min and max.
        hist_data: name -> list of numbers; reported whole in hist_stats.
    """

    def __init__(self, env_id: Any, env_index: int, episode_id: int) -> None:
        self.env_id, self.env_index, self.episode_id = env_id, env_index, episode_id
        self.length = 0
        self.length_before = 0  # at the last fragment's end
        self.total_reward = 0.0
        self.user_data: dict[str, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self.hist_data: dict[str, list[float]] = {}
        self.agents: dict[Any, Agent] = {}
        self.is_learned_from = True

    @property
    def agent_rewards(self) -> dict[tuple[Any, str], float]:
        """(agent id, policy id) -> sum of raw rewards so far."""
        return {(agent_id, agent.lanes.policy_id): agent.reward for agent_id, agent in self.agents.items()}

    def get_agents(self) -> list[Any]:
        """Ids of all agents that have appeared in this episode."""
        return list(self.agents)

    def policy_for(self, agent_id: Any = AGENT_ID) -> str:
        """The id of the policy that plays an agent which has appeared."""
        return self.agents[agent_id].lanes.policy_id

    def last_raw_obs_for(self, agent_id: Any = AGENT_ID) -> Any:
        """The agent's latest observation as the env gave it. This and the like are None before there is one."""
        return self._last(agent_id, "raw_obs")

    def last_observation_for(self, agent_id: Any = AGENT_ID) -> Any:
        """The observation that the agent's latest action answered, encoded and filtered."""
        return self._last(agent_id, "obs")

    def last_action_for(self, agent_id: Any = AGENT_ID) -> Any:
        """The agent's latest action, as the env took it."""
        return self._last(agent_id, "action")

    def last_reward_for(self, agent_id: Any = AGENT_ID) -> float | None:
        """What the agent was paid last."""
        return self._last(agent_id, "reward")

    def last_info_for(self, agent_id: Any = AGENT_ID) -> Any:
        """The agent's latest info."""
        return self._last(agent_id, "info")

    def look_whether_to_learn(self, infos: dict[Any, Any] | None) -> None:
        """An info with "training_enabled" false says that nothing of this episode is to be learned from."""
        for info in (infos or {}).values():
            if isinstance(info, dict) and not info.get("training_enabled", True):
                self.is_learned_from = False

    def _last(self, agent_id: Any, name: str) -> Any:
        agent = self.agents.get(agent_id)
        return None if agent is None else agent.last.get(name)

    def metrics(self, by_agent: bool) -> RolloutMetrics:
        """What is reported of the episode.

        Raises:
            TrainingError: callbacks set something that is no number.
        """
        metrics = RolloutMetrics(self.length, self.total_reward, self.agent_rewards if by_agent else {})
        if not (self.custom_metrics or self.hist_data):
            return metrics
        return metrics.with_custom(self.custom_metrics, self.hist_data)
