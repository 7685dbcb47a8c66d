"""Sub-envs in processes of their own, for envs whose step takes longer than a message to another process.

Gymnasium's AsyncVectorEnv does the work. What is added here runs in those processes: each env is checked before its
numbers go into the shared memory, which would cast them silently, and its errors say which sub-env they are from.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from headwater.envs.env_faults import BadValuesError, make_error, raised, wrong_reset_result, wrong_step_result
from headwater.envs.step_checker import StepChecker, scalar_mismatch
from headwater.errors import EnvError, HeadwaterError


def make_async_vector_env(
    make_env: Callable[[int], gymnasium.Env], num_envs: int, env_id: str, worker_index: int = 0
) -> AsyncVectorEnv:
    """Make N envs in N processes, with observations in shared memory.

    `make_env(0)` is called once more in this process, as the shared memory is laid out by the env's spaces.

    Raises:
        EnvError: an env could not be made.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as notes:
        make = functools.partial(_make_in_process, make_env, env_id, worker_index, Path(notes))
        try:
            return AsyncVectorEnv(
                [functools.partial(make, index) for index in range(num_envs)], autoreset_mode=AutoresetMode.NEXT_STEP
            )
        except HeadwaterError:
            raise
        except Exception as error:
            told = next((note.read_text(encoding="utf-8") for note in sorted(Path(notes).glob("*.txt"))), None)
            raise EnvError(
                told
                or f"Env {env_id!r} (worker {worker_index}): its {num_envs} processes could not be started: "
                f"{type(error).__name__}: {error}. Set vectorization='sync' to see the env's own error in this process."
            ) from error


def close_async_vector_env(env: AsyncVectorEnv, timeout_s: float) -> None:
    """Close the envs and end their processes; those not done after `timeout_s` are ended by force."""
    if env.closed:
        return
    for pipe in env.parent_pipes:
        with contextlib.suppress(OSError, AttributeError):  # a dead process; a pipe given up
            pipe.send(("close", None))
    end = time.monotonic() + timeout_s
    for process in env.processes:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        process.close()  # its file descriptor would else wait for the garbage collector, as would the queue's
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env.error_queue.close()
    for name in ("_reader", "_writer"):  # which close() leaves to a thread that never ran
        with contextlib.suppress(OSError, AttributeError):
            getattr(env.error_queue, name).close()
    env.closed = True


def ended_processes(env: AsyncVectorEnv) -> str:
    """Say which sub-envs' processes have ended, and how; empty where none has."""
    for process in env.processes:
        process.join(0.05)
    codes = [(index, process.exitcode) for index, process in enumerate(env.processes) if process.exitcode is not None]
    return ", ".join(f"sub-env {index} with exit code {code}" for index, code in codes)


def _make_in_process(
    make_env: Callable[[int], gymnasium.Env], env_id: str, worker_index: int, notes: Path, index: int
) -> gymnasium.Env:
    if multiprocessing.parent_process() is not None:
        _leave_signals_to_the_driver()
    try:
        return CheckedEnv(make_env(index), env_id, worker_index, index)
    except EnvError as error:
        # The process ends before it hears of its pipe, so that the driver would learn no more than that.
        note = notes / f"{index:06d}.tmp"
        note.write_text(str(error), encoding="utf-8")
        note.rename(note.with_suffix(".txt"))
        raise


def _leave_signals_to_the_driver() -> None:
    # Ctrl-C reaches the whole process group, but the driver needs its envs to finish the iteration; it closes them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked process inherits the driver's handler, which would let it outlive `terminate`.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class CheckedEnv(gymnasium.Wrapper):
    """Checks what an env returns, and raises errors that name the sub-env.

    Every step is checked in full: it costs less than the message that takes it to the driver.

    Example:
        >>> env = CheckedEnv(gymnasium.make("CartPole-v1"), "CartPole-v1", worker_index=0, index=5)
        >>> _ = env.reset(seed=1)
        >>> env.step(7)
        Traceback (most recent call last):
        headwater.errors.EnvError: Env 'CartPole-v1' (worker 0, sub-env 5, step 1 of its episode, seed 1): ...
    """

    def __init__(self, env: gymnasium.Env, env_id: str, worker_index: int, index: int) -> None:
        super().__init__(env)
        self._env_id, self._worker_index, self._index = env_id, worker_index, index
        self._checker = StepChecker(env.observation_space, 1)
        self._episode_step = 0
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode_step = 0
        self._seed = seed if seed is not None else self._seed
        try:
            result: Any = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._error(EnvError, raised("reset", error)) from error
        wrong = wrong_reset_result(result)
        if wrong is not None:
            raise self._error(EnvError, wrong)
        self._check_observation("reset", result[0])
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._episode_step += 1
        try:
            result: Any = self.env.step(action)
        except Exception as error:
            raise self._error(EnvError, raised("step", error)) from error
        if not (isinstance(result, tuple) and len(result) == 5):
            raise self._error(EnvError, wrong_step_result(result))
        mismatch = scalar_mismatch(*result[1:])
        if mismatch is not None:
            raise self._error(BadValuesError, f"step() returned what is not in its space: {mismatch}")
        self._check_observation("step", result[0])
        if np.ndim(result[1]):  # [1]: Gymnasium would stack it to [N, 1]
            return result[0], np.asarray(result[1]).item(), *result[2:]
        return result

    def _check_observation(self, method: str, observation: Any) -> None:
        mismatch = self._checker.row_mismatch(observation)
        if mismatch is not None:
            raise self._error(BadValuesError, f"{method}() returned what is not in its space: {mismatch}")

    def _error(self, cls: type[EnvError], what: str) -> EnvError:
        seed = "unseeded" if self._seed is None else f"seed {self._seed}"
        return make_error(cls, self._env_id, what, self._worker_index, self._index, self._episode_step, seed)
