"""How a train batch is split into minibatches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.policy.sgd import minibatch_bounds, minibatches


@given(rows=st.integers(1, 5000), size=st.integers(0, 6000))
def test_parts_are_near_equal_and_cover_all_rows(rows, size):
    bounds = minibatch_bounds(rows, size)
    sizes = [stop - start for start, stop in bounds]
    assert sum(sizes) == rows
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1
    assert [start for start, _ in bounds] == [0, *np.cumsum(sizes)[:-1]]


@given(size=st.integers(1, 500), rows=st.integers(1, 5000))
def test_parts_are_near_the_wanted_size(rows, size):
    bounds = minibatch_bounds(rows, size)
    assert len(bounds) == min(rows, max(1, round(rows / size)))


def walk(rows, epochs, size, seed=0):
    columns = {"x": np.arange(rows), "y": 2 * np.arange(rows)}
    gathered = []

    def gather(name, order):
        gathered.append(name)
        return columns[name] if order is None else columns[name][order]

    rng = np.random.default_rng(seed)
    return list(minibatches(frozenset(columns), gather, rows, epochs, size, rng)), gathered


def test_each_epoch_has_every_row_once_in_its_own_order():
    parts, _ = walk(100, 3, 25)
    assert [last for last, _ in parts] == [False] * 8 + [True] * 4
    epochs = [np.concatenate([part["x"] for _, part in parts[i : i + 4]]) for i in (0, 4, 8)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100))
    assert not np.array_equal(epochs[0], epochs[1])


def test_columns_stay_together():
    for _, part in walk(50, 2, 10)[0]:
        assert np.array_equal(part["y"], 2 * part["x"])


def test_a_column_is_gathered_once_per_epoch_and_only_when_read():
    parts, gathered = walk(100, 2, 10)
    for _, part in parts:
        part["x"], part["x"]
    assert gathered == ["x", "x"]


def test_one_part_is_not_shuffled():
    ((last, part),), _ = walk(10, 1, 0)
    assert last
    assert np.array_equal(part["x"], np.arange(10))
    assert part.num_rows == 10


def test_the_generator_decides_the_order():
    first, second, other = (np.concatenate([p["x"] for _, p in walk(64, 2, 16, s)[0]]) for s in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_optional_columns():
    (_, part), *_ = walk(10, 1, 5)[0]
    assert "mask" not in part
    assert part.get("mask") is None
    assert "y" in part
    assert part.get("y") is not None
    with pytest.raises(KeyError, match="no column 'mask'"):
        part["mask"]
