"""Tic-tac-toe of PettingZoo's against an opponent that plays at random: more than 80 % of the games are won.

    python examples/pettingzoo_tictactoe.py --steps 60000 --seed 1

Two policies play: "learner" learns; "random" is never trained, so that it stays as it began, which is about equally
likely to take any free square. Who begins is drawn for each game by the policy mapping. Neither ever tries a square
that is taken: the observations hold an action mask, and what it forbids has no probability.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from headwater import DefaultCallbacks, PPOTrainer


def policy_of(agent_id: str, episode: Any) -> str:
    """Let chance say which player the learner is; both players of a game must be told the same."""
    learner_begins = np.random.default_rng(episode.episode_id).random() < 0.5
    return "learner" if (agent_id == "player_1") == learner_begins else "random"


class CountWins(DefaultCallbacks):
    """Puts the games that the learner won, and those that nobody did, into the results."""

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        reward = next(paid for (_, policy_id), paid in episode.agent_rewards.items() if policy_id == "learner")
        episode.custom_metrics.update(won=float(reward > 0), drawn=float(reward == 0))


CONFIG: dict[str, Any] = {
    "multiagent": {
        "policies": ["learner", "random"],
        "policy_mapping_fn": policy_of,
        "policies_to_train": ["learner"],
    },
    "callbacks": CountWins,
    "num_envs_per_worker": 32,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 6,
    "lr": 1e-3,
    "entropy_coeff": 0.005,
    "gamma": 0.99,
}


def train(steps: int, seed: int | None) -> float:
    """Train for so many moves of both; return the share of games that were won in the last iteration."""
    with PPOTrainer({**CONFIG, "seed": seed}, env="pettingzoo:tictactoe_v3", logger_creator=False) as trainer:
        while True:
            result = trainer.train()
            metrics = result["custom_metrics"]
            print(
                f"{result['timesteps_total']:7d} moves: {metrics['won_mean']:4.0%} won, {metrics['drawn_mean']:4.0%} "
                f"drawn of {result['episodes_this_iter']} games"
            )
            if result["timesteps_total"] >= steps:
                return metrics["won_mean"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tic-tac-toe against a random opponent.")
    parser.add_argument("--steps", type=int, default=60_000, help="moves to train for")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.steps, arguments.seed)
