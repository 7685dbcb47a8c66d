import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headwater.storage.state_tree import TENSOR_DTYPES, flatten_state, unflatten_state

ARRAYS = hnp.arrays(st.sampled_from(sorted(TENSOR_DTYPES.values(), key=str)), hnp.array_shapes(min_dims=0, min_side=0))
NUMBERS = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text()
KEYS = st.text() | st.integers() | st.sampled_from(["$array", "$float", "$tuple", "a/b", "a", "b", "__metadata__"])
SCALARS = st.sampled_from(
    [np.float32(0.1), np.float64(-0.0), np.int64(-(2**63)), np.uint64(2**64 - 1), np.bool_(True), np.float16(np.inf)]
)
TREES = st.recursive(
    NUMBERS | SCALARS | ARRAYS,
    lambda parts: (
        st.lists(parts, max_size=4) | st.lists(parts, max_size=3).map(tuple) | st.dictionaries(KEYS, parts, max_size=4)
    ),
    max_leaves=20,
)


def through_json(state):
    document, arrays = flatten_state(state)
    return unflatten_state(json.loads(json.dumps(document, allow_nan=False)), arrays)


def assert_identical(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_identical(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_identical(one, other)
    elif isinstance(expected, np.ndarray | np.generic):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        assert got.tobytes() == expected.tobytes()
    elif isinstance(expected, float):
        assert struct.pack(">d", got) == struct.pack(">d", expected)
    else:
        assert got == expected


@settings(deadline=None, max_examples=200)
@given(TREES)
def test_any_tree_comes_back_bit_for_bit(tree):
    assert_identical(through_json(tree), tree)


def test_floats_keep_their_bits():
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    for value in (0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, -math.nan, odd_nan):
        assert struct.pack(">d", through_json(value)) == struct.pack(">d", value)


@pytest.mark.parametrize("bit_generator", [np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64])
def test_random_generators_continue(bit_generator):
    rng = np.random.Generator(bit_generator(3))
    rng.integers(0, 10, 3, dtype=np.int32)
    saved = through_json(rng.bit_generator.state)
    other = np.random.Generator(bit_generator(4))
    other.bit_generator.state = saved
    assert np.array_equal(rng.normal(size=50), other.normal(size=50))
    assert rng.integers(0, 10, 3, dtype=np.int32).tolist() == other.integers(0, 10, 3, dtype=np.int32).tolist()


def test_names_of_arrays_are_their_paths_and_never_collide():
    weights = {"policy/dense_0/kernel": np.zeros(1), "policy": {"dense_0": {"kernel": np.ones(1)}}}
    _, arrays = flatten_state({"policies": {"default_policy": {"weights": weights}}, "__metadata__": np.ones(1)})
    assert "policies/default_policy/weights/policy/dense_0/kernel" in arrays
    assert len(arrays) == 3 and "__metadata__" not in arrays
    assert_identical(through_json(weights), weights)


def test_other_layouts_and_byte_orders_keep_their_values():
    array = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    got = through_json([array, array[:, ::2]])
    assert np.array_equal(got[0], array) and np.array_equal(got[1], array[:, ::2])


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"bytes", np.array(["a"]), np.array([None]), np.complex64(1), np.datetime64("2020"), print],
)
def test_what_is_no_state_is_named_by_its_path(value):
    with pytest.raises(TypeError, match="worker/filters/1 "):
        flatten_state({"worker": {"filters": [0, value]}})


def test_a_tree_that_contains_itself_is_refused():
    tree: list = []
    tree.append(tree)
    with pytest.raises(RecursionError):
        flatten_state(tree)


@pytest.mark.parametrize(
    "document",
    [
        {"$array": "absent"},
        {"$array": ["x"]},
        {"$float": "os.system"},
        {"$float": "0x12"},
        {"$scalar": ["object", 1]},
        {"$scalar": ["int8", 1000]},
        {"$scalar": ["float32", "x"]},
        {"$items": [[1]]},
        {"$items": [[[], 1]]},
        {"$class": "os:system"},
    ],
)
def test_a_document_that_we_never_write_is_refused(document):
    with pytest.raises(ValueError):
        unflatten_state(document, {})
