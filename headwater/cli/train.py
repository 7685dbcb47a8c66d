"""`headwater train`: from options and files to a trainer, then to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.output import reporting_errors


def train(
    algorithm: Annotated[
        str | None, typer.Argument(help="What to train with, as `headwater list` names it.", show_default=False)
    ] = None,
    env: Annotated[
        str | None, typer.Option(help="Gymnasium id, module:EnvId, module:Class or module:function.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings from a YAML, JSON or TOML file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, as in lr=3e-4 or model.fcnet_hiddens=[64,64]."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    stop_reward: Annotated[float | None, typer.Option(help="Stop at this mean return of the last episodes.")] = None,
    stop_timesteps: Annotated[float | None, typer.Option(help="Stop after so many env steps (1e6 is fine).")] = None,
    stop_iters: Annotated[int | None, typer.Option(help="Stop after so many iterations.")] = None,
    stop_time: Annotated[float | None, typer.Option(help="Stop after so many seconds of training.")] = None,
    checkpoint_freq: Annotated[int | None, typer.Option(help="Save every so many iterations; 0: at the end.")] = None,
    local_dir: Annotated[Path | None, typer.Option(help="Where run directories are made. Default: runs.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Go on with a run from its latest checkpoint.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the run directory, at the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON result a line; the last names the files.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume: also call functions that the checkpoint names.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a policy until a stop criterion or Ctrl-C.

    Settings come from --config, then --set, then the other options; a later one wins. Ctrl-C finishes the iteration
    and saves; a second one stops at once. Without a stop option it trains on, even if nobody reads its output any more.

    \b
    Example:
      headwater train PPO --env CartPole-v1 --stop-reward 475
      headwater train PPO --env CartPole-v1 --set lr=3e-4 --seed 1 --stop-timesteps 1e6
      headwater train --config tuned/pendulum.yaml
      headwater train --resume runs/PPO/CartPole-v1/RUN --stop-timesteps 2e6
    """
    from headwater.cli import stopping
    from headwater.cli.run_request import RunRequest

    stop = {
        stopping.REWARD: stop_reward,
        stopping.TIMESTEPS: stop_timesteps,
        stopping.ITERATIONS: stop_iters,
        stopping.SECONDS: stop_time,
    }
    options = {
        "seed": seed,
        "checkpoint_freq": checkpoint_freq,
        "local_dir": None if local_dir is None else str(local_dir),
    }
    with reporting_errors(debug):
        from headwater.cli.training_run import TrainingRun

        asked = RunRequest(algorithm, env, _given(stop), _assigned(set_ or [], options))
        if resume is None:
            run = TrainingRun.new(asked, config)
        else:
            _refuse_new_run_options(resume, algorithm=algorithm, env=env, config=config, local_dir=local_dir)
            run = TrainingRun.resumed(resume, asked, trust)
        status = run.to_its_end("json" if as_json else "quiet" if quiet else "live")
    raise typer.Exit(status)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _assigned(assignments: list[str], options: dict[str, Any]) -> dict[str, Any]:
    from headwater.cli.run_request import parse_assignments

    return parse_assignments(assignments) | _given(options)


def _refuse_new_run_options(run_dir: Path, **options: Any) -> None:
    from headwater.errors import ConfigError

    for name, value in _given(options).items():
        how = "as an argument" if name == "algorithm" else f"by --{name.replace('_', '-')}"
        raise ConfigError(
            f"--resume goes on with the run in {run_dir}, which has its own {name}; {value} was given {how}. "
            "Leave it out, change single settings with --set, or start a new run without --resume."
        )
