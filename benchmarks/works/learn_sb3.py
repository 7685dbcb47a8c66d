"""Stable-Baselines3 on CartPole-v1 with its zoo's settings, from the start of the process to a mean return.

The settings are those of rl-baselines3-zoo's ``hyperparams/ppo.yml`` for CartPole-v1. Stops once the mean of the last
100 episodes reaches the threshold.
"""

import argparse
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class StopAt(BaseCallback):
    """Ends training at the first iteration whose last 100 episodes have a mean of at least `threshold`."""

    def __init__(self, threshold: float):
        super().__init__()
        self.threshold = threshold
        self.mean = float("nan")

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if len(returns) >= 100:
            self.mean = sum(returns) / len(returns)

    def _on_step(self) -> bool:
        return not self.mean >= self.threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threshold", type=float, default=475.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    def linear(start: float):
        return lambda remaining: start * remaining

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=arguments.seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=linear(0.001),
        clip_range=linear(0.2),
        device="cpu",
        seed=arguments.seed,
    )
    stop = StopAt(arguments.threshold)
    model.learn(100_000, callback=stop)
    line = {
        "library": "stable-baselines3",
        "solved": bool(stop.mean >= arguments.threshold),
        "env_steps": model.num_timesteps,
        "process_cpu_s": round(time.process_time(), 2),
        "best_mean": round(stop.mean, 2),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
