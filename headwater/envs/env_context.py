"""EnvContext: what an env creator is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EnvContext(dict[str, Any]):
    """The `env_config` of a run, as a dict, and where the env that is being made will stand.

    An env creator takes one: the items are the user's own settings, the attributes say which worker and which of its
    sub-envs the env is for, e.g. to open a port of its own or to read a shard of its own.

    Attributes:
        worker_index: 0 for the worker in the driver's process, from 1 for remote ones.
        vector_index: the sub-env's index among those of its worker, from 0.
        num_workers: how many remote workers the run has.
        remote: whether the env is made in a process of its own.

    Example:
        >>> context = EnvContext({"level": 3}, worker_index=2)
        >>> context["level"], context.worker_index, context.copy_with(vector_index=5).vector_index
        (3, 2, 5)
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool = False,
        num_envs: int = 1,
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote
        self.num_envs = num_envs

    def copy_with(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        num_workers: int | None = None,
        remote: bool | None = None,
    ) -> EnvContext:
        """Return a copy in which what is given replaces what was there; `None` keeps it."""
        return EnvContext(
            self if env_config is None else env_config,
            self.worker_index if worker_index is None else worker_index,
            self.vector_index if vector_index is None else vector_index,
            self.num_workers if num_workers is None else num_workers,
            self.remote if remote is None else remote,
            self.num_envs,
        )

    def __repr__(self) -> str:
        return (
            f"EnvContext({dict(self)!r}, worker_index={self.worker_index}, vector_index={self.vector_index}, "
            f"num_workers={self.num_workers}, remote={self.remote})"
        )
