"""`headwater evaluate`: episodes of a trained policy, on envs and seeds of their own."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.output import reporting_errors, say


def evaluate(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint, or a run directory (then its latest checkpoint).", show_default=False)
    ],
    episodes: Annotated[int, typer.Option(min=1, help="How many whole episodes.")] = 10,
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample the actions instead of taking the most likely ones.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Of a run directory, the best checkpoint instead of the latest.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the episodes (default: derived from the training's).")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Record a video of each episode (extra: headwater[video]).")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Also call functions that the checkpoint names, such as an env's creator.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Run episodes with a trained policy and report its return.

    \b
    Example:
      headwater evaluate runs/PPO/CartPole-v1/RUN --episodes 20
      headwater evaluate runs/PPO/CartPole-v1/RUN/checkpoints/checkpoint_000050 --json
      headwater evaluate runs/PPO/CartPole-v1/RUN --episodes 3 --record videos
    """
    with reporting_errors(debug):
        from headwater.cli.run_files import find_checkpoint

        path = find_checkpoint(checkpoint, best=best)
        if record is not None:
            from headwater.cli.recording import record_episodes

            summary = record_episodes(path, record, episodes, explore, seed, trust)
        else:
            summary = _evaluate(path, episodes, explore, seed, trust)
        if as_json:
            say(json.dumps(summary))
        else:
            say(_as_text(summary))


def summarize(path: Path, trainer: Any, returns: list[float], lengths: list[int], explore: bool) -> dict[str, Any]:
    """The numbers of an evaluation: mean, standard deviation over episodes, extremes, and every return."""
    return {
        "checkpoint": str(path),
        "env": trainer.env_id,
        "training_iteration": trainer.iteration,
        "explore": explore,
        "episodes": len(returns),
        "return_mean": statistics.fmean(returns),
        "return_std": statistics.pstdev(returns),
        "return_min": min(returns),
        "return_max": max(returns),
        "length_mean": statistics.fmean(lengths),
        "returns": returns,
        "lengths": lengths,
    }


def _evaluate(path: Path, episodes: int, explore: bool, seed: int | None, trust: bool) -> dict[str, Any]:
    from headwater.cli.run_files import open_for_evaluation

    evaluation_config: dict[str, Any] = {"explore": explore} | ({} if seed is None else {"seed": seed})
    trainer = open_for_evaluation(
        path, {"evaluation_num_episodes": episodes, "evaluation_config": evaluation_config}, trust
    )
    try:
        result = trainer.evaluate()
        stats = result.get("evaluation", result)["hist_stats"]
        returns = [float(value) for value in stats["episode_reward"]]
        return summarize(path, trainer, returns, [int(value) for value in stats["episode_lengths"]], explore)
    finally:
        trainer.stop()


def _as_text(summary: Mapping[str, Any]) -> str:
    actions = "sampled" if summary["explore"] else "most likely"
    lines = [
        f"{summary['env']}, iteration {summary['training_iteration']}, {actions} actions: {summary['checkpoint']}",
        f"episodes {summary['episodes']}   return {summary['return_mean']:.2f} +- {summary['return_std']:.2f} "
        f"(min {summary['return_min']:.2f}, max {summary['return_max']:.2f})   length {summary['length_mean']:.1f}",
    ]
    if "videos" in summary:
        lines.append(f"videos: {summary['videos']}")
    return "\n".join(lines)
