"""What tests of whole trainers share: small settings, and results and weights that can be compared."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from headwater import Trainer

SMALL = {"num_envs_per_worker": 4, "train_batch_size": 128, "sgd_minibatch_size": 64, "num_sgd_iter": 2, "seed": 3}


def flat_weights(trainer: Trainer) -> np.ndarray:
    return np.concatenate([w.ravel() for w in trainer.get_weights()["default_policy"].values()])


def without_times(result: dict[str, Any]) -> str:
    """A result as JSON, without what differs between two equal runs."""
    timed = {
        "time_this_iter_s", "time_total_s", "time_since_restore", "timers", "sampler_perf", "perf", "date", "timestamp",
        "pid", "hostname", "experiment_id", "config", "iterations_since_restore", "timesteps_since_restore",
    }  # fmt: skip
    return json.dumps({key: value for key, value in result.items() if key not in timed}, default=float, sort_keys=True)
