"""Steps and seconds to the threshold of each learning work, over seeds.

Solved means that the mean return of the last 100 training episodes reached the threshold. CartPole-v1 is trained with
the default config, the others with their files under ``tuned/``.

    python benchmarks/learning.py                              # all works, 5 seeds each
    python benchmarks/learning.py --only Pendulum-v1 --seeds 1 2 --jobs 2
    python benchmarks/learning.py --record
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from records import REPOSITORY, append_results, run_script, table

SCRIPT = Path(__file__).parent / "works" / "learn_headwater.py"


@dataclass(frozen=True)
class Work:
    """An environment, the return that counts as solved, the most env steps, and its settings (None: the defaults)."""

    env: str
    threshold: float
    max_steps: int
    tuned: str | None = None

    def arguments(self, seed: int) -> list[str]:
        """The command line of this work's script for one seed."""
        settings = ["--config", str(REPOSITORY / "tuned" / self.tuned)] if self.tuned else []
        return [
            *("--env", self.env, "--seed", str(seed)),
            *("--threshold", str(self.threshold), "--max-steps", str(self.max_steps)),
            *settings,
        ]


WORKS = (
    Work("CartPole-v1", 475.0, 500_000),
    Work("Acrobot-v1", -100.0, 1_000_000, "acrobot.yaml"),
    Work("Pendulum-v1", -250.0, 500_000, "pendulum.yaml"),
    Work("LunarLander-v3", 200.0, 2_000_000, "lunarlander.yaml"),
)


def learn(works: list[Work], seeds: list[int], jobs: int) -> dict[str, list[dict]]:
    """Trains every work with every seed, `jobs` processes at a time; returns their JSON lines by env id."""

    def one(work: Work, seed: int) -> dict:
        line = run_script(sys.executable, SCRIPT, work.arguments(seed))
        outcome = "solved" if line["solved"] else f"NOT solved (best mean {line['best_mean']})"
        print(
            f"{work.env} seed {seed}: {outcome}, {line['env_steps']:,} steps, {line['seconds_from_start']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        return line

    with ThreadPoolExecutor(jobs) as pool:
        futures = {work.env: [pool.submit(one, work, seed) for seed in seeds] for work in works}
        try:
            return {env: [future.result() for future in runs] for env, runs in futures.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a script that fails ends the benchmark, not only its own row
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [work.env for work in WORKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ENV", help=f"of {names}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; more than one slows each down")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    works = [work for work in WORKS if work.env in arguments.only]
    lines = learn(works, arguments.seeds, arguments.jobs)
    rows = []
    for work in works:
        runs = lines[work.env]
        solved = sorted(run["env_steps"] for run in runs if run["solved"])
        seconds = [run["seconds_from_start"] for run in runs]
        rows.append(
            (
                work.env,
                work.tuned or "defaults",
                f"{work.threshold:g}",
                f"{len(solved)} of {len(runs)}",
                f"{statistics.median(solved):,.0f}" if solved else "-",
                f"{solved[0]:,} to {solved[-1]:,}" if solved else "-",
                f"{statistics.median(seconds):.1f}",
                f"{min(seconds):.1f} to {max(seconds):.1f}",
                f"{statistics.median(run['process_cpu_s'] for run in runs):.1f}",
            )
        )
    header = (
        "env",
        "settings",
        "threshold",
        "solved",
        "env steps (median)",
        "range",
        "process s (median)",
        "range",
        "CPU s",
    )
    text = table(header, rows)
    print(text)
    if arguments.record:
        seeds = " ".join(map(str, arguments.seeds))
        append_results(f"Learning: PPO to the threshold, seeds {seeds}, {arguments.jobs} at a time", text)
    return 0 if all(run["solved"] for runs in lines.values() for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
