from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.step_checker import StepChecker, is_finite, scalar_mismatch

OK = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Box(-1, 1, (1,)), [[0.0], [1.0]], [[0.0], [np.nan]]),
        (spaces.Discrete(3, start=-1), [-1, 1], [0, -2]),
        (spaces.Discrete(3, start=-1), [-1, 1], [0, 2]),
        (spaces.MultiDiscrete([2, 3], start=[5, 0]), [[5, 0], [6, 2]], [[5, 0], [4, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[5, 0]), [[5, 0], [6, 2]], [[5, 0], [5, 3]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, -1]]),
    ],
)
def test_the_cheap_check_sees_what_must_never_pass(space: spaces.Space, good: Any, bad: Any) -> None:
    checker = StepChecker(space, 2)
    good, bad = np.array(good, space.dtype), np.array(bad, space.dtype)
    assert checker.passes(good, OK) and checker.mismatch(good, OK) is None
    assert not checker.passes(bad, OK)
    mismatch = checker.mismatch(bad, OK)
    assert mismatch is not None and mismatch.row == 1
    nested = StepChecker(spaces.Dict({"a": spaces.Tuple([space])}), 2)
    assert nested.passes({"a": (good,)}, OK) and not nested.passes({"a": (bad,)}, OK)


def test_rewards() -> None:
    checker = StepChecker(spaces.Discrete(2), 2)
    bad = np.array([0, -np.inf], np.float32)
    assert not checker.passes(np.zeros(2, int), bad)
    mismatch = checker.mismatch(np.zeros(2, int), bad)
    assert mismatch is not None and mismatch.row == 1 and "reward is -inf" in str(mismatch)


def test_large_finite_numbers_are_finite() -> None:
    assert is_finite(np.full(100, 3e38, np.float32))
    assert is_finite(np.zeros((2, 0), np.float32))
    assert not is_finite(np.array([np.inf, -np.inf]))


def test_the_first_and_every_hundredth_step_is_checked_whole() -> None:
    checker = StepChecker(spaces.Discrete(2), 2)
    assert [n for n in range(1, 302) if checker.checks_all(n)] == [1, 100, 200, 300]
    assert all(StepChecker(spaces.Discrete(2), 2, every_step=True).checks_all(n) for n in range(1, 20))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((None, False, False, {}), "reward is the NoneType None"),
        ((np.zeros(2), False, False, {}), "reward is the ndarray"),
        (([[1], [2, 3]], False, False, {}), "reward is the list"),
        ((1.0, "no", False, {}), "terminated is the str 'no'"),
        ((1.0, False, None, {}), "truncated is the NoneType None"),
        ((1.0, False, False, []), r"info is the list \[\], expected a dict"),
    ],
)
def test_what_comes_besides_the_observation(values: Any, says: str) -> None:
    mismatch = scalar_mismatch(*values)
    assert mismatch is not None and re.search(says, str(mismatch))


def test_numbers_of_all_sorts_are_rewards() -> None:
    for reward in (1, 1.5, np.float64(2), np.array(3.0), np.array([4.0]), True):
        assert scalar_mismatch(reward, np.bool_(True), 0, {}) is None
