"""What runs a training: versions, command line, machine. For `env.json`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater import __version__

_PACKAGES = (
    *("ale-py", "box2d", "gymnasium", "jax", "mujoco", "numpy", "pettingzoo", "pydantic", "ray", "safetensors"),
    *("tensorboard", "tensorflow", "torch"),
)
# What changes speed or numbers; other variables may hold secrets and are not recorded.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")


def describe_environment() -> dict[str, Any]:
    """Return versions (nothing is imported for it), command line, process and hardware, as JSON values."""
    versions = {"headwater": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "directory": os.getcwd(),
        "executable": sys.executable,
        "pid": os.getpid(),
        "versions": versions,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "hardware": _describe_hardware(),
    }


def _describe_hardware() -> dict[str, Any]:
    memory = None
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "hostname": platform.node(),
        "system": platform.platform(),
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable,
        "memory_bytes": memory,
        "gpus": [_field(path, "Model") for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))],
    }


def _field(path: Path, name: str) -> str | None:
    """The value of the first line `name : value` of a file of the system."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
