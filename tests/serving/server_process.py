"""Trains on a policy server until it is killed: python -m tests.serving.server_process PORT"""

from __future__ import annotations

import sys

import gymnasium as gym

from headwater import PPOTrainer
from headwater.serving import PolicyServerInput

SETTINGS = {
    "seed": 0, "train_batch_size": 512, "sgd_minibatch_size": 128, "num_sgd_iter": 10, "lr": 1e-3,
    "num_envs_per_worker": 1,
}  # fmt: skip


def make_trainer(port: int = 0, **kwargs: object) -> PPOTrainer:
    env = gym.make("CartPole-v1")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return PPOTrainer(
        {**SETTINGS, "env_config": spaces},
        env=lambda context: PolicyServerInput(context, port=port, **kwargs),
        logger_creator=False,
    )


def main(port: str) -> None:
    trainer = make_trainer(int(port))
    while True:
        print(trainer.train()["timesteps_total"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
