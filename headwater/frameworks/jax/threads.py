"""XLA's threads on the CPU, which it takes from the machine unless it is told."""

from __future__ import annotations

import os

import jax

_SETTINGS = ("PJRT_NPROC", "NPROC")  # of newer versions and of older ones


def limit_threads(num_threads: int) -> None:
    """Let XLA compute with `num_threads` threads.

    It makes its threads once, when JAX is first asked for a device: later calls change nothing, nor does this one where
    the environment has a number already.
    """
    if any(name in os.environ for name in _SETTINGS):
        return
    os.environ.update(dict.fromkeys(_SETTINGS, str(num_threads)))
    try:
        jax.devices()
    finally:
        for name in _SETTINGS:
            del os.environ[name]
