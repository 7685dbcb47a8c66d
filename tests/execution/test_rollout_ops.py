import numpy as np
import pytest

from headwater.data import BatchError, MultiAgentBatch, SampleBatch
from headwater.data.sequences import fold
from headwater.execution import (
    ConcatBatches,
    LocalIterator,
    ParallelIterator,
    ParallelRollouts,
    PlanError,
    SelectExperiences,
    StandardizeFields,
)
from tests.execution.fakes import FakeWorkerSet


@pytest.mark.parametrize("mode", ["bulk_sync", "async", "raw"])
def test_without_remote_workers_the_local_one_samples(mode):
    workers = FakeWorkerSet()
    rollouts = ParallelRollouts(workers, mode=mode)
    assert workers.local_worker().samples == 0
    batches = rollouts.take(3)
    assert [batch["obs"][0, 0] for batch in batches] == [0, 4, 8]
    assert rollouts.shared_metrics.counters == {"num_steps_sampled": 12}


def test_bulk_sync_joins_one_batch_of_each_worker():
    workers = FakeWorkerSet(num_workers=2)
    workers.local_worker().weights = 7
    rollouts = ParallelRollouts(workers)
    batch = next(rollouts)
    assert batch["worker"].tolist() == [1] * 4 + [2] * 4 and set(batch["weights"]) == {7}
    assert rollouts.shared_metrics.counters["num_steps_sampled"] == 8
    assert workers.local_worker().samples == 0


def test_async_gives_batches_with_their_worker():
    workers = FakeWorkerSet(num_workers=2)
    rollouts = ParallelRollouts(workers, mode="async", num_async=2).zip_with_source_actor()
    for actor, batch in rollouts.take(4):
        assert set(batch["worker"]) == {actor.index}
    assert rollouts.shared_metrics.counters["num_steps_sampled"] == 16


def test_raw_gives_the_parallel_iterator():
    raw = ParallelRollouts(FakeWorkerSet(num_workers=2), mode="raw")
    assert isinstance(raw, ParallelIterator) and next(raw.gather_sync()).count == 4


def test_an_unknown_mode_is_refused_with_and_without_remote_workers():
    for num_workers in (0, 1):
        with pytest.raises(ValueError, match="'bulk_sync', 'async', 'raw'"):
            ParallelRollouts(FakeWorkerSet(num_workers=num_workers), mode="sync")


def test_concat_batches_waits_for_enough_and_times_the_sampling():
    rollouts = ParallelRollouts(FakeWorkerSet(rows=4)).combine(ConcatBatches(min_batch_size=10))
    batch = next(rollouts)
    assert batch["obs"][:, 0].tolist() == list(range(12))
    assert next(rollouts)["obs"][0, 0] == 12
    timer = rollouts.shared_metrics.timers["sample"]
    assert timer.count == 2 and timer.mean > 0 and timer.mean_throughput > 0


def test_a_batch_that_is_enough_passes_without_a_copy():
    rollouts = ParallelRollouts(FakeWorkerSet(rows=4))
    samples = []
    concat = rollouts.for_each(lambda batch: samples.append(batch) or batch).combine(ConcatBatches(4))
    assert next(concat) is samples[0]


def test_batches_held_back_are_part_of_the_state():
    concat = ConcatBatches(10)
    assert concat(SampleBatch({"x": [1, 2]})) == []
    again = ConcatBatches(4)
    again.set_state(concat.get_state())
    plan = LocalIterator.from_items([SampleBatch({"x": [3, 4]})]).combine(again)
    assert next(plan)["x"].tolist() == [1, 2, 3, 4]


def test_select_experiences():
    rows = SampleBatch({"x": [1, 2]})
    select = SelectExperiences(["a"])
    selected = select(MultiAgentBatch({"a": rows, "b": rows}, 2))
    assert list(selected.policy_batches) == ["a"] and selected.count == 2
    assert select(rows) is rows
    with pytest.raises(ValueError, match="list of policy ids"):
        SelectExperiences("a")


