"""Speed of whole training against the peers: what ``make bench`` runs.

Every contender trains the same work (see ``works/measure.py``) in a process of its own; the contenders take turns, so
that a busy minute of the machine falls on all of them. Printed: the median over the rounds, its range, and the ratio
of headwater's median to each peer's.

    python benchmarks/run.py                       # all contenders, 5 rounds
    python benchmarks/run.py --only headwater sb3 --rounds 3
    python benchmarks/run.py --check --record      # fail below the marks; append to results.md
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from records import append_results, run_script, table
from venvs import peer_python

WORKS = Path(__file__).parent / "works"


@dataclass(frozen=True)
class Contender:
    """One way to train the work: its script, its options, and the peer whose environment it runs in."""

    name: str
    script: str
    options: tuple[str, ...] = ()
    peer: str | None = None
    mark: float | None = None  # headwater's env steps/s over this peer's must reach it


CONTENDERS = (
    Contender("headwater", "cartpole_headwater.py", ("--vectorization", "auto")),
    Contender("headwater-sync", "cartpole_headwater.py", ("--vectorization", "sync")),
    Contender("sb3", "cartpole_sb3.py", peer="sb3", mark=2.5),
    Contender("rllib", "cartpole_rllib.py", peer="rllib", mark=6.0),
)


def measure(contenders: list[Contender], rounds: int, iterations: int) -> dict[str, list[dict]]:
    """Runs every contender once a round, each round beginning with another one; returns their JSON lines."""
    pythons = {c.name: peer_python(c.peer) if c.peer else Path(sys.executable) for c in contenders}
    lines: dict[str, list[dict]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            options = [*contender.options, "--iterations", str(iterations), "--seed", str(turn)]
            line = run_script(pythons[contender.name], WORKS / contender.script, options)
            lines[contender.name].append(line)
            print(
                f"round {turn + 1}/{rounds}  {contender.name:<22} {line['env_steps_per_s']:>9,.0f} env steps/s"
                f"  {line['cpu_s_per_1m_steps']:>6.1f} CPU s/1M",
                file=sys.stderr,
                flush=True,
            )
    return lines


def summarise(contenders: list[Contender], lines: dict[str, list[dict]]) -> tuple[str, list[str]]:
    """Returns the table of medians and ratios, and a sentence for every mark that was missed.

    Two ratios are given, of wall-clock and of CPU time: the second moves less when other programs share the machine.
    """
    ours = lines.get("headwater")
    rows, missed = [], []
    for contender in contenders:
        runs = lines[contender.name]
        speeds = sorted(run["env_steps_per_s"] for run in runs)
        speed = statistics.median(speeds)
        cpu_s = statistics.median(run["cpu_s_per_1m_steps"] for run in runs)
        ratio = cpu_ratio = None
        if ours:
            ratio = statistics.median(run["env_steps_per_s"] for run in ours) / speed
            cpu_ratio = cpu_s / statistics.median(run["cpu_s_per_1m_steps"] for run in ours)
        if contender.mark and ratio is not None and ratio < contender.mark:
            missed.append(f"{ratio:.2f} times {contender.name}, the mark is {contender.mark}")
        rows.append(
            (
                contender.name,
                runs[0]["version"],
                f"{speed:,.0f}",
                f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}",
                f"{cpu_s:.1f}",
                f"{statistics.median(run['peak_rss_mb'] for run in runs):.0f}",
                "-" if ratio is None else f"{ratio:.2f}",
                "-" if cpu_ratio is None else f"{cpu_ratio:.2f}",
            )
        )
    header = ("", "version", "env steps/s", "range", "CPU s/1M", "peak RSS MB", "headwater / this", "by CPU time")
    return table(header, rows), missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=100, help="measured iterations of 1,024 env steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a mark is missed")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    contenders = [contender for contender in CONTENDERS if contender.name in arguments.only]
    lines = measure(contenders, arguments.rounds, arguments.iterations)
    text, missed = summarise(contenders, lines)
    print(text)
    for sentence in missed:
        print(f"missed: {sentence}")
    if arguments.record:
        append_results(f"Speed: CartPole-v1 PPO, {arguments.rounds} rounds of {arguments.iterations} iterations", text)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
