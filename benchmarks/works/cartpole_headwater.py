"""headwater's PPO on the fixed CartPole work, with its result files at every iteration."""

from typing import Any

import measure

from headwater import PPOTrainer, __version__


def config(vectorization: str, seed: int) -> dict[str, Any]:
    """The settings of the fixed work."""
    return {
        "num_envs_per_worker": measure.NUM_ENVS,
        "rollout_fragment_length": measure.FRAGMENT_STEPS,
        "train_batch_size": measure.BATCH_ROWS,
        "num_sgd_iter": measure.NUM_EPOCHS,
        "sgd_minibatch_size": measure.MINIBATCH_ROWS,
        "lr": measure.LEARNING_RATE,
        "vectorization": vectorization,
        "model": {"fcnet_hiddens": list(measure.HIDDEN_UNITS), "fcnet_activation": "tanh", "vf_share_layers": False},
        "seed": seed,
    }


def main() -> None:
    arguments = measure.parse_arguments(__doc__, vectorization=["auto", "sync"])
    trainer = PPOTrainer(config=config(arguments.vectorization, arguments.seed), env=measure.ENV_ID)
    for _ in range(arguments.warmup):
        result = trainer.train()
    warmup_steps = result["timesteps_total"]
    meter = measure.Meter()
    meter.start()
    for _ in range(arguments.iterations):
        result = trainer.train()
    meter.stop()
    measure.report(
        "headwater",
        __version__,
        meter,
        result["timesteps_total"] - warmup_steps,
        episode_reward_mean=round(float(result["episode_reward_mean"]), 1),
    )
    trainer.stop()


if __name__ == "__main__":
    main()
