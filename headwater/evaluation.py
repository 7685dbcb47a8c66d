"""Evaluation: how good the policy is, on envs, seeds and episodes of its own."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from headwater.errors import TrainingError
from headwater.sampling.metrics import summarize_episodes

if TYPE_CHECKING:
    from headwater.sampling.worker_set import WorkerSet
    from headwater.trainer import Trainer


def evaluate_episodes(workers: WorkerSet, num_episodes: int, round_number: int) -> dict[str, Any]:
    """Run exactly `num_episodes` whole episodes, none of them left over from an earlier round.

    Args:
        workers: evaluation workers, with the weights and filters to evaluate.
        num_episodes: how many, shared out over the workers' envs.
        round_number: seeds the episodes, with the run's seed.

    Returns:
        The episode keys of a training result (`episode_reward_mean`, ...) and `episode_reward_std`; rewards are raw.
    """
    worker = workers.local_worker()
    worker.sampler.restart(round_number)
    episodes = worker.sample_episodes(num_episodes)
    result = summarize_episodes(episodes, perf_stats=worker.perf_stats())
    result["episode_reward_std"] = statistics.pstdev(episode.episode_reward for episode in episodes)
    return result


def evaluate_trainer(trainer: Trainer, workers: WorkerSet, round_number: int) -> dict[str, Any]:
    """One evaluation as the config says: by `custom_eval_function`, or `evaluation_num_episodes` episodes.

    Raises:
        TrainingError: `custom_eval_function` returned no metrics.
    """
    custom = trainer.config.custom_eval_function
    if custom is None:
        return evaluate_episodes(workers, trainer.config.evaluation_num_episodes, round_number)
    result = custom(trainer, workers)
    if not isinstance(result, dict) or not result:
        raise TrainingError(
            f"custom_eval_function must return a dict of metrics that is not empty; {custom!r} returned {result!r}."
        )
    return result
