"""headwater's PPO on one environment, from the start of the process to a mean return of the last 100 episodes."""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]  # examples.envs

from headwater import PPOTrainer, __version__  # noqa: E402
from headwater.cli.run_request import merge_nested, parse_assignments, read_request  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--config", type=Path, help="a YAML file of tuned/; the default config where none is given")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that differ")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threshold", type=float, default=475.0)
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    config = read_request(arguments.config, arguments.env, known=()).config if arguments.config else {}
    config = merge_nested(config, parse_assignments([*arguments.set, f"seed={arguments.seed}"]))
    trainer = PPOTrainer(config=config, env=arguments.env)
    started = time.perf_counter()
    best, solved, steps = float("-inf"), False, 0
    while steps < arguments.max_steps and not solved:
        result = trainer.train()
        steps = result["timesteps_total"]
        if result["episodes_total"] >= 100:
            best = max(best, result["episode_reward_mean"])
            solved = result["episode_reward_mean"] >= arguments.threshold
    line = {
        "library": "headwater",
        "version": __version__,
        "solved": solved,
        "env_steps": steps,
        "train_s": round(time.perf_counter() - started, 2),
        "process_cpu_s": round(time.process_time(), 2),
        "best_mean": round(float(best), 2),
    }
    print(json.dumps(line), flush=True)
    trainer.stop()


if __name__ == "__main__":
    main()
