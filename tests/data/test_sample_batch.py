import pickle

import numpy as np
import pytest

from headwater.data import BatchError, MultiAgentBatch, SampleBatch, batch_from_state
from headwater.errors import HeadwaterError


def make(rows=6, start=0):
    t = np.arange(start, start + rows)
    rewards = t.astype(np.float32)
    return SampleBatch({"obs": rewards[:, None], "rewards": rewards.copy(), "eps_id": t // 4, "t": t % 4})


def test_columns_become_arrays_of_equal_length():
    batch = SampleBatch({"obs": [[1, 2], [3, 4]]}, rewards=[1.0, 2.0])
    assert batch.count == 2 and isinstance(batch["rewards"], np.ndarray)
    assert SampleBatch([("obs", [1, 2, 3])]).count == 3


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "at least one column"),
        ({1: [1]}, "names are strings"),
        ({"obs": [1, 2], "rewards": [1]}, "'rewards' has 1 rows where 'obs' has 2"),
        ({"obs": 3.0}, "'obs' is a scalar"),
    ],
)
def test_bad_columns_are_refused_by_name(columns, words):
    with pytest.raises(BatchError, match=words) as caught:
        SampleBatch(columns)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, HeadwaterError)


def test_a_ragged_column_cannot_be_set_later():
    batch = make()
    ways = (lambda: batch.__setitem__("x", [1]), lambda: batch.update({"x": [1]}), lambda: batch.update(x=[1]))
    for set_column in ways:
        with pytest.raises(BatchError, match="'x' has 1 rows"):
            set_column()
    single = SampleBatch({"obs": [1, 2]})
    single["obs"] = [1, 2, 3]
    assert single.count == 3


def test_slices_are_views():
    batch = make()
    part = batch.slice(2, 4)
    part["rewards"][0] = -1
    assert batch["rewards"][2] == -1
    assert [piece.count for piece in batch.timeslices(4)] == [4, 2]
    assert all(np.shares_memory(piece["obs"], batch["obs"]) for piece in batch.timeslices(4))


def test_split_by_episode():
    batch = make(10)
    parts = batch.split_by_episode()
    assert np.shares_memory(parts[1]["obs"], batch["obs"])
    assert [part["t"].tolist() for part in parts] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]
    with pytest.raises(BatchError, match="no column 'eps_id'"):
        SampleBatch({"obs": [1]}).split_by_episode()
    assert SampleBatch({"eps_id": np.zeros(0)}).split_by_episode() == []


def test_concat():
    joined = SampleBatch.concat_samples([make(3), make(2, start=3)])
    assert joined["rewards"].tolist() == [0, 1, 2, 3, 4]
    assert make(3).concat(make(2, start=3))["rewards"].tolist() == [0, 1, 2, 3, 4]
    empty = make(3).slice(0, 0)
    only = make(3)
    assert SampleBatch.concat_samples([empty, only]) is only
    assert SampleBatch.concat_samples([empty, empty]).count == 0


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "at least one batch"),
        ([make(), SampleBatch({"obs": [1]})], "different columns"),
        ([make(), {"obs": [1]}], "got dict"),
        ([MultiAgentBatch({"a": make()}, 6), make()], "got SampleBatch"),
    ],
)
def test_concat_refusals(samples, words):
    with pytest.raises(BatchError, match=words):
        SampleBatch.concat_samples(samples)


def test_shuffle_moves_rows_together_and_leaves_shared_arrays_alone():
    batch = make(50)
    original = batch.copy(shallow=True)
    assert batch.shuffle(np.random.default_rng(0)) is batch
    assert batch["rewards"].tolist() != original["rewards"].tolist()
    assert original["rewards"].tolist() == list(range(50))
    assert (batch["obs"][:, 0] == batch["rewards"]).all() and sorted(batch["rewards"]) == list(range(50))
    again = make(50).shuffle(np.random.default_rng(0))
    assert (again["rewards"] == batch["rewards"]).all()


def test_copy_rows_columns_size():
    batch = make(2)
    deep, shallow = batch.copy(), batch.copy(shallow=True)
    assert not np.shares_memory(deep["obs"], batch["obs"]) and shallow["obs"] is batch["obs"]
    shallow["extra"] = [1, 2]
    assert "extra" not in batch
    assert [row["t"] for row in batch.rows()] == [0, 1]
    obs, rewards = batch.columns(["obs", "rewards"])
    assert obs is batch["obs"] and rewards is batch["rewards"]
    assert batch.size_bytes() == sum(column.nbytes for column in batch.values())
    with pytest.raises(BatchError, match="no column 'x'"):
        batch.columns(["x"])
    assert "2 rows" in repr(batch)


def test_pickle_between_own_processes():
    batch = pickle.loads(pickle.dumps(make()))
    assert isinstance(batch, SampleBatch) and batch.count == 6


def test_multi_agent_counts_and_wrapping():
    batch = MultiAgentBatch({"a": make(6), "b": make(4)}, 6)
    assert (batch.count, batch.env_steps(), batch.agent_steps()) == (6, 6, 10)
    assert batch.size_bytes() == make(6).size_bytes() + make(4).size_bytes()
    only = make()
    assert MultiAgentBatch.wrap_as_needed({"default_policy": only}, 6) is only
    assert isinstance(MultiAgentBatch.wrap_as_needed({"other": only}, 6), MultiAgentBatch)
    assert only.as_multi_agent().policy_batches["default_policy"] is only
    assert batch.as_multi_agent() is batch
    with pytest.raises(BatchError, match="'a' needs a SampleBatch"):
        MultiAgentBatch({"a": {"obs": [1]}}, 1)


def test_multi_agent_concat():
    first, second = MultiAgentBatch({"a": make(2)}, 2), MultiAgentBatch({"a": make(3), "b": make(1)}, 3)
    joined = SampleBatch.concat_samples([first, second])
    assert joined.count == 5 and joined.policy_batches["a"].count == 5 and joined.policy_batches["b"].count == 1


def test_multi_agent_timeslices_keep_env_steps_together():
    a = SampleBatch({"eps_id": [0, 0, 0, 1, 1], "t": [0, 1, 2, 0, 1], "x": np.arange(5)})
    b = SampleBatch({"eps_id": [0, 1], "t": [2, 0], "x": np.arange(10, 12)})
    pieces = MultiAgentBatch({"a": a, "b": b}, 5).timeslices(2)
    assert [piece.count for piece in pieces] == [2, 2, 1]
    assert [{p: part["x"].tolist() for p, part in piece.policy_batches.items()} for piece in pieces] == [
        {"a": [0, 1]},
        {"a": [2, 3], "b": [10, 11]},
        {"a": [4]},
    ]
    with pytest.raises(BatchError, match="at least one step"):
        make().timeslices(0)


def test_state_round_trip_and_what_cannot_be_saved():
    for batch in (make(), MultiAgentBatch({"a": make(2), "b": make(3)}, 3)):
        again = batch_from_state(batch.to_state())
        assert type(again) is type(batch) and repr(again) == repr(batch)
    with pytest.raises(BatchError, match="'infos' holds Python objects"):
        SampleBatch({"infos": np.array([{}, {}])}).to_state()
