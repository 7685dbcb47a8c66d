"""Run directories as the command line sees them: where the checkpoint is, how to open it, what to tell at the end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from headwater.cli.output import warn
from headwater.errors import CheckpointError

_STOP_FILE = "stop.json"


def find_checkpoint(path: Path, best: bool = False) -> Path:
    """The checkpoint that `path` means: itself, or the latest (or best) of the run directory `path`.

    Raises:
        CheckpointError: there is none.
    """
    if not path.exists():
        raise CheckpointError(f"There is no checkpoint or run directory at {path}.")
    if is_checkpoint(path):
        return path
    if not (path / "checkpoints").is_dir():
        raise CheckpointError(
            f"{path} has no checkpoint: it is neither one (no checkpoint.json) nor the directory of a run that has "
            "saved one (no checkpoints/)."
        )
    found = _best_checkpoint(path) if best else latest_checkpoint(path)
    if found is None:
        raise CheckpointError(f"{path} has no {'best' if best else 'complete'} checkpoint: none was saved whole yet.")
    return found


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint's own directory."""
    return (path / "checkpoint.json").exists()


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The newest checkpoint of a run that is whole.

    Raises:
        CheckpointError: there are some, and every one is damaged.
    """
    from headwater.checkpoint import CheckpointManager

    return CheckpointManager(run_dir / "checkpoints").latest()


def _best_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint that the run itself called its best, by its own metric."""
    from headwater.checkpoint import BEST_NAME

    try:
        name = json.loads((run_dir / "checkpoints" / BEST_NAME).read_text(encoding="utf-8"))["checkpoint"]
        path = run_dir / "checkpoints" / Path(name).name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if is_checkpoint(path) else None


def open_for_evaluation(path: Path, overrides: dict[str, Any], trust: bool) -> Any:
    """A Trainer restored from the checkpoint at `path` that writes no run directory."""
    from headwater.trainer import Trainer

    return Trainer.from_checkpoint(path, config=overrides, logger_creator=False, trust=trust)


def open_to_resume(run_dir: Path, checkpoint: Path, overrides: dict[str, Any], trust: bool) -> Any:
    """A Trainer restored from a run's checkpoint that goes on in the run's own directory.

    Results that were written after the checkpoint are dropped: they are made again.
    """
    from headwater.telemetry import RunLogger
    from headwater.trainer import Trainer

    runs: list[RunLogger] = []

    def continue_run(config: Any) -> RunLogger:
        runs.append(RunLogger(run_dir, config))
        return runs[-1]

    trainer = Trainer.from_checkpoint(checkpoint, config=overrides, logger_creator=continue_run, trust=trust)
    try:
        assert trainer.logdir == str(run_dir)  # takes the directory now: another process may have it
        timesteps = trainer.train_exec_impl.shared_metrics.counters["num_steps_sampled"]
        runs[0].on_restore(trainer.iteration, timesteps)
    except BaseException:
        trainer.stop()
        raise
    return trainer


def last_result(run_dir: Path) -> dict[str, Any] | None:
    """The last row of a run's results; NaN is None in it."""
    from headwater.telemetry import read_results

    try:
        results = read_results(run_dir)
    except OSError:
        return None
    return results[-1] if results else None


def save_stop(run_dir: Path, bounds: dict[str, float]) -> None:
    """Keep the stop criteria beside the results, for `--resume`; a disk that is full costs only that."""
    from headwater.storage.files import replace_file

    try:
        replace_file(run_dir / _STOP_FILE, json.dumps(bounds, indent=2).encode() + b"\n")
    except OSError as error:
        warn(f"headwater: {run_dir / _STOP_FILE} cannot be written ({error.strerror}); training goes on.")


def load_stop(run_dir: Path) -> dict[str, Any]:
    """The stop criteria that the run was started with; none if it was not started by the command line."""
    try:
        bounds = json.loads((run_dir / _STOP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return bounds if isinstance(bounds, dict) else {}


def next_steps(run_dir: Path, checkpoint: Path | None, more_timesteps: int | None = None) -> str:
    """Where the files are, and the commands that evaluate, record and resume, ready to be pasted.

    Args:
        more_timesteps: a bound for the resumed run, where it has reached the one that it had.
    """
    program, run = _program(), shlex.quote(str(run_dir))
    more = f" --stop-timesteps {more_timesteps}" if more_timesteps else ""
    rows = [
        ("Files", run),
        ("Checkpoint", shlex.quote(_short(str(checkpoint))) if checkpoint else "none was saved"),
        ("Evaluate", f"{program} evaluate {run} --episodes 20"),
        ("Record", f"{program} evaluate {run} --episodes 3 --record {shlex.quote(str(run_dir / 'videos'))}"),
        ("Resume", f"{program} train --resume {run}{more}"),
        ("Watch", f"{_beside('tensorboard')} --logdir {run}"),
    ]
    return "\n".join(f"{name + ':':<12}{text}" for name, text in (rows if checkpoint else rows[:2]))


def _program() -> str:
    """How this command was called: by a bare name where the shell finds it, else by its path."""
    called = sys.argv[0]
    if Path(called).name == "__main__.py":
        return f"{shlex.quote(_short(sys.executable))} -m headwater"
    found = shutil.which("headwater")
    if found and os.path.exists(called) and os.path.samefile(found, called):
        return "headwater"
    return shlex.quote(_short(called))


def _beside(name: str) -> str:
    """A program installed beside this Python, by path unless the shell finds it."""
    path = Path(sys.executable).with_name(name)
    return shlex.quote(_short(str(path))) if path.exists() and shutil.which(name) != str(path) else name


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
