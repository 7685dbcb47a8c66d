"""Encoders: known codes, and over random spaces that a code has its space and says what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.nested import make_gather, tree_map
from headwater.errors import UnsupportedSpaceError
from headwater.sampling.preprocessors import get_encoder
from tests.envs.random_spaces import random_spaces


def encode(space: spaces.Space, *rows: Any) -> np.ndarray:
    return get_encoder(space).encode(make_gather(space)(rows))


def test_one_hots_of_a_nested_multi_discrete() -> None:
    space = spaces.Tuple([spaces.MultiDiscrete([2, 3, 4])])
    code = encode(space, (np.array([1, 2, 0]),), (np.array([0, 1, 3]),))
    assert code.tolist() == [[0, 1, 0, 0, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0, 0, 1]]


def test_one_hots_of_a_two_dimensional_multi_discrete() -> None:
    space = spaces.MultiDiscrete([[2, 1], [3, 2]], start=[[0, 5], [-1, 0]])
    assert encode(space, np.array([[1, 5], [1, 0]])).tolist() == [[0, 1, 1, 0, 0, 1, 1, 0]]


def test_one_hot_less_the_start() -> None:
    assert encode(spaces.Discrete(3, start=-1), -1, 1).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_the_order_of_a_dict_is_that_of_its_keys() -> None:
    parts = {"b": spaces.Discrete(2), "a": spaces.Box(-1, 1, (1,)), "c": spaces.MultiBinary(2)}
    row = {"a": np.array([0.5], np.float32), "b": 1, "c": np.array([1, 0], np.int8)}
    codes = []
    for keys in ("abc", "cba", "bca"):
        for sort in (True, False):
            space = (
                spaces.Dict({key: parts[key] for key in keys}, sort_keys=sort)
                if _SORT_KEYS
                else spaces.Dict({key: parts[key] for key in keys})
            )
            codes.append(encode(space, row).tolist())
            assert list(get_encoder(space).decode(np.array(codes[-1][0]))) == list(space.spaces)
    assert codes == [[[0.5, 0, 1, 1, 0]]] * len(codes)


_SORT_KEYS = "sort_keys" in spaces.Dict.__init__.__code__.co_varnames


@pytest.mark.parametrize("shape", [(84, 84, 4), (7, 7, 3), (5, 5)])
def test_images_stay_bytes(shape: tuple[int, ...]) -> None:
    encoder = get_encoder(spaces.Box(0, 255, shape, np.uint8))
    batch = np.ones((2, *shape), np.uint8)
    assert encoder.is_identity and encoder.encode(batch) is batch
    assert encoder.space.shape == shape and encoder.space.dtype == np.uint8


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_channels_come_last(dtype: Any) -> None:
    encoder = get_encoder(spaces.Box(0, 255, (4, 10, 12), dtype))
    batch = np.arange(2 * 4 * 10 * 12).reshape(2, 4, 10, 12).astype(dtype)
    code = encoder.encode(batch)
    assert encoder.space.shape == (10, 12, 4) and code.shape == (2, 10, 12, 4)
    assert encoder.space.dtype == code.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    assert code[1, 3, 7, 2] == batch[1, 2, 3, 7]
    assert np.array_equal(encoder.decode(code[1]), batch[1])
    assert dtype == np.float64 or np.shares_memory(code, batch)


@pytest.mark.parametrize(
    ("space", "encoded_shape", "is_identity"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), (3,), True),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), False),
        (spaces.Box(-1, 1, (8, 8, 3), np.float32), (8, 8, 3), True),
        (spaces.Box(-1, 1, (8, 8, 3), np.float64), (8, 8, 3), False),
        (spaces.Box(-1, 1, (4, 5), np.float32), (20,), False),
        (spaces.Box(-1, 1, (2, 3, 4, 5), np.float32), (120,), False),
        (spaces.Box(-1, 1, (), np.float32), (1,), False),
        (spaces.Box(-1, 1, (0,), np.float32), (0,), True),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), False),
        (spaces.Box(-9, 9, (3,), np.int64), (3,), False),
        (spaces.MultiBinary((2, 3)), (6,), False),
    ],
)
def test_shapes(space: spaces.Space, encoded_shape: tuple[int, ...], is_identity: bool) -> None:
    encoder = get_encoder(space)
    assert encoder.space.shape == encoded_shape and encoder.is_identity is is_identity
    assert encoder.space.dtype == np.float32
    code = encode(space, space.sample(), space.sample())
    assert code.shape == (2, *encoded_shape) and code.dtype == np.float32


def test_bytes_that_are_no_image_are_scaled_where_they_use_their_range() -> None:
    assert encode(spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255], np.uint8)).tolist() == [[0, 1]]
    assert encode(spaces.Box(0, 3, (2,), np.uint8), np.array([0, 3], np.uint8)).tolist() == [[0, 3]]
    nested = spaces.Dict({"image": spaces.Box(0, 255, (1, 2, 1), np.uint8), "x": spaces.Box(-1, 1, (1,))})
    code = encode(nested, {"image": np.array([[[0], [255]]], np.uint8), "x": np.array([0.5])})
    assert code.tolist() == [[0, 1, 0.5]]


def test_the_bounds_of_the_parts_are_kept() -> None:
    space = spaces.Tuple([spaces.Box(np.float32([-1, -np.inf]), np.float32([3, 5])), spaces.Discrete(2)])
    encoded = get_encoder(space).space
    assert encoded.low.tolist() == [-1, -np.inf, 0, 0] and encoded.high.tolist() == [3, 5, 1, 1]


@settings(max_examples=150, deadline=None)
@given(space=random_spaces(), num_rows=st.integers(1, 3), seed=st.integers(0, 99))
def test_codes_lie_in_their_space_and_say_what_they_encode(space: spaces.Space, num_rows: int, seed: int) -> None:
    space.seed(seed)
    rows = [space.sample() for _ in range(num_rows)]
    batch = make_gather(space)(rows)
    before = tree_map(np.copy, batch)
    encoder = get_encoder(space)
    code = encoder.encode(batch)
    assert code.shape == (num_rows, *encoder.space.shape) and code.dtype == encoder.space.dtype
    tree_map(np.testing.assert_array_equal, batch, before)
    for row, one in zip(rows, code, strict=True):
        assert one.size == 0 or np.all((one >= encoder.space.low - 1e-3) & (one <= encoder.space.high + 1e-3))
        decoded = encoder.decode(one)
        tree_map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), _as_dicts(decoded), _as_dicts(row)
        )
        assert np.array_equal(encoder.encode(make_gather(space)([row]))[0], one)  # one alone as among others


def _as_dicts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_dicts(part) for key, part in value.items()}
    return tuple(map(_as_dicts, value)) if isinstance(value, tuple) else np.asarray(value)


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_unsupported_spaces_are_named_by_their_path(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpaceError, match=f"at obs is {type(space).__name__}"):
        get_encoder(space)
    with pytest.raises(UnsupportedSpaceError, match=r"at obs\['deep'\]\[1\] is " + type(space).__name__):
        get_encoder(spaces.Dict({"ok": spaces.Discrete(2), "deep": spaces.Tuple([spaces.Discrete(2), space])}))
    with pytest.raises(UnsupportedSpaceError, match="no parts"):
        get_encoder(spaces.Dict({}))


def test_a_new_kind_of_space_can_be_registered() -> None:
    class Twice(spaces.Box):
        pass

    encoder = get_encoder(spaces.Discrete(2))
    get_encoder.register(Twice, lambda space, path="obs": encoder)
    assert get_encoder(Twice(-1, 1, (1,))) is encoder
