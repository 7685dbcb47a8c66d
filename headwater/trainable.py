"""Trainable: a run as a sequence of iterations, with its results, run directory, checkpoints and end.

Trainer adds what an iteration consists of; this is what surrounds it:

    train() = step() -> after_step() -> callbacks -> result files -> checkpoint
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from headwater.checkpoint import CheckpointManager, save_checkpoint
from headwater.config import TrainerConfig
from headwater.errors import CheckpointError, TrainingError
from headwater.storage.nested_keys import look_up
from headwater.telemetry import RunLogger, open_run

logger = logging.getLogger(__name__)

LoggerCreator = Callable[[TrainerConfig], RunLogger]


class Trainable(ABC):
    """Iterations, one after another, each with a result; saved and gone on with at any of them.

    Args:
        logger_creator: config -> `RunLogger`; None: a run directory under `config["local_dir"]`, made when the first
            result or checkpoint is written; False: nothing is written but checkpoints saved to a given place.

    Attributes:
        iteration: iterations of the run so far, resumed or not.
    """

    _name: ClassVar[str]
    config: TrainerConfig
    callbacks: Any
    seed: int

    def __init__(self, logger_creator: LoggerCreator | bool | None = None) -> None:
        self.iteration = 0
        self._logger_creator = logger_creator
        self._logger: RunLogger | None = None
        self._checkpoints: CheckpointManager | None = None
        self._experiment_id = uuid.uuid4().hex
        self._time_total_s = self._time_since_restore_s = 0.0
        self._iterations_since_restore = 0
        self._timesteps_at_restore = 0
        self._last_result: dict[str, Any] = {}
        self._score = math.nan  # of the present iteration, by checkpoint_score_attr
        self._stopped = False

    # What a subclass gives.

    @property
    @abstractmethod
    def env_id(self) -> str:
        """The id of the env, for messages and names."""

    @abstractmethod
    def step(self) -> dict[str, Any]:
        """One result of the algorithm, without what `train` adds."""

    @abstractmethod
    def after_step(self, result: dict[str, Any]) -> None:
        """What an iteration does after its step; may add to the result."""

    @abstractmethod
    def after_checkpoint(self) -> None:
        """What happens once a checkpoint is written."""

    @abstractmethod
    def cleanup(self) -> None:
        """Stop whatever was started."""

    @abstractmethod
    def load_checkpoint(self, checkpoint_path: str | Path) -> None:
        """See `restore`."""

    @abstractmethod
    def checkpoint_meta(self) -> dict[str, Any]:
        """What a checkpoint says of itself beside the state: algorithm, config, spaces."""

    @abstractmethod
    def state_to_save(self) -> dict[str, Any]:
        """The whole state; raises a CheckpointError where it is not worth keeping."""

    @abstractmethod
    def __getstate__(self) -> dict[str, Any]:
        """The whole state, as arrays and JSON values."""

    @abstractmethod
    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Go on from a `__getstate__()`."""

    # Training.

    def train(self) -> dict[str, Any]:
        """One iteration; returns its result, see docs/results.md.

        Raises:
            EnvError: an env failed, see `on_env_error`.
            TrainingError: updates stay non-finite; the policy keeps its last good weights.
        """
        self._refuse_if_stopped()
        start = time.monotonic()
        result = self.step()
        self.iteration += 1
        self.after_step(result)
        self._describe(result, time.monotonic() - start)
        self.callbacks.on_train_result(trainer=self, result=result)
        self._last_result = result
        self._score = look_up(result, self.config.checkpoint_score()[0])
        if (run := self._run()) is not None:
            run.on_result(result)
        frequency = self.config.checkpoint_freq
        if frequency and self.iteration % frequency == 0:
            self._save_in_passing()
        return result

    def _describe(self, result: dict[str, Any], time_this_iter_s: float) -> None:
        self._iterations_since_restore += 1
        self._time_total_s += time_this_iter_s
        self._time_since_restore_s += time_this_iter_s
        now, timesteps = time.time(), result["timesteps_total"]
        result.update(
            done=False,
            training_iteration=self.iteration,
            timesteps_this_iter=timesteps - self._last_result.get("timesteps_total", self._timesteps_at_restore),
            experiment_id=self._experiment_id,
            date=datetime.fromtimestamp(now).strftime("%Y-%m-%d_%H-%M-%S"),
            timestamp=int(now),
            time_this_iter_s=time_this_iter_s,
            time_total_s=self._time_total_s,
            time_since_restore=self._time_since_restore_s,
            timesteps_since_restore=timesteps - self._timesteps_at_restore,
            iterations_since_restore=self._iterations_since_restore,
            pid=os.getpid(),
            hostname=_hostname(),
            config=self.config,
        )
        if self.config.log_sys_usage:
            result["perf"] = _system_usage()

    # Saving and restoring.

    def save(self, checkpoint_dir: str | Path | None = None) -> str:
        """Save a checkpoint; returns its path.

        Args:
            checkpoint_dir: where `checkpoint_000012/` is written; None: `checkpoints/` of the run directory, where old
                ones are removed as `keep_checkpoints_num` says.

        Raises:
            CheckpointError: it could not be written, or the weights are not finite; earlier ones are intact.
        """
        if checkpoint_dir is not None:
            return self.save_checkpoint(checkpoint_dir)
        manager = self._manager()
        path = manager.save(self.state_to_save(), self.checkpoint_meta(), self.iteration, score=self._score)
        self.after_checkpoint()
        return str(path)

    def save_checkpoint(self, checkpoint_dir: str | Path) -> str:
        """Write the whole state to `checkpoint_dir/checkpoint_<iteration>`; returns that path."""
        path = Path(checkpoint_dir) / f"checkpoint_{self.iteration:06d}"
        saved = save_checkpoint(path, self.state_to_save(), {**self.checkpoint_meta(), "iteration": self.iteration})
        self.after_checkpoint()
        return str(saved)

    def _save_in_passing(self) -> None:
        """A periodic save that fails costs a warning, not the run."""
        try:
            self.save()
        except CheckpointError as error:
            logger.warning("Iteration %d could not be saved; training goes on: %s", self.iteration, error)

    def restore(self, checkpoint_path: str | Path) -> None:
        """Go on from a checkpoint of the same algorithm and spaces.

        Raises:
            CheckpointError: it is damaged, foreign, or does not fit; this trainer is then as it was.
        """
        self.load_checkpoint(checkpoint_path)

    def save_to_object(self) -> dict[str, Any]:
        """The whole state, in memory."""
        return self.__getstate__()

    def restore_from_object(self, state: Mapping[str, Any]) -> None:
        """Go on from a `save_to_object()`; after an error the trainer is as it was, but for episodes that restart."""
        before = self.__getstate__()
        try:
            self.__setstate__(state)
        except BaseException:
            self.__setstate__(before)
            raise

    def _get_run_state(self) -> dict[str, Any]:
        """The part of the state that is the run's, whatever is trained."""
        return {
            "iteration": self.iteration,
            "experiment_id": self._experiment_id,
            "time_total_s": self._time_total_s,
            "score": {"attr": self.config.checkpoint_score()[0], "value": self._score},
        }

    def _set_run_state(self, state: Mapping[str, Any], timesteps_total: int) -> None:
        self.iteration = state["iteration"]
        self._experiment_id = state["experiment_id"]
        self._time_total_s = state["time_total_s"]
        self._time_since_restore_s, self._iterations_since_restore = 0.0, 0
        self._timesteps_at_restore = timesteps_total
        self._last_result = {}
        score = state.get("score", {})
        self._score = score["value"] if score.get("attr") == self.config.checkpoint_score()[0] else math.nan
        if self._logger is not None or callable(self._logger_creator):
            self._run().on_restore(self.iteration, timesteps_total)  # type: ignore[union-attr]

    # The run directory.

    @property
    def logdir(self) -> str | None:
        """The run directory; None where nothing is logged."""
        run = self._run()
        return None if run is None else str(run.run_dir)

    def _run(self) -> RunLogger | None:
        if self._logger is None and self._logger_creator is not False:
            if callable(self._logger_creator):
                self._logger = self._logger_creator(self.config)
            else:
                self._logger = open_run(self.config, self._name, self.env_id, self.seed)
        return self._logger

    def _manager(self) -> CheckpointManager:
        if self._checkpoints is None:
            run = self._run()
            if run is None:
                raise CheckpointError(
                    "This trainer has no run directory (logger_creator=False): give save() a directory."
                )
            attr, order = self.config.checkpoint_score()
            self._checkpoints = CheckpointManager(
                run.run_dir / "checkpoints", self.config.keep_checkpoints_num, attr, order
            )
        return self._checkpoints

    # The end.

    def stop(self) -> None:
        """Close envs and files. May be called twice."""
        self._stopped = True
        self.cleanup()
        if self._logger is not None:
            self._logger.close()

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise TrainingError(
                "This trainer was stopped: its envs are closed. Make another one, or go on from its checkpoint with "
                "Trainer.from_checkpoint(path)."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _hostname() -> str:
    return socket.gethostname()


def _system_usage() -> dict[str, float]:
    import psutil

    return {"cpu_util_percent": psutil.cpu_percent(), "ram_util_percent": psutil.virtual_memory().percent}
