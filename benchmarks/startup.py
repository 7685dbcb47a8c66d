"""Times that a user waits for: process start to a trained CartPole, imports, and the command line's answers.

Process start to a mean return of 475 is measured with headwater's default config and, for comparison, with
Stable-Baselines3 under its zoo's settings; imports included.

    python benchmarks/startup.py
    python benchmarks/startup.py --seeds 1 2 3 --skip-peer --record
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from records import append_results, run_script, table
from venvs import peer_python

WORKS = Path(__file__).parent / "works"
REPEATS = 5
HEADWATER = Path(sys.executable).with_name("headwater")

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import headwater": [sys.executable, "-c", "import headwater"],
    "import gymnasium": [sys.executable, "-c", "import gymnasium"],
    "import torch": [sys.executable, "-c", "import torch"],
    "from headwater import PPOTrainer": [sys.executable, "-c", "from headwater import PPOTrainer"],
    "headwater --help": [str(HEADWATER), "--help"],
    "headwater train --help": [str(HEADWATER), "train", "--help"],
    "headwater list": [str(HEADWATER), "list"],
    "headwater config PPO": [str(HEADWATER), "config", "PPO"],
}


def command_seconds(command: list[str]) -> list[float]:
    """Wall-clock seconds of `REPEATS` runs, sorted; one run before them fills the disk's cache."""
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--skip-peer", action="store_true", help="leave Stable-Baselines3 out")
    parser.add_argument("--record", action="store_true", help="append the tables to results.md")
    arguments = parser.parse_args()
    learners = [("headwater, defaults", sys.executable, WORKS / "learn_headwater.py")]
    if not arguments.skip_peer:
        learners.append(("sb3, its zoo's settings", peer_python("sb3"), WORKS / "learn_sb3.py"))
    lines: dict[str, list[dict]] = {name: [] for name, _, _ in learners}
    for seed in arguments.seeds:
        for name, python, script in learners:
            lines[name].append(run_script(python, script, ["--seed", str(seed)]))
            print(f"{name} seed {seed}: {lines[name][-1]['seconds_from_start']} s", file=sys.stderr, flush=True)
    rows = []
    for name, runs in lines.items():
        seconds = sorted(run["seconds_from_start"] for run in runs)
        steps = statistics.median(run["env_steps"] for run in runs)
        solved = sum(run["solved"] for run in runs)
        rows.append(
            (
                name,
                f"{solved} of {len(runs)}",
                f"{statistics.median(seconds):.1f}",
                f"{seconds[0]:.1f} to {seconds[-1]:.1f}",
                f"{statistics.median(run['process_cpu_s'] for run in runs):.1f}",
                f"{steps:,.0f}",
            )
        )
    text = table(
        ("process start to 475 on CartPole-v1", "solved", "s (median)", "range", "CPU s", "env steps (median)"), rows
    )
    times = {name: command_seconds(command) for name, command in COMMANDS.items() if Path(command[0]).exists()}
    rows = [(name, f"{statistics.median(s):.2f}", f"{s[0]:.2f} to {s[-1]:.2f}") for name, s in times.items()]
    text += "\n\n" + table(("command", "s (median)", "range"), rows)
    print(text)
    if arguments.record:
        append_results(f"Start-up: seeds {' '.join(map(str, arguments.seeds))}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
