"""What every test has: one thread a process, and a working directory of its own for the runs it makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before any test imports NumPy or torch, and for the processes that tests start: more threads only fight each other.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

# What JAX compiled for one test serves the others, and those of the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, such as the default `runs/`, land in the test's temporary directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def made() -> Iterator[list[Any]]:
    """Trainers that a test puts here are stopped at its end."""
    trainers: list[Any] = []
    yield trainers
    for trainer in trainers:
        trainer.stop()
