"""What all of `headwater.offline` shares: its errors, and what a user's own reader or writer is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.data.sample_batch import Batch
from headwater.envs.space_json import as_space
from headwater.errors import HeadwaterError


class OfflineError(HeadwaterError, RuntimeError):
    """Experience files are missing, damaged or foreign, or do not fit the policy that is to learn from them."""


class EndOfInput(OfflineError):
    """A reader that was told how often to read its files has done so."""


@dataclass
class IOContext:
    """Where a reader or writer stands; what a callable given as `input` or `output` is called with.

    Attributes:
        config: of the run.
        worker_index: 0 for the worker in the driver's process, from 1 for remote ones.
        num_workers: remote workers of the run.
        log_dir: the run's directory; None without one.
        settings: the run's `input_config` or `output_config`.
        sampler: gives the next batch of the worker's own env; None where there is none.

    Example:
        >>> context = IOContext(worker_index=2, num_workers=4)
        >>> context.shard, context.num_shards
        (1, 4)
    """

    config: Any = None
    worker_index: int = 0
    num_workers: int = 0
    log_dir: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampler: Callable[[], Batch] | None = None

    @property
    def observation_space(self) -> Any:
        """The setting of that name."""
        return None if self.config is None else as_space(self.config["observation_space"])

    @property
    def action_space(self) -> Any:
        """The setting of that name."""
        return None if self.config is None else as_space(self.config["action_space"])

    @property
    def shard(self) -> int:
        """Which part of the files this worker reads."""
        return max(0, self.worker_index - 1)

    @property
    def num_shards(self) -> int:
        """The parts that there are; the driver's own worker reads all beside remote ones that share them."""
        return max(1, self.num_workers) if self.worker_index else 1
