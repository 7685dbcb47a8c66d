"""What the benchmark scripts share: running a script for its JSON line, the machine in words, and ``results.md``."""

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parent
RESULTS = FOLDER / "results.md"


class ScriptError(RuntimeError):
    """A benchmark script ended without its JSON line."""


def run_script(python: Path | str, script: Path, arguments: Sequence[str] = (), timeout_s: float = 3600.0) -> dict:
    """Runs `script` in a process of its own and returns its last JSON line, with ``seconds_from_start`` added.

    The process gets a home directory and a working directory that are thrown away (ray writes results and a token to
    its home). No thread counts are set: a library has to look after its threads as it does for its users.
    ``seconds_from_start`` is the time from the start of the process to the arrival of the line.

    Raises:
        ScriptError: it failed, or printed no JSON line; the message ends with what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as home, tempfile.TemporaryFile("w+") as errors:
        environment = os.environ | {
            "HOME": home,
            "PYTHONUNBUFFERED": "1",
        }
        if str(python) == sys.executable:  # the library of this checkout; a peer must not see it
            environment["PYTHONPATH"] = str(REPOSITORY)
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=home,
        )
        line: dict | None = None
        try:
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith("{"):
                    line = json.loads(text) | {"seconds_from_start": round(time.perf_counter() - started, 2)}
            process.wait(timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0 or line is None:
            errors.seek(0)
            tail = "".join(errors.readlines()[-15:])
            raise ScriptError(f"{script.name} {' '.join(arguments)} ended with {process.returncode}:\n{tail}")
        return line


def machine() -> str:
    """This machine in words: processor, cores, system, Python."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        processor = next((row.split(":", 1)[1].strip() for row in lines if row.startswith("model name")), processor)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{processor}, {os.cpu_count()} cores{load}, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """The repository's commit, with ``+`` where the library's files differ from it; ``unknown`` outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "headwater")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def library_versions() -> str:
    """Versions of what this interpreter's figures depend on."""
    found = []
    for name in ("torch", "tensorflow", "jax", "gymnasium", "numpy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, aligned so that it reads well in a terminal too."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def append_results(title: str, body: str) -> None:
    """Appends a dated section with commit, machine and versions to ``results.md``."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    section = f"\n## {title}\n\n{now}, commit {commit()}. {machine()}; {library_versions()}.\n\n{body}\n"
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(section)
    print(f"appended to {RESULTS.relative_to(REPOSITORY)}", file=sys.stderr)
