import json
import logging

import numpy as np
import pytest

from headwater.data import SampleBatch
from headwater.engines import InlineEngine
from headwater.errors import HeadwaterError, TrainingError
from headwater.execution import LocalIterator, ParallelIterator, PlanError, PlanTypeError, SharedMetrics
from headwater.execution import iterators as iterators_module
from headwater.execution.plan_drawing import SAME
from headwater.execution.stages import _NextValueNotReady

items = LocalIterator.from_items


def test_operators():
    assert list(items([1, 2, 3]).for_each(lambda x: 2 * x)) == [2, 4, 6]
    assert list(items(range(6)).filter(lambda x: x % 2)) == [1, 3, 5]
    assert list(items(range(5)).batch(2)) == [[0, 1], [2, 3], [4]]
    assert list(items([[1], [], [2, 3]]).flatten()) == [1, 2, 3]
    assert list(items([1, 2, 3]).combine(lambda x: [x] * (x - 1))) == [2, 3, 3]
    assert items(range(5)).take(2) == [0, 1]
    assert items(range(2)).take(5) == [0, 1]


def test_taking_goes_on_where_it_stopped():
    it = items(range(5))
    assert it.take(2) == [0, 1] and next(it) == 2 and list(it) == [3, 4]


def test_show(capsys):
    items("abc").show(2)
    assert capsys.readouterr().out == "a\nb\n"


def test_nothing_runs_before_an_item_is_asked_for():
    asked = []
    it = LocalIterator(lambda: asked.append(1) or [1]).for_each(asked.append)
    assert asked == []
    next(it)
    assert asked == [1, 1]


def test_union_takes_turns():
    assert list(items([1, 2]).union(items([5, 6, 7]), deterministic=True)) == [1, 5, 2, 6, 7]
    assert sorted(items([1, 2]).union(items([5, 6, 7]), items([9]))) == [1, 2, 5, 6, 7, 9]
    weighted = items("aaaa").union(items("bbbb"), deterministic=True, round_robin_weights=[1, 2])
    assert "".join(weighted) == "abbabbaa"
    star = items("aaa").union(items("bbb"), deterministic=True, round_robin_weights=[1, "*"])
    assert "".join(star) == "abbbaa"


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 1.5, 2.9])
def test_fractional_weights_are_kept_on_average(fraction):
    endless = lambda letter: LocalIterator(lambda: iter(lambda: letter, None))  # noqa: E731
    taken = endless("a").union(endless("b"), deterministic=True, round_robin_weights=[1, fraction]).take(2000)
    assert taken.count("b") / taken.count("a") == pytest.approx(fraction, rel=0.02)


@pytest.mark.parametrize(
    "build",
    [
        lambda: items([1]).union(),
        lambda: items([1]).union([2]),
        lambda: items([1]).union(items([2]), round_robin_weights=[1]),
        lambda: items([1]).union(items([2]), round_robin_weights=[1, 0]),
        lambda: items([1]).union(items([2]), round_robin_weights=[1, "x"]),
        lambda: items([1]).duplicate(1),
        lambda: items([1]).batch(0),
    ],
)
def test_misuse_is_a_value_error_of_ours(build):
    with pytest.raises(PlanError) as caught:
        build()
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, HeadwaterError)


def test_union_shares_metrics():
    def count(_):
        LocalIterator.get_metrics().counters["n"] += 1

    a, b = items([1, 2]).for_each(count), items([3]).for_each(count)
    a.shared_metrics.counters["n"] = 10
    both = a.union(b)
    list(both)
    assert both.shared_metrics.counters["n"] == 13
    assert both.shared_metrics is a.shared_metrics is b.shared_metrics


def test_duplicate_gives_each_item_to_all():
    a, b = items([1, 2, 3]).duplicate(2)
    assert list(a.union(b, deterministic=True)) == [1, 1, 2, 2, 3, 3]


def test_a_duplicate_that_is_ahead_waits():
    a, b, c = items(range(4)).duplicate(3)
    b, c = b.for_each(lambda x: 10 * x), c.filter(lambda x: False)
    joined = a.union(b, c, deterministic=True, round_robin_weights=[4, 1, 1])
    assert list(joined) == [0, 0, 1, 10, 2, 20, 3, 30]


def test_one_consumer_only():
    source = items([1, 2])
    source.for_each(str)
    with pytest.raises(PlanError, match=r"from_items already go to str, so repr would take them .*duplicate\(2\)"):
        source.for_each(repr)


def test_not_ready_is_retried_with_the_same_item():
    seen = []

    def every_third(x):
        seen.append(x)
        return x if len(seen) % 3 == 0 else _NextValueNotReady()

    assert list(items("ab").for_each(every_third).batch(1)) == [["a"], ["b"]]
    assert seen == ["a", "a", "a", "b", "b", "b"]


