import json
import math
import time

import pytest

from headwater.execution import (
    CollectMetrics,
    ConcatBatches,
    LocalIterator,
    OncePerTimeInterval,
    OncePerTimestepsElapsed,
    ParallelRollouts,
    StandardMetricsReporting,
    SyncWeights,
    TrainOneStep,
)
from headwater.sampling.metrics import RolloutMetrics
from tests.execution.fakes import CONFIG, FakeWorkerSet


def make_plan(workers, **config):
    train_op = ParallelRollouts(workers).combine(ConcatBatches(8)).for_each(TrainOneStep(workers))
    if workers.remote_workers():
        train_op = train_op.for_each(SyncWeights(workers))
    return StandardMetricsReporting(train_op, workers, {**CONFIG, **config})


def test_a_result_holds_episodes_counters_timers_and_info():
    plan = make_plan(FakeWorkerSet(rows=4, episode_length=6))
    result = plan.take(3)[-1]
    assert result["timesteps_total"] == 24 and result["episodes_total"] == 4
    assert result["episodes_this_iter"] == 2 and result["episode_reward_mean"] == 6.0
    assert result["hist_stats"]["episode_lengths"] == [6, 6, 6, 6]
    assert result["info"]["learner"]["default_policy"]["total_loss"] == pytest.approx(1 / 3)
    assert result["info"]["num_steps_sampled"] == result["info"]["num_steps_trained"] == 24
    assert {"sample_time_ms", "sample_throughput", "learn_time_ms", "learn_throughput"} == set(result["timers"])
    assert result["num_healthy_workers"] == 0
    assert result["sampler_perf"]["mean_env_wait_ms"] == 1.0 and result["sampler_perf"]["mean_inference_ms"] == 2.0


def test_the_keys_are_the_same_from_the_first_row():
    def flat(result, prefix=""):
        nested = [flat(v, f"{prefix}{k}/") if isinstance(v, dict) else {prefix + k} for k, v in result.items()]
        return set().union(*nested)

    plan = make_plan(FakeWorkerSet(rows=4, episode_length=30))
    results = plan.take(5)
    assert math.isnan(results[0]["episode_reward_mean"]) and results[0]["episodes_this_iter"] == 0
    assert results[-1]["episode_reward_mean"] == 30.0
    assert flat(results[0]) == flat(results[-1])


def test_remote_workers_are_asked_and_their_times_averaged():
    workers = FakeWorkerSet(num_workers=2, rows=4, episode_length=4)
    result = next(make_plan(workers))
    assert result["num_healthy_workers"] == 2 and result["episodes_this_iter"] == 2
    assert result["sampler_perf"]["mean_env_wait_ms"] == 2.5
    assert "update_time_ms" in result["timers"] and "update_throughput" not in result["timers"]


def test_a_plan_that_forgets_its_remote_workers_is_refused():
    workers = FakeWorkerSet(num_workers=1)
    train_op = ParallelRollouts(workers).for_each(TrainOneStep(workers))
    with pytest.raises(ValueError, match=r"SyncWeights\(workers\)"):
        StandardMetricsReporting(train_op, workers, CONFIG)


def test_steps_per_iteration_and_time_per_iteration():
    plan = make_plan(FakeWorkerSet(rows=4), timesteps_per_iteration=20)
    assert [result["timesteps_total"] for result in plan.take(3)] == [24, 48, 72]
    timed = make_plan(FakeWorkerSet(rows=4), min_iter_time_s=0.03)
    next(timed)
    start = time.perf_counter()
    next(timed)
    assert time.perf_counter() - start >= 0.029


class Episodes:
    """A worker set whose worker ended the episodes it is told to."""

    def __init__(self):
        self.pending = []

    def remote_workers(self):
        return []

    def local_worker(self):
        return self

    def get_metrics(self):
        pending, self.pending = self.pending, []
        return pending

    def perf_stats(self):
        return {}

    def get_estimates(self):
        return {}


def collect(workers, op, *rewards):
    workers.pending = [RolloutMetrics(1, float(r)) for r in rewards]
    return next(LocalIterator.from_items([0]).for_each(op))


