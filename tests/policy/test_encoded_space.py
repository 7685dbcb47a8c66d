"""Rows of several parts: how they are joined, compared and written down."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.space_json import space_from_json, space_to_json
from headwater.errors import UnsupportedSpaceError
from headwater.policy.encoded_space import EncodedSpace, ObsPart, joined, mask_of, num_features, one_part, parts_of

PARTS = st.one_of(
    st.integers(1, 4).map(lambda size: spaces.Box(-1, np.inf, (size,))),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)).map(
        lambda shape: one_part("image", shape, 0, 1)
    ),
    st.sampled_from(["prev_action", "prev_reward", "action_mask"]).map(lambda kind: one_part(kind, (2,))),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(PARTS, min_size=1, max_size=6))
def test_joined_rows(rows: list[spaces.Box]) -> None:
    space = joined(rows)
    parts = parts_of(space)
    assert [part.start for part in parts] == np.cumsum([0, *(part.size for part in parts[:-1])]).tolist()
    assert space.shape == (sum(row.shape[0] for row in rows),)
    np.testing.assert_array_equal(space.low, np.concatenate([row.low for row in rows]))
    kinds = [part.kind for part in parts]
    assert ("vector", "vector") not in zip(kinds, kinds[1:], strict=False)
    assert isinstance(space, EncodedSpace) == (kinds != ["vector"])
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space and type(again) is type(space)


def test_what_is_asked_of_rows() -> None:
    space = joined([spaces.Box(-1, 1, (3,)), one_part("prev_reward", (1,)), one_part("action_mask", (2,), 0, 1)])
    mask = mask_of(space)
    assert mask is not None and mask.columns == slice(4, 6) and num_features(space) == 3
    plain = spaces.Box(-1, 1, (3,))
    assert mask_of(plain) is None and num_features(plain) is None
    assert parts_of(spaces.Box(0, 255, (4, 5), np.uint8)) == (ObsPart("image", 0, (4, 5, 1)),)


def test_parts_decide_what_is_equal() -> None:
    boxes = [one_part("image", (2, 1, 1)), one_part("image", (1, 2, 1)), one_part("vector", (2,))]
    assert [[a == b for a in boxes] for b in boxes] == np.eye(3, dtype=bool).tolist()
    assert one_part("vector", (2,)) != spaces.Box(-np.inf, np.inf, (2,))


def test_parts_must_cover_the_row() -> None:
    with pytest.raises(ValueError, match="do not cover a row of 3 columns"):
        EncodedSpace(np.zeros(3), np.ones(3), [ObsPart("vector", 0, (2,))])


@pytest.mark.parametrize(
    "part",
    [
        {"kind": "sound", "space": space_to_json(spaces.Box(0, 1, (2,)))},
        {"kind": "vector", "space": space_to_json(spaces.Discrete(2))},
        {"kind": "vector"},
        {},
    ],
)
def test_damaged_descriptions_are_refused(part: Any) -> None:
    with pytest.raises(UnsupportedSpaceError, match="does not make one"):
        space_from_json({"type": "EncodedSpace", "parts": [part]})
