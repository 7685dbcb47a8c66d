"""What runs leave behind: nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headwater import PPOTrainer
from headwater.errors import EnvError
from tests.toy_envs import CounterEnv
from tests.trainers import SMALL


def test_fifty_trainers_leave_nothing_behind() -> None:
    import psutil

    process = psutil.Process()

    def build() -> None:
        with PPOTrainer({**SMALL, "tensorboard": True}, env="CartPole-v1") as trainer:
            trainer.train()
            trainer.save()

    build()
    before = (threading.active_count(), process.num_fds(), len(process.children(recursive=True)))
    for _ in range(50):
        build()
    after = (threading.active_count(), process.num_fds(), len(process.children(recursive=True)))
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def test_trainers_that_fail_or_use_processes_leave_nothing_behind() -> None:
    import multiprocessing
    import os

    import psutil

    process = psutil.Process()

    def build() -> None:
        settings = {**SMALL, "vectorization": "async", "num_envs_per_worker": 2, "env_hang_warn_s": 60.0}
        with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
            trainer.train()
            trainer.evaluate()
        with pytest.raises(EnvError):
            PPOTrainer.with_updates(validate_env=_refuse)(settings, env="CartPole-v1", logger_creator=False)
        trainer = PPOTrainer({**SMALL, "vectorization": "sync"}, env=lambda context: Failing(), logger_creator=False)
        with pytest.raises(EnvError):
            trainer.train()
        trainer.stop()

    def count() -> tuple[int, ...]:
        multiprocessing.active_children()  # reaps
        names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
        shared = sum(f"-{os.getpid()}-" in name for name in names)  # other processes have theirs
        return threading.active_count(), process.num_fds(), len(process.children(recursive=True)), shared

    build()
    before = count()
    for _ in range(5):
        build()
    after = count()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def _refuse(env: Any, context: Any) -> None:
    raise ValueError("no lava")


class Failing(CounterEnv):
    def step(self, action: Any) -> Any:
        raise OSError("gone")


@pytest.mark.slow
def test_memory_does_not_grow() -> None:
    import psutil

    process = psutil.Process()
    with PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False) as trainer:
        for _ in range(200):
            trainer.train()
        settled = process.memory_info().rss
        for _ in range(1800):
            trainer.train()
    assert process.memory_info().rss < 1.05 * settled
