"""Schedules in a config: which forms are taken, and how their numbers come out."""

from __future__ import annotations

import pytest

from headwater.config import TrainerConfig
from headwater.errors import ConfigError
from headwater.settings.schedule_data import check_schedule


def test_forms():
    assert check_schedule(None) is None
    assert check_schedule([(0, "1e-3"), ("1e6", 0)]) == [[0, 1e-3], [1_000_000, 0.0]]
    assert check_schedule({"type": "piecewise", "points": [[0, 1]]}) == {"type": "piecewise", "points": [[0, 1.0]]}
    linear = {"type": "linear", "start": "3e-4", "end": 0, "timesteps": 1e5}
    assert check_schedule(linear) == {"type": "linear", "start": 3e-4, "end": 0.0, "timesteps": 100_000}
    assert check_schedule({**linear, "type": "cosine"})["type"] == "cosine"


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (0.1, "must be [[timestep, value], ...]"),
        (lambda t: t, "must be [[timestep, value], ...]"),
        ([], "points must be"),
        ([1, 2], "pairs"),
        ([[0, 1, 2]], "pairs"),
        ([[10, 1], [5, 0]], "increase"),
        ([[10, 1], [10, 0]], "increase"),
        ([[-1, 1]], "increase"),
        ([[0, -1]], "not negative"),
        ([[0, float("inf")]], "finite"),
        ([[0.5, 1]], "a whole number"),
        ({"type": "step"}, "'piecewise', 'linear' or 'cosine'"),
        ({"type": "linear", "start": 1}, "has the keys"),
        ({"type": "linear", "start": 1, "end": 0, "timesteps": 0}, "at least 1"),
        ({"type": "cosine", "start": 1, "end": 0, "timesteps": 5, "power": 2}, "has the keys"),
    ],
)
def test_refusals(schedule, words):
    with pytest.raises(ConfigError) as caught:
        TrainerConfig(lr_schedule=schedule)
    assert str(caught.value).startswith("TrainerConfig: lr_schedule: ") and words in str(caught.value)
