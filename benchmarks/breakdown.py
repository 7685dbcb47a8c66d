"""Where the time of headwater's training goes, part by part, on the work of ``make bench``.

Each part's calls are timed as they pass, in CPU time of this process, and a part's own time excludes that of the parts
inside it. Timing itself costs about a microsecond a call.

    python benchmarks/breakdown.py
    python benchmarks/breakdown.py --vectorization sync --functions 40     # and the profiler's list of functions
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent / "works"), str(Path(__file__).parents[1])]

import cartpole_headwater  # noqa: E402
from records import append_results, table  # noqa: E402

from headwater import PPOTrainer  # noqa: E402
from headwater.telemetry.run_logger import RunLogger  # noqa: E402


class Parts:
    """Self times of named parts, by wrapping the methods that enter them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inner: list[float] = []

    def watch(self, part: str, owner: Any, *methods: str) -> None:
        """Counts the time of `owner`'s `methods` to `part`."""
        self.seconds[part], self.calls[part] = 0.0, 0
        for method in methods:
            setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                took = time.process_time() - started
                self.seconds[part] += took - self._inner.pop()
                self.calls[part] += 1
                if self._inner:
                    self._inner[-1] += took

        return timed

    def clear(self) -> None:
        """Forgets what was counted so far."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.calls = dict.fromkeys(self.calls, 0)


def watch(trainer: PPOTrainer, logger: RunLogger) -> Parts:
    """Sets the parts of a trainer, outermost first."""
    parts = Parts()
    worker = trainer.workers.local_worker()
    policy = worker.get_policy()
    parts.watch("plan, metrics, callbacks, the rest", trainer, "train")
    parts.watch("result files and TensorBoard", logger, "on_result")
    parts.watch("after sampling: values, log-probabilities, advantages", policy, "postprocess_trajectory")
    parts.watch("sampling's own loop: columns, episodes", worker.sampler, "sample")
    parts.watch("acting: network and action noise", policy, "act")
    parts.watch("env adapter: checks, conversions", worker.env, "step", "reset_done")
    inner = getattr(worker.env, "_env", None)
    if inner is not None:
        parts.watch("the env itself", inner, "step")
    parts.watch("learning: all minibatches of all epochs", policy, "learn_on_batch")
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectorization", choices=["auto", "sync"], default="auto")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--functions", type=int, default=0, help="also profile, and print so many functions")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = cartpole_headwater.config(arguments.vectorization, seed=0)
        logger = RunLogger(folder, config)
        trainer = PPOTrainer(config, cartpole_headwater.measure.ENV_ID, logger_creator=lambda _: logger)
        for _ in range(5):
            trainer.train()
        parts = watch(trainer, logger)
        for _ in range(arguments.iterations):
            trainer.train()
        total = sum(parts.seconds.values())
        ordered = sorted(parts.seconds.items(), key=lambda item: -item[1])
        rows = [
            (
                name,
                f"{seconds / arguments.iterations * 1e3:.2f}",
                f"{seconds / total:.0%}",
                f"{parts.calls[name] / arguments.iterations:.1f}",
            )
            for name, seconds in ordered
        ]
        rows.append(("all", f"{total / arguments.iterations * 1e3:.2f}", "100%", ""))
        text = table(("part", "CPU ms an iteration", "share", "calls"), rows)
        print(text)
        if arguments.functions:
            profile = cProfile.Profile(time.process_time)
            profile.enable()
            for _ in range(arguments.iterations):
                trainer.train()
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.functions)
        trainer.stop()
    if arguments.record:
        append_results(
            f"Where the time goes: one iteration of 1,024 steps, vectorization {arguments.vectorization}", text
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
