"""The tic-tac-toe example: its opponent plays at random and stays so, sides change, and it is beaten."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pettingzoo")
from examples.pettingzoo_tictactoe import CONFIG, policy_of, train  # noqa: E402
from headwater import PPOTrainer  # noqa: E402


def test_both_sides_are_played_about_equally_often() -> None:
    games = [SimpleNamespace(episode_id=i) for i in range(400)]
    first = [policy_of("player_1", game) for game in games]
    assert all(
        {policy_of("player_2", game), one} == {"learner", "random"} for game, one in zip(games, first, strict=True)
    )
    assert 160 < first.count("learner") < 240


def test_the_opponent_takes_any_free_square() -> None:
    mask = np.array([1, 0, 1, 0, 1, 0, 1, 0, 0], np.int8)
    obs = {"observation": np.zeros((3, 3, 2), np.int8), "action_mask": mask}
    config = {**CONFIG, "train_batch_size": 256, "num_envs_per_worker": 8, "seed": 0}
    with PPOTrainer(config, env="pettingzoo:tictactoe_v3", logger_creator=False) as trainer:
        trainer.train()
        taken = [int(trainer.compute_action(obs, policy_id="random")) for _ in range(400)]
    counts = np.bincount(taken, minlength=9)
    assert (counts[mask == 0] == 0).all() and counts[mask == 1].min() > 60


@pytest.mark.slow
def test_four_games_in_five_are_won() -> None:
    assert train(steps=60_000, seed=1) > 0.8
