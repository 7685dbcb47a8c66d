"""The fixed work that every contender trains, and the one JSON line that it prints at the end.

Every ``works/cartpole_*.py`` script imports this file from its own virtual environment, so it uses the standard
library only. A script builds its trainer from the constants below, trains the warm-up, brackets the measured part
with a `Meter` and calls `report`.
"""

import argparse
import json
import resource
import sys
import time

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
FRAGMENT_STEPS = 128
NUM_EPOCHS = 4
MINIBATCH_ROWS = 256
HIDDEN_UNITS = (64, 64)
LEARNING_RATE = 3e-4
BATCH_ROWS = NUM_ENVS * FRAGMENT_STEPS


def parse_arguments(description: str, **extra: list[str]) -> argparse.Namespace:
    """Reads ``--iterations``, ``--warmup`` and ``--seed``; each of `extra` becomes an option with these choices."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--iterations", type=int, default=100, help="measured iterations of 1,024 env steps")
    parser.add_argument("--warmup", type=int, default=5, help="iterations before the measured ones")
    parser.add_argument("--seed", type=int, default=0)
    for name, choices in extra.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    return parser.parse_args()


class Meter:
    """Wall-clock and CPU seconds of this process between `start` and `stop`."""

    def start(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        self.wall_s = time.perf_counter() - self._wall_s
        self.cpu_s = time.process_time() - self._cpu_s


def peak_rss_mb() -> float:
    """The largest resident set of this process so far, in MB of 10**6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak if sys.platform == "darwin" else peak * 1024) / 1e6


def report(library: str, version: str, meter: Meter, env_steps: int, **extra: object) -> None:
    """Prints the JSON line that the runner reads: figures of the measured part."""
    line = {
        "library": library,
        "version": version,
        "env_steps_per_s": round(env_steps / meter.wall_s, 1),
        "cpu_s_per_1m_steps": round(meter.cpu_s / env_steps * 1e6, 1),
        "env_steps": env_steps,
        "peak_rss_mb": round(peak_rss_mb(), 1),
        **extra,
    }
    print(json.dumps(line), flush=True)
