"""Training that client processes drive, and what becomes of it when processes are killed."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server_process import make_trainer

ROOT = Path(__file__).parent.parent.parent


class Process:
    """A python module as a process, whose lines can be waited for."""

    def __init__(self, module: str, *args: Any) -> None:
        command = [sys.executable, "-m", f"tests.serving.{module}", *map(str, args)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def wait_for(self, *texts: str) -> str:
        while True:
            line = self.lines.get(timeout=60)
            if line in texts or not texts:
                return line

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(*args: Any) -> Process:
        made.append(Process(*args))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.kill()


def server_of(trainer: Any) -> Any:
    return trainer.workers.local_worker().env.external_env


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_a_client_process_has_cartpole_learned(spawn: Any, made: list[Any], mode: str) -> None:
    trainer = make_trainer()
    made.append(trainer)
    spawn("client_process", f"http://127.0.0.1:{server_of(trainer).port}", mode)
    for _ in range(100):
        result = trainer.train()
        if result["episode_reward_mean"] >= 150:
            break
    assert result["episode_reward_mean"] >= 150


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_a_killed_client_is_replaced(spawn: Any, made: list[Any], mode: str) -> None:
    trainer = make_trainer(client_timeout_s=1.0)
    made.append(trainer)
    server = server_of(trainer)
    address = f"http://127.0.0.1:{server.port}"
    first = spawn("client_process", address, mode)
    trainer.train()
    first.kill()
    second = spawn("client_process", address, mode)
    before = trainer.train()["timesteps_total"]
    assert trainer.train()["timesteps_total"] >= before + 512
    served = server.episodes
    for _ in range(20):  # within a second of sampling the dead client's episode is gone
        if served._num_running <= 1:
            break
        trainer.train()
    assert served._num_running <= 1
    second.wait_for("ended")


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_a_killed_server_is_rejoined(spawn: Any, mode: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = spawn("server_process", port)
    client = spawn("client_process", f"http://127.0.0.1:{port}", mode)
    server.wait_for()
    server.kill()
    again = spawn("server_process", port)
    assert int(again.wait_for()) >= 512
    assert int(again.wait_for()) >= 1024
    assert client.process.poll() is None
    client.wait_for("ended")
