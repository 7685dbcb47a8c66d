"""Engine: where workers run. Plans call workers through it, and so do not know whether these share their process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from headwater.errors import HeadwaterError


class WorkerLost(HeadwaterError, RuntimeError):
    """A worker's process ended, or what it answered is lost."""


class Engine(ABC):
    """Calls methods of workers, at once or as handles to wait for.

    A call's handle is hashable and means nothing to anyone but its engine. Results come in the order of the workers,
    whichever finishes first.
    """

    name: str

    @abstractmethod
    def submit(self, worker: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Start `worker.method(*args, **kwargs)`; calls of one worker run in the order submitted."""

    @abstractmethod
    def wait(self, handles: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """Those of `handles` that are done, as soon as there is one, or after `timeout_s` (None: however long)."""

    @abstractmethod
    def get(self, handle: Any) -> Any:
        """The call's result, once it is there; raises what the call raised."""

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Store a value once for many calls: passed as an argument, the method receives the value itself."""

    def gather(self, workers: Sequence[Any], method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of all workers, concurrently where they run apart; their results in the workers' order."""
        return [self.get(handle) for handle in [self.submit(worker, method, *args, **kwargs) for worker in workers]]
