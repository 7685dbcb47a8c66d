"""Whole plans, made up in a few lines, over workers without envs."""

import queue

import numpy as np

from headwater.data import SampleBatch
from headwater.execution import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    KeepInfo,
    LocalIterator,
    ParallelRollouts,
    SelectExperiences,
    StandardizeFields,
    StandardMetricsReporting,
    SyncWeights,
    TrainOneStep,
)
from tests.execution.fakes import CONFIG, FakeWorkerSet


def on_policy_plan(workers, config):
    rollouts = ParallelRollouts(workers, mode="bulk_sync")
    rollouts = rollouts.for_each(SelectExperiences(workers.trainable_policies()))
    rollouts = rollouts.combine(ConcatBatches(config["train_batch_size"])).for_each(StandardizeFields(["advantages"]))
    train_op = rollouts.for_each(TrainOneStep(workers, num_sgd_iter=4, sgd_minibatch_size=8))
    train_op = train_op.for_each(SyncWeights(workers)).for_each(KeepInfo())
    return StandardMetricsReporting(train_op, workers, config)


def test_an_on_policy_plan_in_six_lines():
    for num_workers in (0, 2):
        workers = FakeWorkerSet(num_workers=num_workers, rows=8)
        plan = on_policy_plan(workers, {**CONFIG, "train_batch_size": 16})
        results = plan.take(3)
        assert [result["timesteps_total"] for result in results] == [16, 32, 48]
        assert workers.local_worker().policy.learned == [(16, 4, 8)] * 3


def test_the_drawing_reads_as_the_plan():
    lines = str(on_policy_plan(FakeWorkerSet(), {**CONFIG, "train_batch_size": 16})).splitlines()
    assert [line.split()[1] for line in lines] == [
        "ParallelRollouts",
        "SelectExperiences",
        "ConcatBatches",
        "StandardizeFields",
        "TrainOneStep",
        "SyncWeights",
        "KeepInfo",
        "OncePerTimestepsElapsed",
        "OncePerTimeInterval",
        "CollectMetrics",
    ]
    assert "-> Batch" in lines[0] and lines[0].endswith("mode='bulk_sync', samplers='local worker'")
    assert "Batch -> TrainResult" in lines[4] and "any -> TrainResult" in lines[5]
    assert "Batch -> TrainResult" in lines[4] and lines[4].endswith("num_sgd_iter=4, sgd_minibatch_size=8")
    assert "any -> dict" in lines[-1] and "min_history=100" in lines[-1]


def test_synchronous_gradients():
    workers = FakeWorkerSet(rows=4)
    gradients = ParallelRollouts(workers).for_each(ComputeGradients(workers)).batch(3).for_each(AverageGradients())
    plan = StandardMetricsReporting(gradients.for_each(ApplyGradients(workers)), workers, CONFIG)
    result = next(plan)
    assert result["info"]["num_steps_trained"] == 12 and workers.local_worker().weights == 1


def test_replay_beside_rollouts():
    workers = FakeWorkerSet(rows=4)
    memory = []

    def replay():
        rng = np.random.default_rng(0)
        while True:
            yield memory[rng.integers(len(memory))]

    store_op = ParallelRollouts(workers).for_each(lambda batch: memory.append(batch) or batch)
    replay_op = LocalIterator(replay, name="Replay").for_each(TrainOneStep(workers))
    train_op = Concurrently([store_op, replay_op], mode="round_robin", output_indexes=[1], round_robin_weights=[1, 2])
    result = StandardMetricsReporting(train_op, workers, CONFIG).take(4)[-1]
    assert result["info"]["num_steps_sampled"] == 8 and result["info"]["num_steps_trained"] == 16


def test_a_queue_between_rollouts_and_learning():
    workers = FakeWorkerSet(num_workers=2, rows=4)
    line = queue.Queue(maxsize=2)
    enqueue_op = ParallelRollouts(workers, mode="async").for_each(Enqueue(line))
    train_op = Dequeue(line).for_each(TrainOneStep(workers)).for_each(SyncWeights(workers))
    plan = Concurrently([enqueue_op, train_op], mode="async", output_indexes=[1])
    batches = [result.batch for result in plan.take(10)]
    assert all(isinstance(batch, SampleBatch) for batch in batches)
    assert {int(batch["worker"][0]) for batch in batches} == {1, 2}
    assert plan.shared_metrics.counters["num_steps_trained"] == 40
