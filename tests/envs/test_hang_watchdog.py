from __future__ import annotations

import gc
import logging
import threading
import time
from typing import Any

import numpy as np
import pytest

from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.hang_watchdog import HangWatchdog
from tests.envs.toys import FaultyEnv, make_config


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hang-watchdog")]


def slow(where: str, seconds: float) -> Any:
    def fault_that_sleeps(env: FaultyEnv, at: str) -> None:
        if at == where and env.t < 2:
            time.sleep(seconds)

    return fault_that_sleeps


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_hang_is_told_once_with_the_stack(where: str, caplog: pytest.LogCaptureFixture) -> None:
    makers = [FaultyEnv, lambda: FaultyEnv(slow(where, 0.6))]
    env = CopiesVectorEnv(lambda i: makers[i](), 2, "Slow-v0", make_config(env_hang_warn_s=0.1))
    with caplog.at_level(logging.WARNING):
        env.reset([1, 2])
        if where == "step":
            env.step(np.zeros(2, int))
    env.close()
    [record] = [r for r in caplog.records if "come back" in r.getMessage()]
    assert "Env 'Slow-v0' (sub-env 1)" in record.getMessage() and "0.1 s" in record.getMessage()
    assert "fault_that_sleeps" in record.getMessage() and "time.sleep(seconds)" in record.getMessage()


def test_a_quick_env_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    env = CopiesVectorEnv(lambda i: FaultyEnv(), 2, "Quick-v0", make_config(env_hang_warn_s=0.1))
    env.reset([1, 2])
    env.step(np.zeros(2, int))
    time.sleep(0.4)  # the learner's time is not the env's
    env.close()
    assert not caplog.records


def test_no_thread_is_left() -> None:
    for _ in range(3):
        env = CopiesVectorEnv(lambda i: FaultyEnv(), 1, "a", make_config(env_hang_warn_s=30))
        env.reset([1])
        assert watchdogs()
        env.close()
        env.close()
    assert not watchdogs()
    env = CopiesVectorEnv(lambda i: FaultyEnv(), 1, "b", make_config(env_hang_warn_s=30))
    env.reset([1])
    [thread] = watchdogs()
    del env  # forgotten rather than closed
    gc.collect()
    thread.join(5)
    assert not watchdogs()


def test_none_watches_nothing() -> None:
    watchdog = HangWatchdog("a", None)
    watchdog.start()
    assert not watchdogs()
    watchdog.close()
