"""Schedules of coefficients and learning rates."""

import pytest

from headwater.errors import ConfigError
from headwater.policy.schedules import make_schedule


def test_piecewise_is_linear_between_points_and_stays_at_the_last():
    schedule = make_schedule([[0, 1.0], [100, 0.1]], 5.0)
    assert [schedule(t) for t in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_piecewise_before_its_first_point():
    assert make_schedule({"type": "piecewise", "points": [[10, 2.0], [20, 4.0]]}, 0.0)(0) == 2.0


def test_none_is_the_plain_setting():
    schedule = make_schedule(None, 3e-4)
    assert schedule(0) == schedule(10**9) == 3e-4


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.6), ("cosine", 0.6)])
def test_linear_and_cosine_end_exactly(kind, middle):
    schedule = make_schedule({"type": kind, "start": 1.0, "end": 0.2, "timesteps": 100}, 0.0)
    assert schedule(0) == 1.0
    assert schedule(50) == pytest.approx(middle)
    assert schedule(100) == schedule(10**12) == 0.2


def test_cosine_is_slow_at_both_ends():
    schedule = make_schedule({"type": "cosine", "start": 1.0, "end": 0.0, "timesteps": 100}, 0.0)
    assert schedule(10) > 0.95
    assert schedule(90) < 0.05


def test_no_schedule_is_below_its_end():
    schedule = make_schedule({"type": "linear", "start": 0.01, "end": 0.0, "timesteps": 10}, 0.0)
    assert min(schedule(t) for t in range(30)) == 0.0


@pytest.mark.parametrize("data", [[], [[0, 1.0], [0, 2.0]], "linear", {"type": "cubic"}, [[0, float("nan")]]])
def test_what_is_no_schedule_is_refused_by_name(data):
    with pytest.raises(ConfigError, match="lr_schedule"):
        make_schedule(data, 1.0, "lr_schedule")
