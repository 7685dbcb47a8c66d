"""Sequences: folding, and what batches of them do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data import BatchError, MultiAgentBatch, SampleBatch, batch_from_state, compute_advantages
from headwater.data.sequences import fold, sequence_length


@given(fragment=st.integers(1, 500), longest=st.integers(1, 200))
def test_the_length_is_the_nearest_to_equal_parts(fragment: int, longest: int) -> None:
    length = sequence_length(fragment, longest)
    parts = -(-fragment // longest)
    assert length <= longest and -(-fragment // length) == parts
    assert parts * length - fragment < parts


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=20), more=st.integers(0, 3), width=st.integers(0, 2)
)  # fmt: skip
def test_folding_keeps_every_row_once_and_in_order(lengths: list[int], more: int, width: int) -> None:
    rows = sum(lengths)
    columns: dict[str, Any] = {
        "x": np.arange(1, rows + 1, dtype=np.float32)[:, None].repeat(width + 1, 1),
        "done": np.ones(rows, bool),
    }
    starts = np.cumsum([0, *lengths[:-1]])
    states = np.arange(len(lengths), dtype=np.float32)[:, None]
    batch = fold(SampleBatch(columns), starts, max(lengths) + more, states)
    mask = batch["mask"]
    assert mask.sum(1).tolist() == lengths and (batch.count, batch.num_rows) == (rows, len(lengths))
    assert batch["state_in"] is states
    for name, column in columns.items():
        np.testing.assert_array_equal(batch[name][mask], column)
        assert not batch[name][~mask].any() and batch[name].dtype == column.dtype


def sequences() -> SampleBatch:
    """Four sequences of two episodes, 8 steps."""
    rows = SampleBatch({"x": np.arange(10.0, 18.0), "eps_id": np.array([4, 4, 4, 4, 4, 7, 7, 7])})
    return fold(rows, np.array([0, 3, 5, 6]), 3, np.arange(8, dtype=np.float32).reshape(4, 2))


def firsts(batch: SampleBatch) -> list[float]:
    return batch["x"][:, 0].tolist()


def test_a_row_is_a_sequence() -> None:
    batch = sequences()
    assert batch.in_sequences and (batch.count, batch.num_rows) == (8, 4)
    assert repr(batch).startswith("SampleBatch(4 sequences: x (4, 3)")
    part = batch.slice(1, 3)
    assert (firsts(part), part.count, part["state_in"].tolist()) == ([13, 15], 3, [[2, 3], [4, 5]])
    assert [row["x"].tolist() for row in part.rows()] == [[13, 14, 0], [15, 0, 0]]
    batch["y"] = np.zeros(4)
    with pytest.raises(BatchError, match="'z' has 8 rows where 'x' has 4"):
        batch["z"] = np.zeros(8)


def test_shuffled_sequences_stay_whole_and_keep_their_states() -> None:
    batch = sequences().shuffle(np.random.default_rng(2))
    assert firsts(batch) != [10, 13, 15, 16] and sorted(firsts(batch)) == [10, 13, 15, 16]
    before = {x: state for x, state in zip([10, 13, 15, 16], sequences()["state_in"].tolist(), strict=True)}
    assert [before[x] for x in firsts(batch)] == batch["state_in"].tolist()
    assert batch.count == 8


def test_pieces_by_episode_and_by_steps() -> None:
    batch = sequences()
    assert [(firsts(piece), piece.count) for piece in batch.split_by_episode()] == [([10, 13], 5), ([15, 16], 3)]
    assert [(firsts(piece), piece.count) for piece in batch.timeslices(5)] == [([10, 13], 5), ([15, 16], 3)]
    assert [firsts(piece) for piece in batch.timeslices(1)] == [[10], [13], [15], [16]]
    assert [firsts(piece) for piece in batch.timeslices(4)] == [[10, 13], [15, 16]]
    assert [firsts(piece) for piece in batch.timeslices(100)] == [[10, 13, 15, 16]]


def test_joined_sequences_are_padded_to_the_longest() -> None:
    long = fold(SampleBatch({"x": np.arange(5.0), "eps_id": np.zeros(5, int)}), np.array([0]), 5, np.ones((1, 2)))
    joined = SampleBatch.concat_samples([sequences(), long])
    assert (joined.count, joined.num_rows, joined["x"].shape) == (13, 5, (5, 5))
    assert joined["x"][0].tolist() == [10, 11, 12, 0, 0] and joined["x"][4].tolist() == [0, 1, 2, 3, 4]
    assert joined["mask"].sum(1).tolist() == [3, 2, 1, 2, 5] and joined["state_in"].shape == (5, 2)
    same = SampleBatch.concat_samples([sequences(), sequences()])
    assert same["x"].shape == (8, 3) and same.count == 16


def test_sequences_as_multi_agent_and_saved() -> None:
    batch = sequences()
    multi = batch.as_multi_agent()
    assert (multi.count, multi.agent_steps()) == (8, 8)
    with pytest.raises(BatchError, match="'default_policy' are sequences"):
        multi.timeslices(2)
    for original in (batch, multi):
        again = batch_from_state(original.to_state())
        assert again.count == 8
        part = again.policy_batches["default_policy"] if isinstance(again, MultiAgentBatch) else again
        assert part.in_sequences and all(np.array_equal(part[name], batch[name]) for name in batch)  # type: ignore[attr-defined]
    copied = batch.copy()
    copied["x"][...] = 0
    assert batch["x"].any() and copied.count == 8


def test_advantages_come_before_sequences() -> None:
    batch = sequences()
    batch["rewards"] = batch["vf_preds"] = batch["x"]
    with pytest.raises(BatchError, match="in sequences"):
        compute_advantages(batch, 0.0)
