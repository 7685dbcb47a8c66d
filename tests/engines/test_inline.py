import pytest

from headwater.engines import Engine, InlineEngine


class Worker:
    def __init__(self, value):
        self.value = value

    def add(self, x, *, scale=1):
        return self.value + x * scale

    def fail(self):
        raise ValueError(f"worker {self.value} failed")


def test_gather_calls_all_in_order():
    engine = InlineEngine()
    assert isinstance(engine, Engine) and engine.name == "inline"
    shared = engine.put(10)
    assert engine.gather([Worker(1), Worker(2)], "add", shared, scale=2) == [21, 22]
    assert engine.gather([], "add", shared) == []


def test_errors_come_out_where_the_result_is_asked_for():
    engine = InlineEngine()
    calls = [engine.submit(Worker(1), "fail"), engine.submit(Worker(2), "add", 1)]
    assert engine.wait(calls, timeout_s=0) == calls and engine.get(calls[1]) == 3
    with pytest.raises(ValueError, match="worker 1 failed"):
        engine.get(calls[0])
