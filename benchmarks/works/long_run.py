"""A long run of small iterations, with checkpoints, that prints its resident memory on the way."""

import argparse
import json
import tempfile

import psutil

from headwater import PPOTrainer, __version__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="iterations between two readings")
    parser.add_argument("--vectorization", default="auto")
    arguments = parser.parse_args()
    trainer = PPOTrainer(
        config={
            "num_envs_per_worker": 4,
            "train_batch_size": 128,
            "sgd_minibatch_size": 64,
            "num_sgd_iter": 2,
            "vectorization": arguments.vectorization,
            "seed": 0,
        },
        env="CartPole-v1",
    )
    process = psutil.Process()
    rss_mb: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for iteration in range(1, arguments.iterations + 1):
            trainer.train()
            if iteration % arguments.every == 0:
                trainer.save(folder)
                rss_mb[iteration] = round(process.memory_info().rss / 1e6, 2)
        trainer.stop()
    print(json.dumps({"library": "headwater", "version": __version__, "rss_mb": rss_mb}), flush=True)


if __name__ == "__main__":
    main()
