"""Episode: one running episode as callbacks see it. Made only where an episode callback is overridden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.data.sample_batch import DEFAULT_POLICY_ID
from headwater.envs.base_env import AGENT_ID

if TYPE_CHECKING:
    from headwater.sampling.sampler import VectorSampler


class Episode:
    """A view of one sub-env's running episode; its numbers stay readable after the end.

    Attributes:
        episode_id: unique in the run.
        user_data: anything that your callbacks keep for the episode; a resumed run begins with none.
        custom_metrics: name -> number; reported as mean, min and max.
        hist_data: name -> list of numbers; reported whole in hist_stats.
    """

    def __init__(self, sampler: VectorSampler, env_index: int, episode_id: int) -> None:
        self.episode_id = episode_id
        self.env_index = env_index
        self.user_data: dict[str, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self.hist_data: dict[str, list[float]] = {}
        self._sampler: VectorSampler | None = sampler
        self._total_reward = 0.0
        self._length = 0
        self._last: dict[str, Any] = {}

    @property
    def total_reward(self) -> float:
        """Sum of raw rewards so far."""
        return self._total_reward if self._sampler is None else float(self._sampler.episode_returns[self.env_index])

    @property
    def length(self) -> int:
        """Env steps so far."""
        return self._length if self._sampler is None else int(self._sampler.episode_lengths[self.env_index])

    @property
    def agent_rewards(self) -> dict[tuple[str, str], float]:
        """(agent, policy id) -> sum of rewards."""
        return {(AGENT_ID, DEFAULT_POLICY_ID): self.total_reward}

    def policy_for(self, agent_id: str = AGENT_ID) -> str:
        """The id of the policy that acts for the agent."""
        return DEFAULT_POLICY_ID

    def last_raw_obs_for(self, agent_id: str = AGENT_ID) -> Any:
        """The latest observation as the env gave it (the final one when the episode has ended)."""
        return self._read("raw_obs")

    def last_observation_for(self, agent_id: str = AGENT_ID) -> Any:
        """The observation that the latest action answered, encoded and filtered; None before the first step."""
        return self._read("obs")

    def last_action_for(self, agent_id: str = AGENT_ID) -> Any:
        """The latest action as the policy sampled it; None before the first step."""
        return self._read("action")

    def last_reward_for(self, agent_id: str = AGENT_ID) -> float | None:
        """The latest raw reward; None before the first step."""
        return self._read("reward")

    def last_info_for(self, agent_id: str = AGENT_ID) -> Any:
        """The latest info dict of the env, {} where it gave none."""
        return self._read("info")

    def _read(self, name: str) -> Any:
        return self._last.get(name) if self._sampler is None else self._sampler.last_of(self.env_index, name)

    def get_state(self) -> dict[str, Any]:
        """What callbacks have gathered to be reported; `user_data` may be anything, and is not saved."""
        return {
            "custom_metrics": {name: float(value) for name, value in self.custom_metrics.items()},
            "hist_data": {name: [float(value) for value in values] for name, values in self.hist_data.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a `get_state()`."""
        self.custom_metrics = dict(state["custom_metrics"])
        self.hist_data = {name: list(values) for name, values in state["hist_data"].items()}

    def close(self) -> None:
        """Keep the numbers as they are: the sampler goes on to the next episode."""
        if self._sampler is not None:
            self._total_reward, self._length = self.total_reward, self.length
            self._last = {
                name: self._sampler.last_of(self.env_index, name)
                for name in ("raw_obs", "obs", "action", "reward", "info")
            }
            self._sampler = None