def test_waiting_long_is_said_with_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(iterators_module, "WARN_AFTER_S", 0.01)
    answers = [_NextValueNotReady("the queue is empty")] * 50 + [1]
    with caplog.at_level(logging.WARNING):
        assert next(LocalIterator(lambda: answers, name="Dequeue").filter(bool)) == 1
    assert "Dequeue > bool" in caplog.text and "the queue is empty" in caplog.text


def test_a_plan_goes_on_after_an_exception():
    failures = iter([True, False, False, False])

    def source():
        while True:
            if next(failures):
                raise OSError("worker lost")
            yield "item"

    def fail_once(x, state=[]):  # noqa: B006
        state.append(x)
        if len(state) == 2:
            raise RuntimeError("bad batch")
        return len(state)

    plan = LocalIterator(source).for_each(fail_once).batch(2)
    with pytest.raises(OSError, match="worker lost"):
        next(plan)
    with pytest.raises(RuntimeError, match="bad batch"):
        next(plan)
    assert next(plan) == [1, 3]


def test_metrics_exist_only_inside():
    with pytest.raises(PlanError, match="only while it runs"):
        LocalIterator.get_metrics()
    metrics = SharedMetrics()
    inside = LocalIterator(lambda: [1], metrics).for_each(lambda _: LocalIterator.get_metrics())
    assert next(inside) is metrics
    with pytest.raises(PlanError):
        LocalIterator.get_metrics()


def test_a_plan_inside_a_plan_has_its_own_metrics():
    inner = items([1]).for_each(lambda _: LocalIterator.get_metrics())
    outer = items([1]).for_each(lambda _: (next(inner), LocalIterator.get_metrics()))
    found_inner, found_outer = next(outer)
    assert found_inner is inner.shared_metrics and found_outer is outer.shared_metrics


def test_fetch_hook_runs_before_each_fetch():
    events = []

    class Op:
        def _on_fetch_start(self):
            events.append("fetch")

        def __call__(self, x):
            events.append(x)
            return [x]

    source = LocalIterator(lambda: (events.append("source") or x for x in [1, 2]))
    assert list(source.combine(Op())) == [1, 2]
    assert events[:6] == ["fetch", "source", 1, "fetch", "source", 2]


class Sampler:
    gives = SampleBatch

    def __call__(self, _):
        return SampleBatch({"obs": [1]})


class NeedsText:
    takes = str
    gives = int

    def __init__(self):
        self.min_length = 3
        self._secret = 1

    def __call__(self, text):
        return len(text)


def test_neighbours_that_do_not_fit_are_refused_when_built():
    with pytest.raises(PlanTypeError, match="Sampler gives SampleBatch, but NeedsText takes str") as caught:
        items([1]).for_each(Sampler()).for_each(NeedsText())
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, HeadwaterError)
    with pytest.raises(TypeError, match="batch gives list, but NeedsText takes str"):
        items([1]).batch(2).for_each(NeedsText())
    with pytest.raises(TypeError, match="Sampler gives SampleBatch, but flatten"):
        items([1]).for_each(Sampler()).flatten()
    items([1]).for_each(lambda x: x).for_each(NeedsText())  # unknown: not judged
    items([1]).for_each(Sampler()).for_each(lambda x: "text").for_each(NeedsText())

    def passing(x):
        return x

    passing.gives = SAME
    with pytest.raises(TypeError, match="passing gives SampleBatch, but NeedsText"):
        items([1]).for_each(Sampler()).for_each(passing).for_each(NeedsText())


def test_the_drawing_has_a_line_per_operator():
    plan = items([1]).for_each(Sampler()).filter(bool).batch(2)
    lines = str(plan).splitlines()
    assert [" ".join(line.split()[:2]) for line in lines] == ["1 from_items", "2 Sampler", "3 bool", "4 batch"]
    assert "any -> SampleBatch" in lines[1] and "any -> list" in lines[3] and lines[3].endswith("n=2")
    text = str(items(["abc"]).for_each(NeedsText()))
    assert "str -> int" in text and "min_length=3" in text and "secret" not in text
    assert repr(plan) == "LocalIterator[from_items > Sampler > bool > batch]"


def test_branches_are_drawn_indented_and_numbered_once():
    a, b = items([1]).duplicate(2)
    lines = str(a.for_each(str).union(b, deterministic=True)).splitlines()
    assert sum("from_items" in line for line in lines) == 1
    assert [line.strip() for line in lines if "branch" in line] == ["branch 0:", "branch 1:"]
    assert lines[-1].strip().startswith("5  union") and "deterministic=True" in lines[-1]


class Numbers:
    """A worker: counts in steps of its own."""

    def __init__(self, step):
        self.step = step
        self.made = 0

    def sample(self):
        self.made += 1
        return self.made * self.step

    def apply(self, fn, *args):
        return fn(self, *args)


def shards(*workers):
    return ParallelIterator(lambda: workers, InlineEngine())


