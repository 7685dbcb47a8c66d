"""How much is gained by stepping envs as they become ready: RemoteVectorEnv against the same actors in lock-step.

8 envs in actors of their own that sleep 5 to 50 ms in every step. Lock-step waits for all 8 before any goes on;
RemoteVectorEnv acts for whoever is ready. What can be gained depends on how the times are spread, so there are three:

    speeds apart   each env has a time of its own, the eight evenly spread by ratio (5, 6.9, 9.7, ... 50 ms)
    times apart    each env has a time of its own, evenly spread (5, 11, 18, ... 50 ms): at most 3.0 times
    every step     each step of each env takes a random time: at most 1.6 times, as the mean is 27 ms and the mean of
                   the slowest of eight 45 ms

A call of an actor costs about 1.4 ms on top, on both sides. Both take turns.

    python benchmarks/remote_envs.py
    python benchmarks/remote_envs.py --rounds 7 --record
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402
from records import append_results, table  # noqa: E402

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class  # noqa: E402
from headwater.envs.base_env import Poll  # noqa: E402
from headwater.envs.remote_vector_env import RemoteVectorEnv  # noqa: E402
from headwater.sampling.rollout_worker import RolloutWorker  # noqa: E402

NUM_ENVS, FASTEST_S, SLOWEST_S = 8, 0.005, 0.05


class Sleeper(gym.Env):
    """Sleeps in every step."""

    def __init__(self, index: int, spread: str) -> None:
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.spread, share = spread, index / (NUM_ENVS - 1)
        by_ratio, evenly = FASTEST_S * (SLOWEST_S / FASTEST_S) ** share, FASTEST_S + (SLOWEST_S - FASTEST_S) * share
        self.own_s = by_ratio if spread == "speeds apart" else evenly

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        random_s = float(self.np_random.uniform(FASTEST_S, SLOWEST_S))
        time.sleep(random_s if self.spread == "every step" else self.own_s)
        self.t += 1
        return np.zeros(4, np.float32), 1.0, False, self.t == 200, {}


class LockStep(RemoteVectorEnv):
    """The same actors; a poll waits for all."""

    def poll(self) -> Poll:
        poll = super().poll()
        while len(poll.obs) < self.num_envs:
            more = super().poll()
            for part, other in zip(poll, more, strict=True):
                part.update(other)
        return poll


def make_worker(cls: type[RemoteVectorEnv], spread: str, steps: int) -> RolloutWorker:
    config = PPOConfig(num_envs_per_worker=NUM_ENVS, train_batch_size=NUM_ENVS * steps, sgd_minibatch_size=0, seed=0)

    def creator(context: Any) -> RemoteVectorEnv:
        return cls(lambda index: Sleeper(index, spread), NUM_ENVS, env_id="Sleeper", config=config)

    return RolloutWorker(
        env_creator=creator, env_id="Sleeper", policy_class=get_policy_class(config), config=config
    )  # fmt: skip


def steps_per_s(worker: RolloutWorker) -> float:
    started = time.perf_counter()
    return worker.sample().count / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of each env, in each round")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    rows = []
    for name in ("speeds apart", "times apart", "every step"):
        workers = [make_worker(cls, name, arguments.steps) for cls in (LockStep, RemoteVectorEnv)]
        rates: list[list[float]] = [[], []]
        for number in range(arguments.rounds + 1):
            for worker, found in zip(workers, rates, strict=True):
                rate = steps_per_s(worker)
                if number:  # the first round warms up
                    found.append(rate)
        for worker in workers:
            worker.stop()
        lock, ready = (statistics.median(found) for found in rates)
        rows.append((name, f"{lock:.0f}", f"{ready:.0f}", f"{ready / lock:.2f}"))
    text = table(("5 to 50 ms", "lock-step, steps/s", "as they are ready, steps/s", "ratio"), rows)
    print(text)
    if arguments.record:
        append_results(f"{NUM_ENVS} slow envs in actors, {arguments.rounds} rounds", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
