import queue
import threading
import time

import pytest

from headwater.errors import TrainingError
from headwater.execution import Concurrently, Dequeue, Enqueue, LocalIterator, PlanError

items = LocalIterator.from_items


def test_round_robin_and_outputs():
    assert list(Concurrently([items([1, 2]), items([5, 6, 7])])) == [1, 5, 2, 6, 7]
    assert "".join(Concurrently([items("aa"), items("bbbb")], round_robin_weights=[1, 2])) == "abbabb"
    ran = []
    first = items([1, 2, 3]).for_each(lambda x: ran.append(x))
    only_second = Concurrently([first, items([5, 6])], output_indexes=[1])
    assert list(only_second) == [5, 6] and ran[:2] == [1, 2]
    assert sorted(Concurrently([items([1]), items([2])], output_indexes=[])) == [1, 2]


def test_an_endless_side_branch_does_not_keep_a_finished_plan_alive():
    endless = LocalIterator(lambda: iter(int, 1))
    assert list(Concurrently([endless, items([1, 2])], output_indexes=[1])) == [1, 2]


def test_async_takes_what_is_ready():
    lines = queue.Queue()
    both = Concurrently([Dequeue(lines), items([1, 2, 3])], mode="async")
    assert both.take(2) == [1, 2]
    lines.put("from the queue")
    assert sorted(map(str, both.take(2))) == ["3", "from the queue"]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"mode": "parallel"}, "'parallel'"),
        ({"mode": "async", "round_robin_weights": [1, 1]}, "only in mode"),
        ({"round_robin_weights": ["*", "*"]}, "is a number"),
        ({"round_robin_weights": [1]}, "1 weights for 2"),
        ({"output_indexes": [2]}, "no chain 2"),
        ({"output_indexes": [-1]}, "no chain -1"),
    ],
)
def test_concurrently_refusals(kwargs, words):
    with pytest.raises(ValueError, match=words):
        Concurrently([items([1]), items([2])], **kwargs)


def test_concurrently_needs_two_chains():
    with pytest.raises(ValueError, match="two or more chains; got 1"):
        Concurrently([items([1])])
    with pytest.raises(ValueError, match="got a list"):
        Concurrently([items([1]), [2]])


def test_a_full_queue_holds_the_item_and_lets_the_rest_go_on():
    line = queue.Queue(maxsize=1)
    enqueue, dequeue = items([1, 2, 3]).for_each(Enqueue(line)), Dequeue(line)
    assert Concurrently([enqueue, dequeue], output_indexes=[1], round_robin_weights=["*", 1]).take(3) == [1, 2, 3]


def test_items_cross_threads():
    line = queue.Queue(maxsize=2)

    def fill():
        for i in range(5):
            line.put(i)
            time.sleep(0.001)

    thread = threading.Thread(target=fill)
    thread.start()
    assert Dequeue(line).for_each(lambda x: x * x).take(5) == [0, 1, 4, 9, 16]
    thread.join()


def test_a_dead_filler_ends_the_plan_with_an_error():
    dead = Dequeue(queue.Queue(), check=lambda: False)
    with pytest.raises(TrainingError, match="has stopped") as caught:
        next(dead)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("build", [lambda: Enqueue([]), lambda: Dequeue(None)])
def test_queues_must_be_queues(build):
    with pytest.raises(PlanError, match="needs a queue.Queue"):
        build()
