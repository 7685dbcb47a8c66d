"""RayEngine: workers that are Ray actors, on this machine or a cluster. The only file that imports ray."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.engines.base import Engine, WorkerLost
from headwater.errors import require

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_users = 0  # engines that are started
_is_ours = False  # Ray was not there before the first of them


class _Host:
    """The actor: holds what a factory made, and calls its methods."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self.held = factory(*args)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.held, method)(*args, **kwargs)

    def pid(self) -> int:
        return os.getpid()


class RayEngine(Engine):
    """Calls workers in processes of their own.

    Args:
        address: of a running cluster; None: RAY_ADDRESS, else a Ray of this machine, which ends with its last engine.
        init_args: further arguments of `ray.init`, where it is called.

    Raises:
        MissingExtraError: ray is not installed.
    """

    name = "ray"

    def __init__(self, address: str | None = None, init_args: Mapping[str, Any] | None = None) -> None:
        self._ray = require("ray", "ray")
        self._address = address
        self._init_args = dict(init_args or {})
        self._is_started = False

    def start(self) -> None:
        """Connect to Ray, or start it; nothing where that has happened. `create` does it by itself."""
        global _users, _is_ours
        with _lock:
            if self._is_started:
                return
            if not self._ray.is_initialized():
                given: dict[str, Any] = {
                    "include_dashboard": False,
                    "logging_level": logging.ERROR,
                    "log_to_driver": True,
                }
                self._ray.init(address=self._address or os.environ.get("RAY_ADDRESS"), **{**given, **self._init_args})
                _is_ours = True
            _users += 1
            self._is_started = True

    def shutdown(self) -> None:
        """Let go of Ray: it ends with the last engine, unless it was there before the first. May be called twice."""
        global _users, _is_ours
        with _lock:
            if not self._is_started:
                return
            self._is_started = False
            _users -= 1
            if not _users and _is_ours:
                _is_ours = False
                self._ray.shutdown()

    def create(
        self,
        factory: Callable[..., Any],
        *args: Any,
        num_cpus: float = 0,
        num_gpus: float = 0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        max_restarts: int = 0,
    ) -> Any:
        """A worker: what `factory(*args)` makes in a process of its own, as a handle for the engine's other methods.

        Args:
            factory: reaches the process by cloudpickle.
            num_cpus, num_gpus, memory, resources: what the process is given, as Ray counts it; memory in bytes.
            max_restarts: how often Ray itself may begin it anew.
        """
        self.start()
        options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": max_restarts}
        if memory:
            options["memory"] = memory
        if resources:
            options["resources"] = dict(resources)
        return self._ray.remote(_Host).options(**options).remote(factory, args)

    def stop(self, worker: Any) -> None:
        """End a worker's process at once, whatever it does; nothing where it has ended."""
        if self._ray.is_initialized():
            self._ray.kill(worker, no_restart=True)

    def pid(self, worker: Any) -> int:
        """The process of a worker.

        Raises:
            WorkerLost: it has ended.
        """
        return self.get(worker.pid.remote())

    def submit(self, worker: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return worker.call.remote(method, *args, **kwargs)

    def wait(self, handles: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        handles = list(handles)
        if not handles:
            return []
        first, _ = self._ray.wait(handles, num_returns=1, timeout=timeout_s)
        if not first:
            return []
        done, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        return done or first

    def get(self, handle: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayActorError as error:
            raise WorkerLost(f"A worker's process has ended: {_first_line(error)}") from error
        except (errors.ObjectLostError, errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            raise WorkerLost(f"A worker's answer is lost: {_first_line(error)}") from error

    def put(self, value: Any) -> Any:
        self.start()
        return self._ray.put(value)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
