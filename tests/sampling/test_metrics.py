import json
import math
import time

import numpy as np
import pytest

from headwater.errors import TrainingError
from headwater.sampling.metrics import RolloutMetrics, collect_episodes, summarize_episodes

KEYS = {
    "episode_reward_max",
    "episode_reward_min",
    "episode_reward_mean",
    "episode_len_mean",
    "episodes_this_iter",
    "policy_reward_min",
    "policy_reward_max",
    "policy_reward_mean",
    "custom_metrics",
    "hist_stats",
    "sampler_perf",
    "off_policy_estimator",
}


def test_before_any_episode_the_keys_are_there_and_numbers_nan():
    result = summarize_episodes([])
    assert set(result) == KEYS and result["episodes_this_iter"] == 0
    for key in ("episode_reward_max", "episode_reward_min", "episode_reward_mean", "episode_len_mean"):
        assert math.isnan(result[key])
    assert set(result["sampler_perf"]) == {
        "mean_env_wait_ms",
        "mean_raw_obs_processing_ms",
        "mean_inference_ms",
        "mean_action_processing_ms",
    }
    assert result["hist_stats"] == {"episode_reward": [], "episode_lengths": []}


def test_window_and_new_episodes():
    episodes = [RolloutMetrics(10, 1.0), RolloutMetrics(20, 3.0), RolloutMetrics(30, 8.0)]
    result = summarize_episodes(episodes, episodes[2:], {"mean_inference_ms": 0.5})
    assert set(result) == KEYS
    assert [result[f"episode_reward_{which}"] for which in ("min", "mean", "max")] == [1.0, 4.0, 8.0]
    assert result["episode_len_mean"] == 20.0 and result["episodes_this_iter"] == 1
    assert result["hist_stats"] == {"episode_reward": [1.0, 3.0, 8.0], "episode_lengths": [10, 20, 30]}
    assert result["sampler_perf"]["mean_inference_ms"] == 0.5


def test_policies_other_than_the_default_are_listed():
    episodes = [
        RolloutMetrics(5, 3.0, {("a", "red"): 1.0, ("b", "blue"): 2.0}),
        RolloutMetrics(5, 5.0, {("a", "red"): 5.0, ("c", "default_policy"): 0.0}),
    ]
    result = summarize_episodes(episodes)
    assert result["policy_reward_mean"] == {"red": 3.0, "blue": 2.0}
    assert result["policy_reward_min"] == {"red": 1.0, "blue": 2.0}
    assert result["policy_reward_max"] == {"red": 5.0, "blue": 2.0}
    assert result["hist_stats"]["policy_red_reward"] == [1.0, 5.0]
    assert summarize_episodes([RolloutMetrics(1, 1.0, {("x", "default_policy"): 1.0})])["policy_reward_mean"] == {}


def test_custom_metrics_and_histograms():
    episodes = [
        RolloutMetrics(1, 0.0, custom_metrics={"x": 1, "none": math.nan}, hist_data={"h": [1, 2]}),
        RolloutMetrics(1, 0.0, custom_metrics={"x": np.float32(3)}, hist_data={"h": [3]}),
        RolloutMetrics(1, 0.0, custom_metrics={"x": math.nan}),
    ]
    result = summarize_episodes(episodes)
    metrics = result["custom_metrics"]
    assert (metrics["x_mean"], metrics["x_min"], metrics["x_max"]) == (2.0, 1.0, 3.0)
    assert math.isnan(metrics["none_mean"]) and math.isnan(metrics["none_max"])
    assert result["hist_stats"]["h"] == [1, 2, 3]


@pytest.mark.parametrize("value", ["high", [1.0, 2.0], None])
def test_a_custom_metric_that_is_no_number_is_named(value):
    episode = RolloutMetrics(1, 1.0, custom_metrics={"mine": value})
    for report in (lambda: summarize_episodes([episode]), episode.to_state):
        with pytest.raises(TrainingError, match=r"episode.custom_metrics\['mine'\] must be a number"):
            report()


def test_sampler_times_of_episodes_are_averaged():
    episodes = [RolloutMetrics(1, 0.0, perf_stats={"mean_env_wait_ms": v}) for v in (1.0, 3.0)]
    assert summarize_episodes(episodes)["sampler_perf"]["mean_env_wait_ms"] == 2.0


class Worker:
    def __init__(self, *rewards):
        self.episodes = [RolloutMetrics(1, r) for r in rewards]

    def get_metrics(self):
        episodes, self.episodes = self.episodes, []
        return episodes


def test_collecting_drains_every_worker():
    local, remotes = Worker(3.0), [Worker(1.0), Worker(2.0)]
    assert [episode.episode_reward for episode in collect_episodes(local, remotes)] == [1.0, 2.0, 3.0]
    assert collect_episodes(local, remotes) == []


def test_json_round_trip():
    episode = RolloutMetrics(
        np.int64(7),
        np.float32(1.5),
        {(0, "red"): np.float32(2.0), ("b", "blue"): 1},
        {"x": np.float64(1)},
        {},
        {"h": [np.int64(1)]},
    )
    again = RolloutMetrics.from_state(json.loads(json.dumps(episode.to_state())))
    assert again == RolloutMetrics(7, 1.5, {(0, "red"): 2.0, ("b", "blue"): 1.0}, {"x": 1.0}, {}, {"h": [1.0]})


def test_a_full_window_is_cheap():
    episodes = [RolloutMetrics(100, 1.0, {("agent0", "default_policy"): 1.0}) for _ in range(100)]

    def run():
        start = time.perf_counter()
        summarize_episodes(episodes, episodes[:5])
        return time.perf_counter() - start

    assert min(run() for _ in range(50)) < 300e-6
