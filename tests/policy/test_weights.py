"""Weights from outside: one error lists all that is wrong with them."""

import numpy as np
import pytest

from headwater.errors import CheckpointError
from headwater.policy.weights import fitting_weights

SHAPES = {"a": (2, 3), "b": (3,), "c": ()}


def good():
    return {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32), "c": np.float32(1)}


def test_all_fit():
    fitting, mismatches = fitting_weights(good(), SHAPES)
    assert list(fitting) == ["a", "b", "c"]
    assert mismatches == []


def test_every_mismatch_is_in_one_error():
    given = {"a": np.ones((3, 2)), "c": np.array("x"), "d": np.ones(1)}
    with pytest.raises(CheckpointError) as error:
        fitting_weights(given, SHAPES)
    for part in ("a: expected shape (2, 3), got (3, 2)", "b: missing", "c: expected numbers", "d: not part of"):
        assert part in str(error.value)


def test_not_strict_says_what_was_kept():
    given = {**good(), "b": np.ones(4), "d": np.ones(1)}
    fitting, mismatches = fitting_weights(given, SHAPES, strict=False)
    assert list(fitting) == ["a", "c"]
    assert [line.split(":")[0] for line in mismatches] == ["b", "d"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weights_are_refused(strict, value):
    given = good()
    given["a"][1, 2] = value
    with pytest.raises(CheckpointError, match="a: 1 of 6 values are NaN or infinite"):
        fitting_weights(given, SHAPES, strict)
