"""Resident memory over 2,000 small iterations: it must stay within 5% of its value after 200.

python benchmarks/memory.py
python benchmarks/memory.py --record
"""

import argparse
import sys
from pathlib import Path

from records import append_results, run_script, table

SCRIPT = Path(__file__).parent / "works" / "long_run.py"
FIRST_ITERATION = 200
ALLOWED_GROWTH = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    if arguments.iterations <= FIRST_ITERATION:
        parser.error(f"--iterations: more than {FIRST_ITERATION} are needed, memory is compared from there on")
    rows, flat = [], True
    for vectorization in ("auto", "sync"):
        options = ["--iterations", str(arguments.iterations), "--vectorization", vectorization]
        rss_mb = {int(key): value for key, value in run_script(sys.executable, SCRIPT, options)["rss_mb"].items()}
        first, last = rss_mb[FIRST_ITERATION], rss_mb[max(rss_mb)]
        largest = max(value for iteration, value in rss_mb.items() if iteration >= FIRST_ITERATION)
        flat = flat and largest <= first * (1 + ALLOWED_GROWTH)
        rows.append((vectorization, first, last, largest, f"{(last / first - 1) * 100:+.2f}%"))
    header = ("vectorization", f"RSS MB at {FIRST_ITERATION}", f"at {arguments.iterations}", "largest", "growth")
    text = table(header, rows)
    print(text)
    if arguments.record:
        append_results(f"Memory: {arguments.iterations:,} iterations of 128 steps, a checkpoint each 100", text)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
