"""The messages name the key path, what was expected and what came."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.space_check import Mismatch, check_value
from tests.envs.random_spaces import random_spaces

NESTED = spaces.Dict({"cam": spaces.Dict({"rgb": spaces.Box(0, 255, (2, 2, 3), np.uint8)}), "go": spaces.Discrete(3)})


def cam(rgb: Any, go: Any = 0) -> dict[str, Any]:
    return {"cam": {"rgb": rgb}, "go": go}


@pytest.mark.parametrize(
    ("space", "value", "says"),
    [
        (spaces.Box(0, 1, (3,)), np.zeros(2, np.float32), "obs has the shape (2,), expected (3,) of Box(3,)"),
        (spaces.Box(0, 1, (2,)), np.array([0.5, 1.5]), "obs[1] is 1.5, outside the bounds [0.0, 1.0]"),
        (spaces.Box(0, 1, ()), np.array(7.0), "obs is 7.0, outside the bounds [0.0, 1.0]"),
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([0, np.nan]), "obs[1] is nan, expected a finite number"),
        (spaces.Box(-np.inf, np.inf, (2, 2)), np.array([[0, 0], [np.inf, 0]]), "obs[1, 0] is inf"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2), "obs has the dtype float64, which does not cast to uint8"),
        (spaces.Box(0, 255, (2,), np.uint8), [3, 256], "obs[1] is 256, outside the bounds [0, 255]"),
        (spaces.Box(0, 1, (2,)), [[1], [2, 3]], "no regular shape"),
        (spaces.Box(0, 1, (2,)), "no", "obs has the shape ()"),
        (spaces.Box(0, 1, ()), "no", "obs has the dtype <U2"),
        (spaces.Discrete(3), 3, "obs is 3, expected an integer from 0 to 2"),
        (spaces.Discrete(3, start=-1), -2, "obs is -2, expected an integer from -1 to 1"),
        (spaces.Discrete(3), 1.0, "obs has the dtype float64, which does not cast to int64 of Discrete(3)"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[0, 0], [4, 0]]), "obs[1, 0] is 4, expected an integer"),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), "obs[1] is 2, expected 0 or 1"),
        (NESTED, cam(np.zeros((2, 2), np.uint8)), "obs['cam']['rgb'] has the shape (2, 2), expected (2, 2, 3)"),
        (NESTED, cam(np.zeros((2, 2, 3), np.uint8), 5), "obs['go'] is 5"),
        (NESTED, {"cam": {}, "go": 0}, "obs['cam'] has not the keys of its space: missing ['rgb'], unexpected []"),
        (NESTED, np.zeros(3), "obs is a ndarray, expected a dict with the keys ['cam', 'go']"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (0,), "obs is a tuple of 1, expected a tuple of 2"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (0, 2), "obs[1] is 2"),
        (spaces.Text(3), 5, "obs is int 5, which is not in Text"),
    ],
)
def test_mismatches(space: spaces.Space, value: Any, says: str) -> None:
    with pytest.raises(Mismatch, match=re.escape(says)) as caught:
        check_value(space, value)
    assert caught.value.row is None


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-1, 1, (2,)), np.array([0.1, 0.2])),  # float64 of a float32 space
        (spaces.Box(-1, 1, (2,)), np.array([1, 0])),
        (spaces.Box(-1, 1, (2,)), [0.5, 1]),
        (spaces.Box(0.0, 0.1, (1,)), np.array([np.float32(0.1) * np.float32(1.0000001)])),  # rounding at the bound
        (spaces.Box(0, 255, (2,), np.uint8), [0, 255]),
        (spaces.Discrete(3), np.array(2)),
        (spaces.Discrete(3), True),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,)), np.array([1e38], np.float32)),
    ],
)
def test_what_is_welcome(space: spaces.Space, value: Any) -> None:
    check_value(space, value)


def test_a_batch_names_the_row() -> None:
    batch = np.zeros((3, 2), np.float32)
    batch[2, 1] = -4
    with pytest.raises(Mismatch, match=re.escape("obs[1] is -4.0")) as caught:
        check_value(spaces.Box(-1, 1, (2,)), batch, "obs", 3)
    assert caught.value.row == 2
    with pytest.raises(Mismatch) as caught:
        check_value(NESTED, cam(np.zeros((2, 2, 2, 3), np.uint8), np.array([0, 9])), "obs", 2)
    assert caught.value.row == 1 and "obs['go'] is 9" in str(caught.value)


@settings(max_examples=80, deadline=None)
@given(space=random_spaces(), seed=st.integers(0, 99))
def test_samples_are_in_their_space(space: spaces.Space, seed: int) -> None:
    space.seed(seed)
    check_value(space, space.sample())
