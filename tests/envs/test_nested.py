"""Rows to batches and back, over random spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.nested import as_row, make_gather, make_split, replace_rows, row_of, take_rows, tree_map
from headwater.envs.space_check import check_value
from headwater.errors import UnsupportedSpaceError
from tests.envs.random_spaces import random_spaces


def equal(a: Any, b: Any) -> bool:
    same: list[bool] = []
    tree_map(lambda x, y: same.append(bool(np.array_equal(x, y))), a, b)
    return all(same)


@settings(max_examples=80, deadline=None)
@given(space=random_spaces(), num_rows=st.integers(1, 4), seed=st.integers(0, 99))
def test_gather_and_split_are_inverse(space: spaces.Space, num_rows: int, seed: int) -> None:
    space.seed(seed)
    rows = [space.sample() for _ in range(num_rows)]
    batch = make_gather(space)(rows)
    check_value(space, batch, "obs", num_rows)
    split = list(make_split(space)(batch))
    assert len(split) == num_rows
    for index, (row, again) in enumerate(zip(rows, split, strict=True)):
        assert equal(row, again) and equal(row, row_of(batch, index)) and space.contains(again)
    if num_rows > 1:
        swapped = replace_rows(batch, [0], take_rows(batch, [num_rows - 1]))
        assert equal(row_of(swapped, 0), rows[-1]) and equal(row_of(batch, 0), rows[0])


def test_a_row_that_is_not_of_the_shape_is_no_broadcast() -> None:
    gather = make_gather(spaces.Box(-1, 1, (3,)))
    for wrong in (np.zeros(1, np.float32), np.float32(0), np.zeros((1, 3), np.float32), np.zeros(2, np.float32)):
        with pytest.raises(ValueError, match="."):
            gather([np.zeros(3, np.float32), wrong])


def test_casts_stay_within_their_kind() -> None:
    assert make_gather(spaces.Box(-1, 1, (2,)))([np.zeros(2), [0.5, 1]]).dtype == np.float32
    with pytest.raises(TypeError):
        make_gather(spaces.Box(0, 255, (2,), np.uint8))([np.array([0.5, 1.0])])
    with pytest.raises(TypeError):
        make_gather(spaces.Discrete(3))([1.5])
    assert make_gather(spaces.Discrete(3))([1, np.int32(2), np.array(0)]).tolist() == [1, 2, 0]


def test_an_action_owns_its_memory() -> None:
    batch = {"a": np.zeros((2, 3), np.float32)}
    for action in make_split(spaces.Dict({"a": spaces.Box(-1, 1, (3,))}))(batch):
        action["a"] += 1
    assert not batch["a"].any()


def test_lists_become_rows() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 255, (2,), np.uint8), "b": spaces.Tuple([spaces.Discrete(4)])})
    row = as_row(space, {"a": [1, 2], "b": (3,)})
    assert row["a"].dtype == np.uint8 and row["b"][0].dtype == np.int64


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_what_does_not_stack_is_refused_by_its_path(space: spaces.Space) -> None:
    nested = spaces.Dict({"ok": spaces.Discrete(2), "deep": spaces.Tuple([spaces.Discrete(2), space])})
    with pytest.raises(UnsupportedSpaceError, match=r"obs\['deep'\]\[1\] is " + type(space).__name__):
        make_gather(nested)
    with pytest.raises(UnsupportedSpaceError):
        make_split(nested)
