from __future__ import annotations

import math

import pytest

from headwater.cli.stopping import StopCriteria
from headwater.errors import ConfigError

RESULT = {
    "episode_reward_mean": 480.0,
    "episodes_total": 120,
    "timesteps_total": 1000,
    "training_iteration": 3,
    "done": False,
    "hist_stats": {},
}


def test_any_bound_stops_and_says_which() -> None:
    criteria = StopCriteria({"episode_reward_mean": 475, "timesteps_total": 1e6}, window=100)
    assert criteria.reached(RESULT) == "episode_reward_mean 480 >= 475"
    assert criteria.reached(RESULT | {"episode_reward_mean": 474.9}) is None
    assert criteria.reached(RESULT | {"episode_reward_mean": math.nan}) is None
    assert criteria.reached(RESULT | {"episode_reward_mean": -1.0, "timesteps_total": 10**6})
    assert str(criteria) == "episode_reward_mean >= 475 or timesteps_total >= 1000000"


def test_a_mean_counts_only_over_a_full_window() -> None:
    criteria = StopCriteria({"episode_reward_mean": 475}, window=100)
    assert criteria.reached(RESULT | {"episodes_total": 99}) is None
    assert criteria.reached(RESULT | {"episodes_total": 100}) is not None


def test_evaluation_results_may_be_absent() -> None:
    criteria = StopCriteria({"evaluation/episode_reward_mean": 5})
    assert criteria.reached(RESULT) is None
    assert criteria.reached(RESULT | {"evaluation": {"episode_reward_mean": 6.0}})


def test_no_bounds_never_stop() -> None:
    assert StopCriteria({}).reached(RESULT) is None
    assert "Ctrl-C" in str(StopCriteria({}))


def test_what_cannot_be_a_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a number"):
        StopCriteria({"episode_reward_mean": "high"})
    with pytest.raises(ConfigError, match="must be a number"):
        StopCriteria({"done": True})
    for key in ("timesteps_total", "training_iteration", "time_total_s"):
        with pytest.raises(ConfigError, match=f"'{key}' must be above 0, not -1"):
            StopCriteria({key: -1})
    assert StopCriteria({"episode_reward_mean": -250}).bounds == {"episode_reward_mean": -250}
    with pytest.raises(ConfigError, match="Near it: episode_reward_mean"):
        StopCriteria({"episode_reward": 5}).reached(RESULT)
    with pytest.raises(ConfigError, match="is dict, not a number"):
        StopCriteria({"hist_stats": 5}).reached(RESULT)