@pytest.mark.parametrize("operator", [ConcatBatches(1), SelectExperiences(["a"]), StandardizeFields(["x"])])
def test_what_is_no_batch_is_refused(operator):
    with pytest.raises(PlanError, match=f"{type(operator).__name__} takes a SampleBatch .* got list"):
        operator([1, 2])


def test_standardize_uses_the_population_deviation():
    batch = SampleBatch({"advantages": np.array([1, 2, 3, 4], np.float32), "obs": [0, 0, 0, 0]})
    result = StandardizeFields(["advantages"])(batch)
    np.testing.assert_allclose(result["advantages"], [-1.341641, -0.447214, 0.447214, 1.341641], atol=1e-6)
    assert result["advantages"].dtype == np.float32 and result["obs"] is batch["obs"]


def test_standardize_writes_into_no_array_of_the_caller():
    column = np.array([1, 2, 3, 4], np.float32)
    column.flags.writeable = False
    batch = SampleBatch({"advantages": column})
    result = StandardizeFields(["advantages"])(batch)
    assert batch["advantages"] is column and column.tolist() == [1, 2, 3, 4]
    assert result is not batch


@pytest.mark.parametrize("padding", [0.0, -50.0, np.nan, np.inf])
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_rows_that_are_not_real_do_not_count(padding, dtype):
    batch = SampleBatch(
        {
            "advantages": np.array([1, padding, 2, 3, padding, 4], np.float32),
            "mask": np.array([1, 0, 1, 1, 0, 1], dtype),
        }
    )
    result = StandardizeFields(["advantages"])(batch)["advantages"]
    np.testing.assert_allclose(result, [-1.341641, 0, -0.447214, 0.447214, 0, 1.341641], atol=1e-6)


@pytest.mark.parametrize("padding", [0.0, -50.0, np.nan])
def test_padding_of_sequences_does_not_count(padding):
    """Case P20, folded."""
    batch = SampleBatch(
        {
            "advantages": np.array([[1, 2, 3], [4, padding, padding]], np.float32),
            "mask": np.array([[True] * 3, [True, False, False]]),
            "state_in": np.zeros((2, 1), np.float32),
        }
    )
    result = StandardizeFields(["advantages"])(batch)
    expected = [[-1.341641, -0.447214, 0.447214], [1.341641, 0, 0]]
    np.testing.assert_allclose(result["advantages"], expected, atol=1e-6)
    assert result.count == 4


def test_steps_are_counted_without_padding():
    rows = SampleBatch({"x": np.arange(5.0)})
    batch = fold(rows, np.array([0, 3]), 4, np.zeros((2, 1), np.float32))
    concat = ConcatBatches(10)
    plan = LocalIterator.from_items([batch, batch, batch]).combine(concat)
    joined = next(plan)
    assert (joined.count, joined.num_rows) == (10, 4)
    assert concat(batch) == [] and concat(batch)[0].count == 10


def test_standardize_extremes():
    def run(values, **more):
        return StandardizeFields(["x"])(SampleBatch({"x": np.array(values, np.float32), **more}))["x"].tolist()

    assert run([5.0]) == [0.0] and run([3.0, 3.0]) == [0.0, 0.0]
    assert run([1.0, 2.0], mask=np.array([False, False])) == [0.0, 0.0]
    assert max(run([0.0, 1e-6])) < 0.01  # a spread below 1e-4 is not blown up
    with pytest.raises(BatchError, match="no column 'x'"):
        StandardizeFields(["x"])(SampleBatch({"y": [1]}))


def test_policies_are_standardized_apart():
    batch = MultiAgentBatch({"a": SampleBatch({"x": [1.0, 3.0]}), "b": SampleBatch({"x": [100.0, 300.0]})}, 2)
    result = StandardizeFields(["x"])(batch)
    assert {p: part["x"].tolist() for p, part in result.policy_batches.items()} == {"a": [-1, 1], "b": [-1, 1]}
    assert batch.policy_batches["a"]["x"].tolist() == [1.0, 3.0]
