"""RunLogger: everything that a run writes about itself, in one directory that it alone holds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.storage.files import AppendFile
from headwater.telemetry.results import ResultWriter
from headwater.telemetry.run_dir import RunLock, make_run_dir
from headwater.telemetry.tensorboard import TensorBoardWriter


class RunLogger:
    """Gives each result to the files of a run directory; what `Trainer`'s `logger_creator` returns.

    Attributes:
        run_dir: The directory: `params.json`, `env.json`, `result.jsonl`, `progress.csv`, `tb/`, `log.txt`.

    Example:
        >>> import tempfile
        >>> with RunLogger(tempfile.mkdtemp(), {"lr": 0.1}) as run:
        ...     run.on_result({"training_iteration": 1, "timesteps_total": 128, "episode_reward_mean": 20.5})
        >>> sorted(path.name for path in run.run_dir.iterdir() if not path.name.startswith("."))
        ['env.json', 'params.json', 'progress.csv', 'result.jsonl', 'tb']
    """

    def __init__(self, run_dir: str | Path, config: Any = None) -> None:
        """Take a directory, which is made if need be; an earlier run's files in it are continued.

        Args:
            run_dir: The run's directory.
            config: A config object, or a mapping; its `tensorboard` says whether `tb/` is written, its
                `tensorboard_tags` by which names, see `TensorBoardWriter`.

        Raises:
            HeadwaterError: Another run has the directory.
            ConfigError: It cannot be written to.
        """
        self.run_dir = Path(run_dir)
        settings = {} if config is None else config
        tags = settings.get("tensorboard_tags", "rllib")
        wanted = settings.get("tensorboard", True)
        self._tensorboard = TensorBoardWriter(self.run_dir / "tb", tags) if wanted else None
        self._lock = RunLock(self.run_dir)
        self._log = _LogFile(self.run_dir / "log.txt")
        logging.getLogger("headwater").addHandler(self._log)
        self._results = ResultWriter(self.run_dir, config)

    @property
    def num_write_errors(self) -> int:
        """How many writes failed."""
        return self._results.num_write_errors + (self._tensorboard.num_write_errors if self._tensorboard else 0)

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Write one result everywhere."""
        self._results.on_result(result)
        if self._tensorboard is not None:
            self._tensorboard.on_result(result)

    def on_restore(self, training_iteration: int, timesteps_total: int) -> None:
        """Say that the run goes on from a checkpoint, so that what was written after it is dropped."""
        self._results.on_restore(training_iteration)
        if self._tensorboard is not None:
            self._tensorboard.on_restore(timesteps_total)

    def close(self) -> None:
        """Close the files and let go of the directory. May be called twice."""
        self._results.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        logging.getLogger("headwater").removeHandler(self._log)
        self._log.close()
        self._lock.release()

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_run(config: Any, algo: str, env_id: str, seed: int | None) -> RunLogger:
    """Make a run directory under `config["local_dir"]` and log to it.

    Raises:
        ConfigError: It cannot be made there.
    """
    return RunLogger(make_run_dir(config["local_dir"], algo, env_id, seed), config)


class _LogFile(logging.Handler):
    """The messages of the library during a run; a full disk costs messages, and no traceback each.

    Where nobody has set up logging, Python shows warnings on standard error, but only as long as there is no handler
    at all: this one passes them on, so that a run is no more silent for having a file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._file = AppendFile(path)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._file.append(self.format(record).encode(errors="backslashreplace") + b"\n")
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_the_only_kind(record.name):
            last.handle(record)

    def _is_the_only_kind(self, name: str) -> bool:
        """Whether no handler but files of runs hears the logger `name`; of several runs' the first may say so."""
        handlers: list[logging.Handler] = []
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            handlers += logger.handlers
            logger = logger.parent if logger.propagate else None
        return handlers[:1] == [self] and all(isinstance(handler, _LogFile) for handler in handlers)

    def close(self) -> None:
        self._file.close()
        super().close()
