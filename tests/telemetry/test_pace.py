import math

import pytest

from headwater.telemetry.pace import Pace
from tests.telemetry.sample_results import make_result


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make_pace(stop, seconds=0.5, iterations=4, first=1):
    clock = Clock()
    pace = Pace(stop, clock)
    for iteration in range(first, first + iterations):
        pace.add(result := make_result(iteration, 10.0 * iteration, time_total_s=seconds * iteration))
        clock.now += seconds
    return pace, result


def test_time_left_is_known_for_steps_iterations_and_time():
    pace, result = make_pace({"timesteps_total": 10_240, "training_iteration": 20, "time_total_s": 3.0})
    ways = {way.key: way for way in pace.ways(result)}
    assert pace.steps_per_second == pytest.approx(2048)
    assert ways["timesteps_total"].seconds_left == pytest.approx(3.0) and ways["timesteps_total"].done == pytest.approx(
        0.4
    )
    assert ways["training_iteration"].seconds_left == pytest.approx(8.0)
    assert ways["time_total_s"].seconds_left == pytest.approx(1.0)
    assert pace.ways(result)[0].key == "time_total_s"


def test_a_return_has_a_way_but_no_time():
    pace, result = make_pace({"episode_reward_mean": 110.0})
    [way] = pace.ways(result)
    assert way.seconds_left is None and way.done == pytest.approx(0.3) and way.value == 40.0


def test_a_resumed_run_is_measured_from_where_it_resumed():
    pace, result = make_pace({"timesteps_total": 1024 * 1010}, first=1000)
    assert pace.steps_per_second == pytest.approx(2048) and pace.ways(result)[0].seconds_left == pytest.approx(3.5)


def test_the_pace_is_that_of_the_last_seconds():
    clock = Clock()
    pace = Pace({}, clock)
    for iteration in range(1, 200):
        pace.add(make_result(iteration))
        clock.now += 1.0 if iteration < 150 else 0.5
    assert pace.steps_per_second == pytest.approx(2048)
    assert len(pace._marks) < 25


def test_what_is_not_known_is_not_claimed():
    pace = Pace({"episode_reward_mean": 100.0, "timesteps_total": 100, "custom/x": 3.0})
    assert math.isnan(pace.steps_per_second)
    pace.add({})
    for way in pace.ways({}):
        assert way.done == 0.0 and way.seconds_left is None
    pace.add(make_result(1))
    assert pace.ways(make_result(1))[0] == ("timesteps_total", 1024.0, 100, 1.0, 0.0)
