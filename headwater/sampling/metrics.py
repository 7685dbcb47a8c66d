"""Episode metrics: what samplers report when an episode ends, and its summary in a result.

A worker's `get_metrics()` hands out one `RolloutMetrics` per episode that ended since the last call;
`summarize_episodes` turns a window of them into the keys that `Trainer.train()` and evaluation return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headwater.data.sample_batch import DEFAULT_POLICY_ID
from headwater.errors import TrainingError
from headwater.sampling.filters import gather_in_process

PERF_KEYS = ("mean_env_wait_ms", "mean_raw_obs_processing_ms", "mean_inference_ms", "mean_action_processing_ms")


class RolloutMetrics(NamedTuple):
    """One ended episode.

    Attributes:
        episode_length: env steps.
        episode_reward: sum of raw rewards of all agents.
        agent_rewards: (agent, policy id) -> reward; may be empty for a single agent.
        custom_metrics: name -> number, as callbacks set them.
        perf_stats: the sampler's mean times, see `PERF_KEYS`.
        hist_data: name -> list of numbers, as callbacks set them.
    """

    episode_length: int
    episode_reward: float
    agent_rewards: Mapping[tuple[Any, str], float] = {}
    custom_metrics: Mapping[str, Any] = {}
    perf_stats: Mapping[str, float] = {}
    hist_data: Mapping[str, Sequence[float]] = {}

    def with_custom(self, custom_metrics: Mapping[str, Any], hist_data: Mapping[str, Any]) -> RolloutMetrics:
        """With what callbacks set, as floats. Checked here, before an episode is kept that could never be saved.

        Raises:
            TrainingError: something is no number.
        """
        return self._replace(
            custom_metrics={name: _number(name, value) for name, value in custom_metrics.items()},
            hist_data={name: _numbers(name, values) for name, values in hist_data.items()},
        )

    def to_state(self) -> list[Any]:
        """JSON values from which `from_state` makes an equal one."""
        return [
            int(self.episode_length),
            float(self.episode_reward),
            [
                [agent if type(agent) in (str, int) else str(agent), policy_id, float(reward)]
                for (agent, policy_id), reward in self.agent_rewards.items()
            ],
            {name: _number(name, value) for name, value in self.custom_metrics.items()},
            {name: float(value) for name, value in self.perf_stats.items()},
            {name: [float(value) for value in values] for name, values in self.hist_data.items()},
        ]

    @staticmethod
    def from_state(state: Sequence[Any]) -> RolloutMetrics:
        """The metrics whose `to_state()` was `state`."""
        length, reward, agent_rewards, custom_metrics, perf_stats, hist_data = state
        by_agent = {(agent, policy_id): r for agent, policy_id, r in agent_rewards}
        return RolloutMetrics(length, reward, by_agent, custom_metrics, perf_stats, hist_data)


def collect_episodes(
    local_worker: Any,
    remote_workers: Sequence[Any] = (),
    gather: Callable[..., list[Any]] = gather_in_process,
) -> list[RolloutMetrics]:
    """The episodes that ended since the last call: those of the remote workers in order, then the local one's."""
    episodes = [episode for part in gather(remote_workers, "get_metrics") for episode in part]
    episodes.extend(local_worker.get_metrics())
    return episodes


def summarize_episodes(
    episodes: Sequence[RolloutMetrics],
    new_episodes: Sequence[RolloutMetrics] | None = None,
    perf_stats: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The result keys that describe episodes. The same keys for any number of them; NaN where none has ended.

    Args:
        episodes: the smoothing window, oldest first.
        new_episodes: those of them which ended in this iteration; None = all.
        perf_stats: mean times of the samplers; None = the mean of the episodes' own.
    """
    rewards = [float(episode.episode_reward) for episode in episodes]
    lengths = [int(episode.episode_length) for episode in episodes]
    custom: dict[str, list[float]] = {}
    by_policy: dict[str, list[float]] = {}
    hist_stats: dict[str, list[Any]] = {"episode_reward": rewards, "episode_lengths": lengths}
    for episode in episodes:
        for (_, policy_id), reward in episode.agent_rewards.items():
            if policy_id != DEFAULT_POLICY_ID:
                by_policy.setdefault(policy_id, []).append(float(reward))
        for name, value in episode.custom_metrics.items():
            custom.setdefault(name, []).append(_number(name, value))
        for name, values in episode.hist_data.items():
            hist_stats.setdefault(name, []).extend(values)
    for policy_id, policy_rewards in by_policy.items():
        hist_stats[f"policy_{policy_id}_reward"] = policy_rewards
    custom_metrics = {}
    for name, values in custom.items():
        known = [value for value in values if value == value]
        custom_metrics[f"{name}_mean"] = _mean(known)
        custom_metrics[f"{name}_min"] = min(known, default=math.nan)
        custom_metrics[f"{name}_max"] = max(known, default=math.nan)
    if perf_stats is None:
        perf_stats = mean_perf_stats(episode.perf_stats for episode in episodes)
    return {
        "episode_reward_max": max(rewards, default=math.nan),
        "episode_reward_min": min(rewards, default=math.nan),
        "episode_reward_mean": _mean(rewards),
        "episode_len_mean": _mean(lengths),
        "episodes_this_iter": len(episodes if new_episodes is None else new_episodes),
        "policy_reward_min": {policy_id: min(values) for policy_id, values in by_policy.items()},
        "policy_reward_max": {policy_id: max(values) for policy_id, values in by_policy.items()},
        "policy_reward_mean": {policy_id: _mean(values) for policy_id, values in by_policy.items()},
        "custom_metrics": custom_metrics,
        "hist_stats": hist_stats,
        "sampler_perf": {**dict.fromkeys(PERF_KEYS, math.nan), **perf_stats},
        "off_policy_estimator": {},
    }


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TrainingError(
            f"episode.custom_metrics[{name!r}] must be a number, but {value!r} ({type(value).__name__}) came from a "
            "callback. Lists of numbers go into episode.hist_data."
        ) from None


def _numbers(name: str, values: Any) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise TrainingError(
            f"episode.hist_data[{name!r}] must be a list of numbers, but {values!r} came from a callback. "
            "Anything else may be kept in episode.user_data."
        ) from None


def mean_perf_stats(stats: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Key-wise mean of several workers' or episodes' times."""
    values: dict[str, list[float]] = {}
    for stat in stats:
        for name, value in stat.items():
            values.setdefault(name, []).append(value)
    return {name: _mean(numbers) for name, numbers in values.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
