"""Steps and seconds to the threshold of each learning work, over seeds.

Solved means that the mean return of the last 100 training episodes reached the threshold. CartPole-v1 is trained with
the default config, the others with their files under ``tuned/``. What a work asks for (memory, ...) is also left out:
then it must stay unsolved.

    python benchmarks/learning.py                              # Gymnasium's envs, 5 seeds each
    python benchmarks/learning.py --only Pendulum-v1 --seeds 1 2 --jobs 2
    python benchmarks/learning.py --only CartPole-v1 --framework torch tf2 jax
    python benchmarks/learning.py --only examples              # examples/envs, also without what they ask for
    python benchmarks/learning.py --only several               # several agents, and envs of other libraries
    python benchmarks/learning.py --record
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from records import REPOSITORY, append_results, run_script, table

SCRIPT = Path(__file__).parent / "works" / "learn_headwater.py"


@dataclass(frozen=True)
class Work:
    """An environment, the return that counts as solved, the most env steps, and its settings (None: the defaults).

    `lacks` is a setting that takes away what the env asks for: such a work must stay unsolved.
    """

    env: str
    threshold: float
    max_steps: int
    tuned: str | None = None
    lacks: str | None = None
    framework: str = "torch"

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.env.removeprefix("examples.envs:") + (f", {self.lacks}" if self.lacks else "")

    def arguments(self, seed: int) -> list[str]:
        """The command line of this work's script for one seed."""
        differing = [f"framework={self.framework}", *([self.lacks] if self.lacks else [])]
        settings = ["--config", str(REPOSITORY / "tuned" / self.tuned)] if self.tuned else []
        return [
            *("--env", self.env, "--seed", str(seed)),
            *("--threshold", str(self.threshold), "--max-steps", str(self.max_steps)),
            *("--set", *differing),
            *settings,
        ]


WORKS = (
    Work("CartPole-v1", 475.0, 500_000),
    Work("Acrobot-v1", -100.0, 1_000_000, "acrobot.yaml"),
    Work("Pendulum-v1", -250.0, 500_000, "pendulum.yaml"),
    Work("LunarLander-v3", 200.0, 2_000_000, "lunarlander.yaml"),
)
EXAMPLES = (
    Work("examples.envs:PixelGrid", 0.9, 500_000, "pixel_grid.yaml"),
    Work("examples.envs:MaskedChoice", 6.2, 300_000, "masked_choice.yaml"),
    Work("examples.envs:SwitchingPair", 9.0, 500_000, "switching_pair.yaml"),
    Work("examples.envs:SwitchingPair", 9.0, 100_000, "switching_pair.yaml", "model.custom_action_dist=null"),
    Work("examples.envs:RepeatPrevious", 22.0, 500_000, "repeat_previous.yaml"),
    Work("examples.envs:RepeatPrevious", 22.0, 100_000, "repeat_previous.yaml", "model.memory=null"),
    Work("examples.envs:TMaze", 0.95, 500_000, "t_maze.yaml"),
    Work("examples.envs:TMaze", 0.95, 100_000, "t_maze.yaml", "model.memory=null"),
    Work("examples.envs:CartPoleHidden", 475.0, 500_000, "cart_pole_hidden.yaml"),
    Work("examples.envs:CartPoleHidden", 475.0, 300_000, "cart_pole_hidden.yaml", "model.memory=null"),
)
SEVERAL = (
    Work("examples.envs:MultiAgentCartPole", 600.0, 500_000, "multi_agent_cartpole.yaml"),
    Work("pettingzoo:simple_spread_v3", -15.0, 1_000_000, "simple_spread.yaml"),
    Work("envpool:CartPole-v1", 475.0, 500_000),
)
GROUPS = {"examples": EXAMPLES, "several": SEVERAL}


def learn(works: list[Work], seeds: list[int], jobs: int) -> dict[Work, list[dict]]:
    """Trains every work with every seed, `jobs` processes at a time; returns their JSON lines."""

    def one(work: Work, seed: int) -> dict:
        line = run_script(sys.executable, SCRIPT, work.arguments(seed))
        outcome = "solved" if line["solved"] else f"NOT solved (best mean {line['best_mean']})"
        print(
            f"{work.name} in {work.framework}, seed {seed}: {outcome}, {line['env_steps']:,} steps, "
            f"{line['seconds_from_start']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        return line

    with ThreadPoolExecutor(jobs) as pool:
        futures = {work: [pool.submit(one, work, seed) for seed in seeds] for work in works}
        try:
            return {work: [future.result() for future in runs] for work, runs in futures.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a script that fails ends the benchmark, not only its own row
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [work.env for work in WORKS]
    choices = [*names, *GROUPS]
    parser.add_argument("--only", nargs="+", choices=choices, default=names, metavar="ENV", help=f"of {choices}")
    parser.add_argument("--framework", nargs="+", choices=["torch", "tf2", "jax"], default=["torch"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; more than one slows each down")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    chosen = [work for work in WORKS if work.env in arguments.only]
    chosen += [work for group, works in GROUPS.items() if group in arguments.only for work in works]
    works = [replace(work, framework=framework) for work in chosen for framework in arguments.framework]
    lines = learn(works, arguments.seeds, arguments.jobs)
    rows = []
    for work in works:
        runs = lines[work]
        solved = sorted(run["env_steps"] for run in runs if run["solved"])
        seconds = [run["seconds_from_start"] for run in runs]
        rows.append(
            (
                work.name,
                work.framework,
                work.tuned or "defaults",
                f"{work.threshold:g}",
                f"{len(solved)} of {len(runs)}",
                f"{statistics.median(run['best_mean'] for run in runs):.4g}",
                f"{statistics.median(solved):,.0f}" if solved else "-",
                f"{solved[0]:,} to {solved[-1]:,}" if solved else "-",
                f"{statistics.median(seconds):.1f}",
                f"{min(seconds):.1f} to {max(seconds):.1f}",
                f"{statistics.median(run['process_cpu_s'] for run in runs):.1f}",
            )
        )
    header = (
        "env",
        "framework",
        "settings",
        "threshold",
        "solved",
        "best mean (median)",
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
    return 0 if all(run["solved"] == (work.lacks is None) for work in works for run in lines[work]) else 1


if __name__ == "__main__":
    sys.exit(main())