def test_the_window_is_filled_with_the_latest_history():
    workers = Episodes()
    op = CollectMetrics(workers, min_history=3)
    window = lambda *rewards: collect(workers, op, *rewards)["hist_stats"]["episode_reward"]  # noqa: E731
    assert window(1) == [1]
    assert window() == [1]
    assert window(2, 3) == [1, 2, 3]
    assert window(4) == [2, 3, 4]
    assert window(5, 6, 7, 8, 9) == [5, 6, 7, 8, 9]
    assert window() == [7, 8, 9]
    assert collect(workers, op, 10)["episodes_total"] == 10


def test_without_smoothing_only_new_episodes_count():
    workers = Episodes()
    op = CollectMetrics(workers, min_history=0)
    assert collect(workers, op, 1, 2)["episode_reward_mean"] == 1.5
    assert math.isnan(collect(workers, op)["episode_reward_mean"])


def test_changing_a_result_changes_no_later_one():
    plan = make_plan(FakeWorkerSet())
    first = next(plan)
    first["info"]["learner"]["default_policy"]["total_loss"] = "changed"
    first["hist_stats"]["episode_reward"].clear()
    assert plan.shared_metrics.info["learner"]["default_policy"]["total_loss"] == 1.0
    assert next(plan)["hist_stats"]["episode_reward"]


def test_state_of_the_whole_plan_continues_elsewhere():
    def build(workers):
        return make_plan(workers, timesteps_per_iteration=12, metrics_smoothing_episodes=3)

    straight = build(FakeWorkerSet(rows=4, episode_length=6))
    expected = straight.take(5)[-1]

    workers = FakeWorkerSet(rows=4, episode_length=6)
    plan = build(workers)
    plan.take(3)
    state = json.loads(json.dumps(plan.get_state()))
    resumed = build(workers)
    resumed.set_state(state)
    got = resumed.take(2)[-1]
    for result in (expected, got):
        del result["timers"]
    assert got == expected


def test_state_fits_a_plan_with_another_number_of_workers():
    plan = make_plan(FakeWorkerSet(rows=8, episode_length=4))
    plan.take(3)
    wider = make_plan(FakeWorkerSet(num_workers=2, rows=8, episode_length=4))
    wider.set_state(plan.get_state())
    result = next(wider)
    assert result["timesteps_total"] == 24 + 16 and result["episodes_total"] == 6 + 4


def test_the_window_and_marks_are_in_the_state():
    workers = Episodes()
    op = CollectMetrics(workers, min_history=3)
    collect(workers, op, 1, 2, 3, 4)
    again = CollectMetrics(workers, min_history=3)
    again.set_state(json.loads(json.dumps(op.get_state())))
    result = collect(workers, again, 5)
    assert result["hist_stats"]["episode_reward"] == [3, 4, 5] and result["episodes_total"] == 5


def test_marks_of_the_filters_survive():
    def passes(op, sampled):
        it = LocalIterator.from_items([0]).filter(op)
        it.shared_metrics.counters["num_steps_sampled"] = sampled
        return it.take(1) == [0]

    op = OncePerTimestepsElapsed(10)
    assert not passes(op, 9) and passes(op, 10) and not passes(op, 19)
    again = OncePerTimestepsElapsed(10)
    again.set_state(op.get_state())
    assert not passes(again, 19) and passes(again, 20)
    assert passes(OncePerTimestepsElapsed(0), 0)

    timed = OncePerTimeInterval(1000.0)
    assert timed.get_state() == {"elapsed_s": None} and timed(0) and not timed(0)
    later = OncePerTimeInterval(1000.0)
    later.set_state(timed.get_state())
    assert not later(0)
    later.set_state({"elapsed_s": 1001.0})
    assert later(0)
    later.set_state({"elapsed_s": None})
    assert later(0) and OncePerTimeInterval(0)(0)


def test_reporting_is_cheap():
    workers = Episodes()
    op = CollectMetrics(workers, min_history=100)
    collect(workers, op, *range(100))

    def run():
        workers.pending = [RolloutMetrics(1, 1.0)] * 40
        plan = LocalIterator.from_items([0]).for_each(op)
        start = time.perf_counter()
        next(plan)
        return time.perf_counter() - start

    assert min(run() for _ in range(30)) < 300e-6
