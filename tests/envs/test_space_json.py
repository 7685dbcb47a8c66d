import json

import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.space_json import space_from_json, space_to_json
from headwater.errors import UnsupportedSpaceError

SPACES = [
    spaces.Box(-1.0, 1.0, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-np.inf, 0.1, -0.0], np.float32), np.array([1.5, np.inf, 3e38], np.float32)),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(np.array([[0, 1], [2, 3]], np.int16), np.array([[9, 8], [7, 6]], np.int16), dtype=np.int16),
    spaces.Box(-(2**63), 2**63 - 1, (), np.int64),
    spaces.Box(0.0, 1.0, (), np.float32),
    spaces.Box(0.0, 1.0, (0,), np.float32),
    spaces.Box(-1.0, 1.0, (2,), np.float16),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, -2]])),
    spaces.MultiDiscrete([2, 3], dtype=np.int32),
    spaces.MultiBinary(5),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (1,))}),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Dict(x=spaces.MultiBinary(2)))]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Dict(k=spaces.Discrete(3))])]),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_exactly(space):
    got = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert got == space and got.dtype == space.dtype and got.shape == space.shape
    if isinstance(space, spaces.Box):
        assert got.low.tobytes() == space.low.tobytes() and got.high.tobytes() == space.high.tobytes()
    if isinstance(space, spaces.Dict):
        assert list(got.spaces) == list(space.spaces)


def test_the_common_case_is_short():
    assert len(json.dumps(space_to_json(SPACES[3]))) < 120


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(t=spaces.Text(1)), 3]
)
def test_other_spaces_are_refused(space):
    with pytest.raises(UnsupportedSpaceError, match="cannot be written"):
        space_to_json(space)


@pytest.mark.parametrize(
    "description",
    [
        None,
        [],
        {},
        {"type": "os:system"},
        {"type": ["Box"]},
        {"type": "Box"},
        {"type": "Box", "shape": [2**40], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [-1], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "O", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": "abc", "high": 1},
        {"type": "Discrete", "n": -2, "start": 0, "dtype": "int64"},
        {"type": "Dict", "spaces": 3},
        {"type": "Tuple", "spaces": [{"type": "Nothing"}]},
    ],
)
def test_a_description_of_no_space_is_refused(description):
    with pytest.raises(UnsupportedSpaceError):
        space_from_json(description)
