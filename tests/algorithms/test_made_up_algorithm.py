"""An algorithm of one's own, written once and without a word about frameworks, trains in each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.algorithms import made_up
from tests.frameworks.policies import FRAMEWORKS
from tests.toy_envs import EchoEnv


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_trains_in_every_framework(framework: str) -> None:
    settings = {
        "env": EchoEnv, "framework": framework, "num_envs_per_worker": 8, "train_batch_size": 256, "seed": 1,
        "lr": 3e-3, "temperature_schedule": [[0, 1.0], [2560, 0.5]],
    }  # fmt: skip
    with made_up.AWRTrainer(settings, logger_creator=False) as trainer:
        results = [trainer.train() for _ in range(10)]
    stats = [result["info"]["learner"]["default_policy"] for result in results]
    assert results[-1]["episode_reward_mean"] > results[0]["episode_reward_mean"] + 5
    assert stats[-1]["temperature"] < stats[0]["temperature"] <= 1.0
    assert {"regression_loss", "vf_loss", "grad_gnorm"} <= set(stats[-1])


def test_it_is_short_and_names_no_framework() -> None:
    source = Path(made_up.__file__).read_text(encoding="utf-8")
    assert sum(1 for line in source.splitlines() if line.strip()) < 60
    assert not any(name in source for name in ("torch", "tensorflow", "tf2", "jax", "numpy"))
