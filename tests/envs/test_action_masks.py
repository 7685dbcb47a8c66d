"""Masks in all their forms, as one flat row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.action_masks import MaskMismatch, choices_of, flat_mask, mask_leaves, mask_sizes, num_choices
from tests.envs.random_spaces import random_spaces

MIXED = spaces.Dict(
    {"z": spaces.MultiDiscrete([2, 3]), "force": spaces.Box(-1, 1, (2,)), "a": spaces.Discrete(3, start=5)}
)


def test_choices_run_by_key_and_place() -> None:
    assert [choice.path for choice in choices_of(MIXED)] == ["action['a']", "action['z'][0]", "action['z'][1]"]
    assert num_choices(MIXED) == 8 and num_choices(spaces.Box(-1, 1)) == 0
    assert [choice.path for choice in choices_of(spaces.MultiDiscrete([[2, 3]]))] == ["action[0, 0]", "action[0, 1]"]
    assert num_choices(spaces.MultiBinary((2, 2))) == 8


@pytest.mark.parametrize(
    ("space", "mask", "row"),
    [
        (spaces.Discrete(3, start=7), [0, 1, 1], [0, 1, 1]),
        (spaces.Discrete(3), np.array([0.0, 0.5, 2.0]), [0, 1, 1]),
        (spaces.Discrete(2), np.array([True, False]), [1, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), ([1, 0], [0, 1, 1]), [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), ([1, 0], None), [1, 0, 1, 1, 1]),
        (spaces.MultiBinary(2), [1, 0, 1, 1], [1, 0, 1, 1]),
        (MIXED, [0, 0, 1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0, 1, 0]),
        (MIXED, {"z": [1, 0, 0, 1, 0], "a": [0, 0, 1]}, [0, 0, 1, 1, 0, 0, 1, 0]),
        (MIXED, {"z": ([1, 0], [0, 1, 0])}, [1, 1, 1, 1, 0, 0, 1, 0]),
        (MIXED, {"z": [1, 0, 0, 1, 0], "a": None, "force": None}, [1, 1, 1, 1, 0, 0, 1, 0]),
        (spaces.Tuple([spaces.Box(-1, 1), spaces.Discrete(2)]), ([0, 1],), [0, 1]),
        (spaces.Tuple([spaces.Box(-1, 1), spaces.Discrete(2)]), (None, [0, 1]), [0, 1]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Dict({"b": spaces.Discrete(2)})]), ([0, 1], {}), [0, 1, 1, 1]),
    ],
)
def test_forms(space: spaces.Space, mask: Any, row: list[int]) -> None:
    flat = flat_mask(space, mask)
    assert flat.tolist() == row and flat.dtype == np.int8


@pytest.mark.parametrize(
    ("space", "mask", "message"),
    [
        (spaces.Discrete(3), [1, 1], "action has 3 choices, but its mask has 2 entries"),
        (spaces.MultiDiscrete([2, 3]), ([1, 0], [0, 1]), r"action\[1\] has 3 choices, but its mask has 2 entries"),
        (spaces.MultiDiscrete([2, 3]), ([1, 0],), "its mask has 1 parts"),
        (MIXED, {"q": [1]}, r"its mask has the keys \['q'\]"),
        (MIXED, ([1, 1, 1],), "its mask has 1 parts"),
        (MIXED, {"force": [1, 1]}, r"action\['force'\] has 0 choices, but its mask has 2 entries"),
        (spaces.Discrete(3), {"a": [1, 1, 1]}, "its mask has the keys"),
        (spaces.Box(-1, 1, (2,)), [1, 1], "has 0 choices"),
    ],
)
def test_other_forms_are_refused_by_name(space: spaces.Space, mask: Any, message: str) -> None:
    with pytest.raises(MaskMismatch, match=message):
        flat_mask(space, mask)


@settings(max_examples=100, deadline=None)
@given(space=random_spaces(), seed=st.integers(0, 99))
def test_flat_and_nested_are_the_same(space: spaces.Space, seed: int) -> None:
    width = num_choices(space)
    row = np.random.default_rng(seed).integers(0, 2, width)
    if width:
        assert flat_mask(space, row).tolist() == row.tolist()
    if isinstance(space, spaces.Dict | spaces.Tuple):
        assert flat_mask(space, nested(space, list(row))).tolist() == row.tolist()


def nested(space: spaces.Space, row: list[int]) -> Any:
    """The mask of a space that takes its entries from the front of `row`."""
    if isinstance(space, spaces.Dict):
        return {key: nested(space.spaces[key], row) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return tuple(nested(child, row) for child in space.spaces)
    taken = [row.pop(0) for _ in range(num_choices(space))]
    return taken or None


def test_spaces_of_masks() -> None:
    space = spaces.Dict(
        {"a": spaces.MultiBinary(3), "z": spaces.Tuple([spaces.MultiDiscrete([2, 2]), spaces.Box(0, 1, (3,))])}
    )
    sizes = mask_sizes(space)
    assert sizes == {"a": 3, "z": (2, 3)}
    assert [leaf.keys for leaf in mask_leaves(MIXED, sizes)] == [("a",), ("z", 0), ("z", 1)]
    for wrong in (spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2], start=[1])):
        with pytest.raises(MaskMismatch, match="holds no masks"):
            mask_sizes(wrong)
