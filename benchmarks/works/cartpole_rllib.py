"""RLlib's PPO (new API stack, no env runner processes) on the fixed CartPole work."""

import logging
import os
import warnings
from importlib.metadata import version

import measure

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
warnings.filterwarnings("ignore")


def build(seed: int):
    """Builds RLlib's Algorithm for the fixed work, on an in-process env runner and learner."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        PPOConfig()
        .environment(measure.ENV_ID)
        .framework("torch")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=measure.NUM_ENVS,
            rollout_fragment_length=measure.FRAGMENT_STEPS,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=measure.BATCH_ROWS,
            minibatch_size=measure.MINIBATCH_ROWS,
            num_epochs=measure.NUM_EPOCHS,
            lr=measure.LEARNING_RATE,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(measure.HIDDEN_UNITS), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(seed=seed, log_level="ERROR")
    )
    return config.build_algo()


def main() -> None:
    arguments = measure.parse_arguments(__doc__)
    import ray
    import torch

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    torch.set_num_threads(1)
    algorithm = build(arguments.seed)
    for _ in range(arguments.warmup):
        result = algorithm.train()
    warmup_steps = result["num_env_steps_sampled_lifetime"]
    meter = measure.Meter()
    meter.start()
    for _ in range(arguments.iterations):
        result = algorithm.train()
    meter.stop()
    measure.report(
        "rllib",
        version("ray"),
        meter,
        int(result["num_env_steps_sampled_lifetime"] - warmup_steps),
        episode_reward_mean=round(float(result["env_runners"]["episode_return_mean"]), 1),
    )
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
