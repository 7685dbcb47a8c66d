"""Stable-Baselines3's PPO on the fixed CartPole work: Monitor metrics, and a progress row at every iteration."""

import tempfile
from importlib.metadata import version

import measure
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv


def main() -> None:
    arguments = measure.parse_arguments(__doc__)
    torch.set_num_threads(1)
    envs = make_vec_env(measure.ENV_ID, n_envs=measure.NUM_ENVS, seed=arguments.seed, vec_env_cls=DummyVecEnv)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=measure.FRAGMENT_STEPS,
        batch_size=measure.MINIBATCH_ROWS,
        n_epochs=measure.NUM_EPOCHS,
        learning_rate=measure.LEARNING_RATE,
        policy_kwargs={
            "net_arch": {"pi": list(measure.HIDDEN_UNITS), "vf": list(measure.HIDDEN_UNITS)},
            "activation_fn": torch.nn.Tanh,
        },
        device="cpu",
        seed=arguments.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        model.learn(arguments.warmup * measure.BATCH_ROWS, log_interval=1)
        warmup_steps = model.num_timesteps
        meter = measure.Meter()
        meter.start()
        model.learn(arguments.iterations * measure.BATCH_ROWS, log_interval=1, reset_num_timesteps=False)
        meter.stop()
        episodes = [episode["r"] for episode in model.ep_info_buffer]
        measure.report(
            "stable-baselines3",
            version("stable-baselines3"),
            meter,
            model.num_timesteps - warmup_steps,
            episode_reward_mean=round(float(sum(episodes) / max(len(episodes), 1)), 1),
        )


if __name__ == "__main__":
    main()
