"""Checkpoints: saved whole or not at all, read without trusting them, kept by number and by metric.

`storage/checkpoint_files.py` says what a checkpoint is and writes it, `storage/checkpoint_reader.py` reads it; this
file is the door to both, and keeps the checkpoints of a run.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headwater.errors import CheckpointError
from headwater.storage.checkpoint_files import (
    checkpoint_name,
    clean_stale_temporaries,
    remove_checkpoint,
    save_checkpoint,
)
from headwater.storage.checkpoint_reader import load_checkpoint, read_checkpoint_meta, verify_checkpoint
from headwater.storage.files import replace_file
from headwater.storage.nested_keys import look_up

__all__ = [
    "BEST_NAME",
    "Checkpoint",
    "CheckpointManager",
    "checkpoint_name",
    "clean_stale_temporaries",
    "load_checkpoint",
    "read_checkpoint_meta",
    "remove_checkpoint",
    "save_checkpoint",
    "verify_checkpoint",
]

BEST_NAME = "best.json"

_NAME = re.compile(r"checkpoint_(\d{6,})")
_logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """One checkpoint of a run; `score` is NaN where it has none.

    `number` counts the saves of the run. It says which is newer where a run went back to an earlier iteration and went
    on from there; clocks would not.
    """

    iteration: int
    score: float
    path: Path
    number: int = 0


class CheckpointManager:
    """Keeps the newest checkpoints of a run, and the best one by a metric.

    The directories are the record: a manager made for the directory of an earlier process knows what is there, and
    first cleans up what a killed process of ours left half done. `best.json` names the best for other readers.

    Attributes:
        num_failed: How many saves failed.

    Example:
        >>> import tempfile
        >>> manager = CheckpointManager(tempfile.mkdtemp(), keep_num=2)
        >>> for iteration, reward in enumerate([9.0, 1.0, 2.0, 3.0]):
        ...     path = manager.save({}, {"algorithm": "PPO"}, iteration, {"episode_reward_mean": reward})
        >>> [checkpoint.iteration for checkpoint in manager.checkpoints()], manager.latest().name
        ([0, 2, 3], 'checkpoint_000003')
        >>> manager.best().name
        'checkpoint_000000'
    """

    def __init__(
        self,
        root: str | Path,
        keep_num: int | None = 5,
        score_attr: str = "episode_reward_mean",
        score_order: str = "max",
    ) -> None:
        """Open the directory of checkpoints; it is made at the first save.

        Args:
            root: The directory, e.g. `run/checkpoints`.
            keep_num: How many of the newest are kept; the best is kept beside them. None keeps all.
            score_attr: Result key of the metric, nested keys joined by "/", e.g. `evaluation/episode_reward_mean`.
                A leading "min-" means that less is better.
            score_order: "max" or "min".
        """
        if keep_num is not None and keep_num < 1:
            raise ValueError(f"keep_num is how many checkpoints are kept: at least 1, or None for all; got {keep_num}.")
        if score_order not in ("max", "min"):
            raise ValueError(f"score_order is 'max' or 'min', got {score_order!r}.")
        self.root = Path(root)
        self.keep_num = keep_num
        self.score_attr = score_attr.removeprefix("min-")
        self.score_order = "min" if score_attr.startswith("min-") else score_order
        self.num_failed = 0
        self._checkpoints: dict[int, Checkpoint] = {}
        if self.root.is_dir():
            for path in clean_stale_temporaries(self.root):
                _logger.info("Cleaned up after a process that was killed: %s", path)
            self._scan()

    def save(
        self,
        state: Mapping[str, Any],
        meta: Mapping[str, Any],
        iteration: int,
        result: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of an iteration, then remove those that are no longer kept.

        Args:
            state: The state tree.
            meta: As for `save_checkpoint`; `iteration`, `score` and `save_number` are added.
            iteration: Its number, which names it.
            result: The iteration's result, which has the score.
            score: The score itself, where there is no result.

        Raises:
            CheckpointError: It could not be written; the earlier ones are intact.
        """
        score = look_up(result or {}, self.score_attr) if score is None else score
        number = 1 + max((checkpoint.number for checkpoint in self._checkpoints.values()), default=0)
        named = {"iteration": iteration, "score": {"attr": self.score_attr, "value": score}, "save_number": number}
        meta = {**meta, **named}
        try:
            path = save_checkpoint(self.root / checkpoint_name(iteration), state, meta)
        except CheckpointError:
            self.num_failed += 1
            raise
        self._checkpoints[iteration] = Checkpoint(iteration, score, path, number)
        self._prune()
        return path

    def checkpoints(self) -> list[Checkpoint]:
        """Return what is kept, oldest first; damaged ones are among them."""
        return sorted(self._checkpoints.values(), key=_age)

    def latest(self) -> Path | None:
        """Return the newest checkpoint that is whole, or None if there is none at all.

        A damaged one is passed over with a warning.

        Raises:
            CheckpointError: There are some, and every one is damaged.
        """
        failures = []
        for checkpoint in reversed(self.checkpoints()):
            try:
                verify_checkpoint(checkpoint.path)
                return checkpoint.path
            except CheckpointError as error:
                _logger.warning("Falling back to an earlier checkpoint. %s", error)
                failures.append(str(error))
        if failures:
            raise CheckpointError("No checkpoint of the run can be loaded:\n" + "\n".join(failures))
        return None

    def load_latest(self, expected_algorithm: str | None = None) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """Load the newest checkpoint that is whole: `(path, state, meta)`.

        Raises:
            CheckpointError: There is none, or it is of another algorithm.
        """
        path = self.latest()
        if path is None:
            raise CheckpointError(f"There is no checkpoint in {self.root}. Start the run anew.")
        return path, *load_checkpoint(path, expected_algorithm)

    def best(self) -> Path | None:
        """Return the checkpoint with the best score, the newest of equals; None if none has a score."""
        best = self._find_best()
        return None if best is None else best.path

    def _find_best(self) -> Checkpoint | None:
        sign = 1.0 if self.score_order == "max" else -1.0
        scored = [checkpoint for checkpoint in self._checkpoints.values() if not math.isnan(checkpoint.score)]
        return max(scored, key=lambda checkpoint: (sign * checkpoint.score, _age(checkpoint)), default=None)

    def _prune(self) -> None:
        best = self._find_best()
        surplus = self.checkpoints()[: -self.keep_num] if self.keep_num is not None else []
        try:
            if best is not None:  # named before another one goes, so that the name never points nowhere
                replace_file(self.root / BEST_NAME, _describe_best(best, self.score_attr))
            for checkpoint in surplus:
                if checkpoint is not best:
                    remove_checkpoint(checkpoint.path)
                    del self._checkpoints[checkpoint.iteration]
        except OSError as error:
            _logger.warning("Old checkpoints in %s could not be tidied: %s", self.root, error)

    def _scan(self) -> None:
        matches = {path: _NAME.fullmatch(path.name) for path in self.root.iterdir() if path.is_dir()}
        number = 0
        for iteration, path in sorted((int(match[1]), path) for path, match in matches.items() if match):
            score, saved_number = self._read_score_and_number(path)
            number = number if saved_number is None else saved_number
            self._checkpoints[iteration] = Checkpoint(iteration, score, path, number)

    def _read_score_and_number(self, path: Path) -> tuple[float, int | None]:
        try:
            meta = read_checkpoint_meta(path)
        except CheckpointError:
            return math.nan, None  # `latest` says what is wrong with it, if it is asked for
        score, number = meta.get("score"), meta.get("save_number")
        value = score.get("value") if isinstance(score, dict) and score.get("attr") == self.score_attr else None
        return value if isinstance(value, float) else math.nan, number if isinstance(number, int) else None


def _age(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.number, checkpoint.iteration


def _describe_best(best: Checkpoint, attr: str) -> bytes:
    value = best.score if math.isfinite(best.score) else str(best.score)
    entry = {"checkpoint": best.path.name, "iteration": best.iteration, "metric": attr, "score": value}
    return (json.dumps(entry, indent=1) + "\n").encode()
