"""Drives CartPole through a policy server until it is killed: python -m tests.serving.client_process ADDRESS MODE"""

from __future__ import annotations

import os
import sys

import gymnasium as gym

from headwater.serving import EpisodeLost, PolicyClient


def main(address: str, mode: str) -> None:
    env = gym.make("CartPole-v1")
    with PolicyClient(address, mode, update_interval=0.2, reconnect_s=60, seed=os.getpid()) as client:
        number = 0
        while True:
            episode, number = client.start_episode(), number + 1
            obs, _ = env.reset(seed=number)
            over = False
            try:
                while not over:
                    obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                    client.log_returns(episode, float(reward))
                    over = terminated or truncated
                client.end_episode(episode, obs, terminated, truncated)
            except EpisodeLost:
                print("lost", flush=True)
                continue
            print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
