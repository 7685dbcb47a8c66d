"""How a train batch is split into minibatches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy.sgd import (
    FlatRows,
    epoch_orders,
    learnable,
    minibatch_bounds,
    minibatches,
    numeric_columns,
    outputs_and_rows,
)


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
        return columns[name][order]

    bounds = minibatch_bounds(rows, size)
    orders = epoch_orders(rows, epochs, len(bounds), np.random.default_rng(seed))
    return list(minibatches(frozenset(columns), gather, orders, bounds)), gathered


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


def test_minibatches_of_sequences_are_counted_by_env_steps():
    assert len(minibatch_bounds(32, 256, num_steps=1024)) == 4
    assert minibatch_bounds(3, 1, num_steps=100) == [(0, 1), (1, 2), (2, 3)]  # a sequence is never split
    assert minibatch_bounds(10, 0, num_steps=100) == [(0, 10)]


def test_what_a_loss_can_read():
    batch = {"x": [1.5], "flag": np.array([True]), "infos": np.array([{}], object), "name": np.array(["a"]), "one": 3}
    assert set(numeric_columns(batch)) == {"x", "flag"}


@pytest.mark.parametrize(("given", "wanted"), [
    (np.float64, np.float32), (np.float16, np.float32), (np.int32, np.int64), (np.uint16, np.int64),
    (np.uint8, np.uint8), (np.bool_, np.bool_),
])  # fmt: skip
def test_columns_in_the_types_that_frameworks_take(given, wanted):
    column = learnable(np.ones((4, 6), given)[:, ::2])
    assert column.dtype == wanted
    assert column.flags.c_contiguous


def test_rows_of_steps_pass_as_they_are():
    batch = {"obs": np.ones((4, 2)), "actions": np.arange(4)}
    dist_inputs, values, rows = outputs_and_rows(NUMPY_OPS, lambda obs: (obs * 2, obs[:, 0], None), batch)
    assert rows is batch
    assert dist_inputs.shape == (4, 2)
    assert values.shape == (4,)


def test_sequences_go_to_the_network_whole_and_to_the_loss_as_rows():
    rng = np.random.default_rng(0)
    batch = {
        "obs": rng.normal(size=(2, 5, 3)), "actions": rng.integers(0, 4, (2, 5)), "mask": rng.random((2, 5)) > 0.5,
        "state_in": rng.normal(size=(2, 7)),
    }  # fmt: skip
    seen = []

    def forward(obs, state, mask):
        seen.extend([obs, state, mask])
        return np.zeros((10, 4)), np.zeros(10), state

    _, _, rows = outputs_and_rows(NUMPY_OPS, forward, batch)
    assert all(x is batch[name] for x, name in zip(seen, ("obs", "state_in", "mask"), strict=True))
    assert isinstance(rows, FlatRows)
    assert np.array_equal(rows["obs"], batch["obs"].reshape(10, 3))
    assert np.array_equal(rows.get("mask"), batch["mask"].reshape(10))
    assert rows.get("advantages") is None
    assert "actions" in rows
