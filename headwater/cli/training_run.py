"""One training by the command line: iterations until a bound or a signal, a last checkpoint, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.cli.output import say, warn
from headwater.cli.run_files import (
    find_checkpoint,
    is_checkpoint,
    last_result,
    latest_checkpoint,
    load_stop,
    next_steps,
    open_to_resume,
    save_stop,
)
from headwater.cli.run_request import RunRequest, merge_nested, read_request
from headwater.cli.signals import CLOSING_PATIENCE_S, OutOfPatience, StopSignals
from headwater.cli.stopping import StopCriteria
from headwater.errors import CheckpointError, ConfigError
from headwater.registry import ALGORITHMS, get_algorithm, get_config_class
from headwater.telemetry.progress import make_display


class TrainingRun:
    """A trainer still to be made, and the bounds at which it will be done.

    Args:
        make_trainer: makes it; called once the signals are caught, for it may take long.
        bounds: result key -> value that ends the run.

    Raises:
        ConfigError: a bound is no number.
    """

    def __init__(self, make_trainer: Callable[[], Any], bounds: dict[str, Any]) -> None:
        self._make_trainer = make_trainer
        self._bounds = StopCriteria(bounds).bounds

    @classmethod
    def new(cls, asked: RunRequest, file: Path | None) -> TrainingRun:
        """A run of its own, as `asked` on the command line over the settings in `file`.

        Raises:
            ConfigError: no algorithm or no env is named, or the file cannot be used.
        """
        env = asked.env or asked.config.pop("env", None)
        in_file = RunRequest() if file is None else read_request(file, env, _names_of_settings())
        algorithm = asked.algorithm or in_file.algorithm
        if algorithm is None:
            raise ConfigError("Name an algorithm, as in: headwater train PPO --env CartPole-v1 (see: headwater list).")
        if in_file.algorithm is not None and in_file.algorithm.lower() != algorithm.lower():
            raise ConfigError(f"{file} is for {in_file.algorithm}, but {algorithm} was asked for.")
        get_config_class(algorithm)  # an unknown name is told before a framework is imported
        env = env or in_file.env
        if env is None:
            raise ConfigError(f"Name an env, as in: headwater train {algorithm} --env CartPole-v1.")
        config = merge_nested(in_file.config, asked.config)
        return cls(lambda: get_algorithm(algorithm)(config=config, env=env), in_file.stop | asked.stop)

    @classmethod
    def resumed(cls, run_dir: Path, asked: RunRequest, trust: bool = False) -> TrainingRun:
        """The run in `run_dir`, from its latest checkpoint, to the bounds it had with those `asked` for over them.

        Raises:
            CheckpointError: it has no checkpoint that can be read.
        """
        if is_checkpoint(run_dir):
            raise CheckpointError(
                f"{run_dir} is a checkpoint; --resume takes its run's directory: {run_dir.parents[1]}."
            )
        checkpoint = find_checkpoint(run_dir)
        bounds = load_stop(run_dir) | asked.stop
        return cls(lambda: open_to_resume(run_dir, checkpoint, asked.config, trust), bounds)

    def to_its_end(self, mode: str) -> int:
        """Train, save, say where everything is; the exit status of the process.

        Args:
            mode: "live", "quiet" or "json".

        Raises:
            HeadwaterError: training or the last save failed; a note on it says where the files are.
        """
        with StopSignals() as signals:
            try:
                with signals.limiting_patience():
                    trainer = self._make_trainer()
            except OutOfPatience:
                warn(f"headwater: stopped by {signals.name} while the run was being set up; nothing was trained.")
                return signals.exit_status
            try:
                criteria = StopCriteria(self._bounds, trainer.config["metrics_smoothing_episodes"])
                reason = _reached_before(trainer, criteria)
                if reason is None:
                    reason = _iterate(trainer, criteria, signals, mode)
                    checkpoint = _save_at_end(trainer)
                else:
                    checkpoint = latest_checkpoint(Path(trainer.logdir))
            finally:
                _stop(trainer, signals)
        ended = signals.received is None
        _report(trainer, reason, checkpoint, mode, ended)
        return signals.exit_status


def _reached_before(trainer: Any, criteria: StopCriteria) -> str | None:
    """Why a resumed run has nothing to do, if so."""
    before = last_result(Path(trainer.logdir)) if trainer.iteration else None
    reason = criteria.reached(before) if before else None
    return reason and f"{reason} already; raise the bound to train on"


def _iterate(trainer: Any, criteria: StopCriteria, signals: StopSignals, mode: str) -> str:
    """Train to a bound or a signal; returns which."""
    save_stop(Path(trainer.logdir), criteria.bounds)
    if mode == "live":
        say(_introduction(trainer, criteria))
    reason = None
    with make_display(mode, criteria.bounds) as display:
        try:
            while signals.received is None and reason is None:
                with signals.limiting_patience():
                    result = trainer.train()
                display.update(result)
                reason = criteria.reached(result)
        except OutOfPatience:
            _drop_running_episodes(trainer)
        except Exception as error:
            error.add_note(_rescue(trainer))
            raise
    return reason or f"stopped by {signals.name}"


def _names_of_settings() -> set[str]:
    """The settings of all algorithms, and former ones, whose errors say more than "unknown env" would."""
    classes: list[Any] = [get_config_class(name) for name in ALGORITHMS]
    return {name for each in classes for name in (*each.keys(), *each.former)}


def _introduction(trainer: Any, criteria: StopCriteria) -> str:
    going_on = f", from iteration {trainer.iteration}" if trainer.iteration else ""
    return (
        f"{trainer._name} on {trainer.env_id}, seed {trainer.seed}{going_on}; files in {trainer.logdir}\n"
        f"{trainer.config.batch_plan().text}\nuntil {criteria}"
    )


def _drop_running_episodes(trainer: Any) -> None:
    """Of an iteration that was broken off, the envs may be in mid-step: they begin new episodes where it goes on."""
    trainer.workers.local_worker().sampler.restart(trainer.iteration)


def _stop(trainer: Any, signals: StopSignals) -> None:
    try:
        with signals.limiting_patience(CLOSING_PATIENCE_S):
            trainer.stop()
    except OutOfPatience:
        warn("headwater: closing the envs takes too long; they are left to the end of the process.")


def _save_at_end(trainer: Any) -> Path | None:
    run_dir = Path(trainer.logdir)
    if trainer.iteration == 0 or not trainer.config["checkpoint_at_end"]:
        return latest_checkpoint(run_dir)
    try:
        return Path(trainer.save())
    except Exception as error:
        error.add_note(_where(trainer, latest_checkpoint(run_dir)))
        raise


def _rescue(trainer: Any) -> str:
    """Save what a failed run has learned; where its files are and how to go on."""
    try:
        _drop_running_episodes(trainer)
        checkpoint = Path(trainer.save()) if trainer.iteration else None
    except Exception as error:
        return f"Nor could the run be saved: {error}\n{_where(trainer, latest_checkpoint(Path(trainer.logdir)))}"
    return _where(trainer, checkpoint)


def _where(trainer: Any, checkpoint: Path | None) -> str:
    return next_steps(Path(trainer.logdir), checkpoint)


def _report(trainer: Any, reason: str, checkpoint: Path | None, mode: str, ended: bool) -> None:
    run_dir = Path(trainer.logdir)
    if mode == "quiet":
        say(str(run_dir))
    elif mode == "json":
        place = {"logdir": str(run_dir), "checkpoint": checkpoint and str(checkpoint), "stopped": reason}
        say(json.dumps({"run": place}))
    else:
        timesteps = trainer.train_exec_impl.shared_metrics.counters["num_steps_sampled"]
        say(f"\nDone after iteration {trainer.iteration}: {reason}\n")
        say(next_steps(run_dir, checkpoint, more_timesteps=2 * timesteps if ended else None))
