"""RayEngine, on a Ray of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.engines import WorkerLost
from headwater.engines.ray import RayEngine

pytestmark = pytest.mark.xdist_group("ray")


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def fail(self) -> None:
        raise ZeroDivisionError(f"at {self.count}")

    def wait(self) -> None:
        threading.Event().wait()

    def environment(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")


@pytest.fixture(scope="module")
def ray_before() -> Iterator[Any]:
    """A Ray that is there before the engine."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 1024 * 1024)
    yield ray
    ray.shutdown()


@pytest.fixture
def engine(ray_before: Any) -> Iterator[RayEngine]:
    made = RayEngine()
    yield made
    made.shutdown()
    assert ray_before.is_initialized(), "a Ray that was there stays"


def test_calls_of_one_worker_run_in_order_and_errors_are_its_own(engine: RayEngine) -> None:
    workers = [engine.create(Counter, start) for start in (0, 10)]
    assert engine.gather(workers, "add", 1) == [1, 11]
    assert engine.gather(workers, "add", engine.put(5)) == [6, 16], "what was put arrives as itself"
    handles = [engine.submit(workers[0], "add", 1) for _ in range(3)]
    assert [engine.get(handle) for handle in handles] == [7, 8, 9]
    with pytest.raises(ZeroDivisionError, match="at 16"):
        engine.get(engine.submit(workers[1], "fail"))
    assert engine.get(engine.submit(workers[1], "environment")) == "1"
    slow, quick = engine.submit(workers[0], "wait"), engine.submit(workers[1], "add", 0)
    assert engine.wait([slow, quick]) == [quick]
    assert engine.wait([slow], timeout_s=0.01) == [] and engine.wait([]) == []
    for worker in workers:
        engine.stop(worker)
        engine.stop(worker)
    with pytest.raises(WorkerLost, match="has ended"):
        engine.get(slow)


def test_a_killed_worker_is_lost(engine: RayEngine) -> None:
    worker = engine.create(Counter, 0)
    pid = engine.pid(worker)
    assert pid != os.getpid()
    call = engine.submit(worker, "wait")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        engine.get(call)
    with pytest.raises(WorkerLost):
        engine.pid(worker)


def test_ray_ends_with_its_last_engine(ray_before: Any) -> None:
    ray_before.shutdown()
    engines = [RayEngine(init_args={"num_cpus": 1}) for _ in range(2)]
    for each in engines:
        each.start()
        each.start()
    engines[0].shutdown()
    engines[0].shutdown()
    assert ray_before.is_initialized()
    engines[1].shutdown()
    assert not ray_before.is_initialized()