def test_gathering_over_workers():
    assert shards(Numbers(1), Numbers(10)).gather_sync().take(4) == [1, 10, 2, 20]
    assert shards(Numbers(1), Numbers(10)).batch_across_shards().take(2) == [[1, 10], [2, 20]]
    assert sorted(shards(Numbers(1), Numbers(10)).gather_async().take(4)) == [1, 2, 10, 20]
    assert shards(Numbers(1), Numbers(10)).for_each(lambda x: -x).gather_sync().take(2) == [-1, -10]


def test_async_items_name_their_worker_and_stay_bounded():
    one, ten = Numbers(1), Numbers(10)
    pairs = shards(one, ten).gather_async(num_async=2).zip_with_source_actor()
    for actor, item in pairs.take(6):
        assert item % actor.step == 0
    assert one.made + ten.made <= 6 + 4
    with pytest.raises(PlanError, match="num_async >= 1"):
        shards(one).gather_async(num_async=0)
    with pytest.raises(PlanError, match="no source"):
        next(items([1]).zip_with_source_actor())


def test_workers_may_change_between_rounds_but_not_vanish():
    workers = [Numbers(1), Numbers(10)]
    it = ParallelIterator(lambda: workers, InlineEngine()).gather_sync()
    assert it.take(2) == [1, 10]
    workers[1] = Numbers(100)
    assert it.take(2) == [2, 100]
    workers.clear()
    with pytest.raises(TrainingError, match="No worker is left"):
        next(it)


def test_a_failing_worker_does_not_end_the_stream():
    bad = Numbers(1)
    bad.sample = lambda: 1 / 0
    it = shards(bad, Numbers(10)).gather_async()
    results = []
    for _ in range(6):
        try:
            results.append(next(it))
        except ZeroDivisionError:
            results.append("failed")
    assert results.count("failed") == 3 and [r for r in results if r != "failed"] == [10, 20, 30]


class NotYetEngine(InlineEngine):
    """Calls are ready only at every third look."""

    def __init__(self):
        self.looks = 0
        self.timeouts = []

    def wait(self, handles, timeout_s=None):
        self.looks += 1
        self.timeouts.append(timeout_s)
        return list(handles) if self.looks % 3 == 0 else []


def test_an_async_union_does_not_block_on_a_slow_branch():
    engine = NotYetEngine()
    slow = ParallelIterator(lambda: [worker], engine).gather_async()
    worker = Numbers(1)
    joined = items("abcd").union(slow)
    assert joined.take(6) == ["a", "b", "c", 1, "d", 2]
    assert set(engine.timeouts) == {0}


def test_a_parallel_iterator_is_not_iterable():
    with pytest.raises(TypeError, match="gather_sync"):
        iter(shards(Numbers(1)))


class Total:
    """Stateful: sums what passes."""

    def __init__(self):
        self.total = 0

    def __call__(self, x):
        self.total += x
        return self.total

    def get_state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]


def endless(start):
    def source():
        n = start
        while True:
            yield n
            n += 1

    return LocalIterator(source)


def test_state_of_operators_and_metrics_goes_into_an_equal_plan():
    def build():
        def count(x):
            metrics = LocalIterator.get_metrics()
            metrics.counters["num_steps_sampled"] += 1
            metrics.info["learner"] = {"p": {"loss": np.float32(0.5)}}
            return x

        return endless(1).for_each(count).for_each(Total())

    plan = build()
    plan.take(3)
    state = json.loads(json.dumps(plan.get_state()))
    again = build()
    again.set_state(state)
    assert again.shared_metrics.counters["num_steps_sampled"] == 3
    assert again.shared_metrics.info == {"learner": {"p": {"loss": 0.5}}}
    assert next(again) == 6 + 1
    assert again.shared_metrics.counters["num_steps_sampled"] == 4


def test_state_of_another_plan_is_refused():
    plan = endless(1).for_each(Total())
    state = plan.get_state()
    with pytest.raises(HeadwaterError, match=r"has \['Total'\]"):
        endless(1).for_each(str).set_state(state)


def test_turns_and_held_items_are_in_the_state(caplog):
    def build():
        ones, tens = LocalIterator(lambda: iter(lambda: 1, 0)), LocalIterator(lambda: iter(lambda: 10, 0))
        return ones.union(tens, deterministic=True, round_robin_weights=[1, 1.5]).for_each(lambda x: [x, -x]).flatten()

    straight, broken = build(), build()
    expected = straight.take(20)
    got = broken.take(7)
    resumed = build()
    resumed.set_state(broken.get_state())
    assert got + resumed.take(13) == expected


def test_held_batches_are_saved_and_other_things_named(caplog):
    def build(make):
        return endless(0).for_each(lambda x: [make(x), make(x)]).flatten()

    plan = build(lambda x: SampleBatch({"x": [x]}))
    next(plan)
    again = build(lambda x: SampleBatch({"x": [x + 100]}))
    again.set_state(plan.get_state())
    assert [next(again)["x"][0] for _ in range(2)] == [0, 100]
    odd = build(lambda x: object())
    next(odd)
    with caplog.at_level(logging.WARNING):
        assert odd.get_state()["operators"]["flatten"] == {"held": {"listed": []}}
    assert "held by flatten" in caplog.text
