import json
import math

import numpy as np
import pytest

from headwater.telemetry.flat_result import flatten_result, result_to_json, to_strict
from tests.telemetry.sample_results import make_result


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_row_is_strict_json_without_the_config():
    row = strict(result_to_json(make_result(3, 20.0)))
    assert (
        row["training_iteration"] == 3 and "config" not in row and row["hist_stats"]["episode_reward"] == [20.0] * 100
    )
    assert strict(result_to_json(make_result(1)))["episode_reward_mean"] is None


@pytest.mark.parametrize(
    "value, expected",
    [
        (np.float32(0.5), 0.5),
        (np.float32("nan"), None),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, np.nan, -np.inf]), [1.0, None, None]),
        (np.array(2.5), 2.5),
        (math.inf, None),
        ((1, 2), [1, 2]),
        ({1, 2}, [1, 2]),
        ({3: {(0, "a"): math.nan}}, {"3": {"(0, 'a')": None}}),
        pytest.param(json.loads, str(json.loads), id="function"),  # its text has an address: no id for two processes
        ("line\nbreak\ud800", "line\nbreak\ud800"),
    ],
)
def test_any_value_finds_a_word(value, expected):
    for result in ({"x": value}, {"x": value, "y": math.nan}):
        text = result_to_json(result)
        assert "\n" not in text and text.isascii()
        got = strict(text)["x"]
        assert got == expected or (isinstance(value, set) and got == str(value))


def test_what_contains_itself_is_cut_off():
    loop: dict = {}
    loop["again"] = loop
    assert "..." in result_to_json({"x": loop})
    assert to_strict(loop)


def test_numbers_are_named_by_their_path():
    flat = flatten_result(
        make_result(2, 5.0, evaluation={"episode_reward_mean": 7.0, "hist_stats": {"a": 1}}, x=np.float32(1))
    )
    assert flat["info/learner/default_policy/kl"] == 0.0071 and flat["evaluation/episode_reward_mean"] == 7.0
    assert flat["x"] == 1.0 and flat["hostname"] == "host"
    assert not [key for key in flat if "hist_stats" in key or "config" in key]
