"""What happens when an env fails: the one place that words the error, counts it, waits, and gives up.

Two settings decide. `on_env_error` is for an env that raises or breaks the API, `on_bad_values` for one that returns
numbers outside its space or not finite. "raise" stops with an EnvError; "reset" drops the running episode of that
sub-env (its rows are never bootstrapped), starts a new one, and goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from headwater.errors import EnvError

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 10.0
# An env that never ends an episode and fails once a day is not failing "in a row".
FORGET_AFTER_STEPS = 10_000


class BadValuesError(EnvError):
    """An env returned numbers that must not be used; `on_bad_values` decides what follows."""


def make_error(
    cls: type[EnvError],
    env_id: str,
    what: str,
    worker_index: int = 0,
    index: int | None = None,
    step: int | None = None,
    seed: str | None = None,
) -> EnvError:
    """Word an error of an env: id, worker, sub-env, step of its episode (from 1; 0 is the reset), seed, fault, remedy.

    Example:
        >>> print(make_error(BadValuesError, "Maze-v0", "the reward is nan", index=3, step=17, seed="seed 42"))
        Env 'Maze-v0' (worker 0, sub-env 3, step 17 of its episode, seed 42): the reward is nan. Mend the env or its \
spaces, or set on_bad_values='reset' to drop such episodes and go on.
    """
    where = [f"worker {worker_index}", "all its sub-envs" if index is None else f"sub-env {index}"]
    where += [] if step is None else [f"step {step} of its episode" if step else "at reset"]
    where += [] if seed is None else [seed]
    if issubclass(cls, BadValuesError):
        remedy = "Mend the env or its spaces, or set on_bad_values='reset' to drop such episodes and go on."
    else:
        remedy = "Mend the env, or set on_env_error='reset' to drop such episodes and go on."
    return cls(f"Env {env_id!r} ({', '.join(where)}): {what}. {remedy}")


def raised(method: str, error: Exception) -> str:
    """Say what a method of the env raised."""
    text = f"{method}() raised {type(error).__name__}: {error}".rstrip(": ")
    if method == "reset" and isinstance(error, TypeError) and "seed" in str(error):
        text += "; its signature must be reset(self, *, seed=None, options=None)"
    return text


def wrong_step_result(result: Any) -> str:
    """Say how what `step` returned is not five values."""
    text = f"step() returned {_described(result)}, expected (observation, reward, terminated, truncated, info)"
    if isinstance(result, tuple) and len(result) == 4:
        text += (
            "; four values are the old gym API, whose `done` is split now: return terminated for a true end and "
            "truncated for a time limit"
        )
    return text


def wrong_reset_result(result: Any) -> str | None:
    """Say how what `reset` returned is not an observation and a dict; None where it is."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    return f"reset() returned {_described(result)}, expected (observation, info) where info is a dict"


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)} ({', '.join(type(item).__name__ for item in result)})"
    return "None" if result is None else f"a {type(result).__name__}"


class EnvFaults:
    """Counts the faults of the sub-envs of one vector env, and decides what follows each.

    Args:
        num_counts: how many things fail on their own account: the sub-envs, and perhaps the whole.

    Attributes:
        num_faults: faults so far, of all.
        sleep: how to wait.
    """

    def __init__(self, env_id: str, num_counts: int, config: Any, worker_index: int = 0) -> None:
        self.env_id = env_id
        self.worker_index = worker_index
        self.num_faults = 0
        self.sleep: Callable[[float], None] = time.sleep
        self._on_env_error: str = config.on_env_error
        self._on_bad_values: str = config.on_bad_values
        self._max_in_a_row: int = config.max_env_errors_in_a_row
        self._in_a_row = [0] * num_counts
        self._steps_at_last = [0] * num_counts

    def record(self, account: int, error: EnvError, cause: BaseException | None = None, num_steps: int = 0) -> None:
        """Raise `error`; or count it, log it, and wait a while before the caller replaces the episode.

        Args:
            account: whose faults in a row are counted, until an episode of it ends.
            num_steps: steps of the vector env so far.

        Raises:
            EnvError: by setting, or because this was one fault too many in a row.
        """
        self.num_faults += 1
        by_setting = self._on_bad_values if isinstance(error, BadValuesError) else self._on_env_error
        if by_setting != "reset":
            raise error from cause
        if num_steps - self._steps_at_last[account] > FORGET_AFTER_STEPS:
            self._in_a_row[account] = 0
        self._steps_at_last[account] = num_steps
        self._in_a_row[account] += 1
        in_a_row = self._in_a_row[account]
        if in_a_row > self._max_in_a_row:
            raise EnvError(
                f"Gave up after {in_a_row} faults in a row without a whole episode between them "
                f"(max_env_errors_in_a_row={self._max_in_a_row}). The last one: {error}"
            ) from (cause or error)
        wait_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (in_a_row - 1))
        logger.warning(
            "%s The episode is dropped and a new one starts in %.2f s (fault %d in a row, at most %d).",
            error,
            wait_s,
            in_a_row,
            self._max_in_a_row,
        )
        self.sleep(wait_s)

    def episode_ended(self, account: int) -> None:
        """A whole episode came through: the count in a row starts anew."""
        self._in_a_row[account] = 0
