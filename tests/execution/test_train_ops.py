import numpy as np
import pytest

from headwater.data import MultiAgentBatch, SampleBatch
from headwater.execution import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    Gradients,
    KeepInfo,
    LocalIterator,
    ParallelRollouts,
    PlanError,
    SyncWeights,
    TrainOneStep,
    UpdateTargetNetwork,
)
from tests.execution.fakes import FakePolicy, FakeWorkerSet


def rollouts(workers, **kwargs):
    return ParallelRollouts(workers, **kwargs)


def test_train_one_step():
    workers = FakeWorkerSet()
    plan = rollouts(workers).for_each(TrainOneStep(workers, num_sgd_iter=3, sgd_minibatch_size=2))
    batch, info = next(plan)
    assert batch.count == 4 and info == {"default_policy": {"total_loss": 1.0}}
    worker, metrics = workers.local_worker(), plan.shared_metrics
    assert worker.policy.learned == [(4, 3, 2)] and worker.timestep == 4
    assert metrics.counters == {"num_steps_sampled": 4, "num_steps_trained": 4}
    assert metrics.info["learner"] == info
    assert metrics.timers["learn"].count == 1 and metrics.timers["learn"].has_units_processed()


def test_only_chosen_policies_with_rows_are_trained():
    workers = FakeWorkerSet()
    policies = {name: FakePolicy() for name in "abc"}
    workers.local_worker().get_policy = policies.__getitem__
    workers.local_worker().policies_to_train = ["a", "c"]
    rows = SampleBatch({"x": [1, 2]})
    batch = MultiAgentBatch({"a": rows, "b": rows, "c": rows.slice(0, 0)}, 2)

    def train(**kwargs):
        return next(LocalIterator.from_items([batch]).for_each(TrainOneStep(workers, **kwargs)).for_each(KeepInfo()))

    assert list(train()) == ["a"]
    assert list(train(policies=["b"])) == ["b"]


def test_a_plan_with_remote_workers_sends_them_new_weights():
    workers = FakeWorkerSet(num_workers=2)

    def learn(batch):
        workers.local_worker().weights += 1
        return batch

    plan = rollouts(workers).for_each(learn).for_each(TrainOneStep(workers)).for_each(SyncWeights(workers))
    next(plan)
    assert [worker.weights for worker in workers.remote_workers()] == [1, 1]
    assert [worker.timestep for worker in workers.remote_workers()] == [8, 8]
    assert set(next(plan).batch["weights"]) == {1}
    assert plan.shared_metrics.timers["update"].count == 2


def test_sync_weights_to_the_source_only():
    workers = FakeWorkerSet(num_workers=2)
    plan = rollouts(workers, mode="async").for_each(SyncWeights(workers, to="source"))
    workers.local_worker().weights = 5
    next(plan)
    assert sorted(worker.weights for worker in workers.remote_workers()) == [0, 5]
    with pytest.raises(PlanError, match='"all" or "source"'):
        SyncWeights(workers, to="some")
    bulk = rollouts(workers).for_each(SyncWeights(workers, to="source"))
    with pytest.raises(PlanError, match="no single remote worker"):
        next(bulk)


def test_a_failed_broadcast_comes_out_at_the_next():
    workers = FakeWorkerSet(num_workers=1)
    plan = rollouts(workers).for_each(SyncWeights(workers))
    workers.remote_workers()[0].set_weights = lambda *_: 1 / 0
    next(plan)
    with pytest.raises(ZeroDivisionError):
        next(plan)


def test_gradients_are_computed_averaged_by_steps_and_applied():
    workers = FakeWorkerSet(rows=4)
    plan = rollouts(workers).for_each(ComputeGradients(workers)).batch(2).for_each(AverageGradients())
    plan = plan.for_each(ApplyGradients(workers))
    assert next(plan) is None
    worker, metrics = workers.local_worker(), plan.shared_metrics
    assert worker.applied == [{"w": np.array([3.5])}]  # the mean of rows 0 to 7
    assert metrics.counters == {"num_steps_sampled": 8, "num_steps_trained": 8} and worker.timestep == 8
    assert metrics.info["learner"] == {"default_policy": {"loss": 0.5}}
    assert metrics.timers["apply_grad"].has_units_processed() and metrics.timers["compute_grads"].count == 2


def test_average_is_a_weighted_mean_over_any_nesting():
    average = AverageGradients()
    assert average([(np.array([2.0]), 1), (np.array([4.0]), 1)]) == (np.array([3.0]), 2)
    result = average(
        [
            ({"p": {"w": np.array([0.0], np.float32), "b": None}}, 1),
            ({"p": {"w": np.array([4.0], np.float32), "b": None}}, 3),
        ]
    )
    assert isinstance(result, Gradients) and result.num_steps == 4
    assert result.gradients["p"]["w"].tolist() == [3.0] and result.gradients["p"]["w"].dtype == np.float32
    assert result.gradients["p"]["b"] is None
    lists, _ = average([([np.array(1.0), np.array(2.0)], 2), ([np.array(3.0), np.array(4.0)], 2)])
    assert [float(x) for x in lists] == [2.0, 3.0]
    read_only = np.ones(2)
    read_only.flags.writeable = False
    average([(read_only, 1), (read_only, 1)])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "empty list"),
        ([(np.ones(1), 0)], "at least one env step"),
        ([({"a": np.ones(1)}, 1), ({"b": np.ones(1)}, 1)], "same parameters"),
    ],
)
def test_average_refusals(parts, words):
    with pytest.raises(ValueError, match=words):
        AverageGradients()(parts)


def test_apply_gradients_updates_all_or_the_source():
    for update_all, expected in ((True, [1, 1]), (False, [0, 1])):
        workers = FakeWorkerSet(num_workers=2)
        plan = rollouts(workers, mode="async").for_each(ComputeGradients(workers))
        next(plan.for_each(ApplyGradients(workers, update_all=update_all)))
        assert sorted(worker.weights for worker in workers.remote_workers()) == expected
    with pytest.raises(ValueError, match="ApplyGradients takes"):
        ApplyGradients(workers)([1, 2])


@pytest.mark.parametrize(("by_steps_trained", "updates"), [(False, 3), (True, 0)])
def test_target_networks_follow_now_and_then(by_steps_trained, updates):
    workers = FakeWorkerSet(rows=4)
    plan = rollouts(workers).for_each(UpdateTargetNetwork(workers, 7, by_steps_trained))
    plan.take(6)  # 24 steps sampled: more than 7 since the last at 8, 16, 24
    counters = plan.shared_metrics.counters
    assert workers.local_worker().policy.target_updates == updates == counters["num_target_updates"]
    assert counters["last_target_update_ts"] == 8 * updates


def test_operators_that_do_not_fit_are_refused():
    workers = FakeWorkerSet()
    with pytest.raises(TypeError, match="TrainOneStep gives TrainResult, but ConcatBatches takes Batch"):
        rollouts(workers).for_each(TrainOneStep(workers)).combine(ConcatBatches(1))
    with pytest.raises(TypeError, match="ParallelRollouts gives Batch, but ApplyGradients takes tuple"):
        rollouts(workers).for_each(ApplyGradients(workers))
    with pytest.raises(TypeError, match="ComputeGradients gives Gradients, but AverageGradients takes list"):
        rollouts(workers).for_each(ComputeGradients(workers)).for_each(AverageGradients())
    with pytest.raises(ValueError, match="TrainOneStep takes a SampleBatch"):
        next(LocalIterator.from_items([1]).for_each(TrainOneStep(workers)))
