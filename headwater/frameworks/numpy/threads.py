"""Threads of NumPy's matrix products, which its BLAS takes from the machine unless it is told."""

from __future__ import annotations

from threadpoolctl import ThreadpoolController


def limit_blas_threads(num_threads: int) -> None:
    """Let each matrix product of NumPy in this process use `num_threads` threads from now on.

    A second thread does not pay for the products of small policies, and spins on a core that a sampler could use.
    """
    ThreadpoolController().limit(limits=num_threads, user_api="blas")
