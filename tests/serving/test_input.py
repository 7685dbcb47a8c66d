"""A policy server given as `input`, as the 1.x line did."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any

import gymnasium as gym

from headwater import PPOTrainer
from headwater.errors import HeadwaterError
from headwater.serving import PolicyClient, PolicyServerInput


def test_a_server_as_the_input_of_a_trainer_without_an_env() -> None:
    servers: list[PolicyServerInput] = []

    def make(context: Any) -> PolicyServerInput:
        servers.append(PolicyServerInput(context, "127.0.0.1", 0))
        return servers[-1]

    pole = gym.make("CartPole-v1")
    config = {
        "input": make, "num_envs_per_worker": 1, "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 0,
        "observation_space": pole.observation_space, "action_space": pole.action_space,
    }  # fmt: skip
    trainer = PPOTrainer(config, logger_creator=False)
    [server] = servers
    address = f"http://127.0.0.1:{server.port}"

    def play() -> None:
        env = gym.make("CartPole-v1")
        with contextlib.suppress(HeadwaterError):  # until the server is gone
            client = PolicyClient(address, "remote", reconnect_s=0.1)
            while True:
                episode, (obs, _) = client.start_episode(), env.reset()
                terminated = truncated = False
                while not (terminated or truncated):
                    obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                    client.log_returns(episode, reward)
                client.end_episode(episode, obs, terminated=terminated, truncated=truncated)

    player = threading.Thread(target=play, daemon=True)
    player.start()
    trainer.train()
    result = trainer.train()
    trainer.stop()
    player.join(30)
    assert not player.is_alive()
    assert result["timesteps_total"] >= 128 and result["episodes_total"] > 0
    assert math.isfinite(result["info"]["learner"]["default_policy"]["total_loss"])
