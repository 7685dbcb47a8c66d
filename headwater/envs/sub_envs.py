"""SubEnvs: the single envs behind CopiesVectorEnv, each with what is known of its running episode.

Starts and replaces episodes, and words what went wrong, so that the loop over them can be short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from headwater.envs.env_faults import (
    BadValuesError,
    EnvFaults,
    make_error,
    raised,
    wrong_reset_result,
    wrong_step_result,
)
from headwater.envs.nested import as_row, make_gather
from headwater.envs.space_check import Mismatch
from headwater.envs.step_checker import StepChecker
from headwater.errors import EnvError

logger = logging.getLogger(__name__)

NOT_RETURNED = object()


class SubEnvs:
    """N Gymnasium envs of the same spaces.

    Args:
        make_env: makes env `i`.
        first_env: env 0, where it is there already.

    Attributes:
        envs: the envs, with their wrappers.
        steps: their `step` methods, looked up once.
        num_steps: steps of the whole so far; the loop counts it.
        gather: makes a batch of rows.
        checker: of the envs' values.
    """

    def __init__(
        self,
        make_env: Callable[[int], gymnasium.Env],
        num_envs: int,
        first_env: gymnasium.Env | None,
        faults: EnvFaults,
        check_every_step: bool = False,
    ) -> None:
        self._make_env = make_env
        self._faults = faults
        self.envs = [make_env(i) if i or first_env is None else first_env for i in range(num_envs)]
        self.steps: list[Callable[[Any], Any]] = [env.step for env in self.envs]
        self.num_steps = 0
        self._seeds: list[int | None] = [None] * num_envs  # given to the last seeded reset
        self._resets_since_seed = [0] * num_envs
        self._started_at = [0] * num_envs  # num_steps as the running episode began
        self._rebuilds = [0] * num_envs
        for index in range(1, num_envs):
            self._check_spaces(index)
        space = self.envs[0].observation_space
        self.gather = make_gather(space, "obs")
        self.checker = StepChecker(space, num_envs, check_every_step)
        self._num_resets = 0

    def start_episode(self, index: int, seed: int | None = None) -> Any:
        """Reset env `index` and return its first observation, as arrays of the space's dtypes.

        Raises:
            EnvError: the reset failed, and the settings do not let it be tried again.
        """
        while True:
            if seed is not None:
                self._seeds[index], self._resets_since_seed[index] = seed, 0
            else:
                self._resets_since_seed[index] += 1
            self._started_at[index] = self.num_steps
            try:
                env = self.envs[index]
                result = env.reset() if seed is None else env.reset(seed=seed)
            except Exception as error:
                self._record(index, EnvError, raised("reset", error), error)
                seed = self._rebuild(index)
                continue
            seed = None  # another try goes on with the env's own random generator
            wrong = wrong_reset_result(result)
            if wrong is not None:
                self._record(index, EnvError, wrong)
                continue
            mismatch = self._mismatch_at_reset(result[0])
            if mismatch is None:
                return as_row(self.envs[0].observation_space, result[0])
            self._record(index, BadValuesError, f"reset() returned what is not in its space: {mismatch}")

    def episode_ended(self, index: int) -> None:
        """An episode of env `index` came through whole, or was cut by the caller."""
        self._faults.episode_ended(index)

    def replace_after_step(self, index: int, result: Any, error: Exception) -> Any:
        """Deal with a failed step of env `index`, and return the first observation of the episode that follows.

        Args:
            result: what `step` returned, or NOT_RETURNED.
            error: what it raised, or what looking at its result raised.

        Raises:
            EnvError: the settings say to stop.
        """
        if isinstance(error, Mismatch):
            return self.replace_bad_values(index, error)
        if result is NOT_RETURNED:
            self._record(index, EnvError, raised("step", error), error)
        else:
            self._record(index, EnvError, wrong_step_result(result))
        return self.start_episode(index, self._rebuild(index))

    def replace_bad_values(self, index: int, mismatch: Mismatch) -> Any:
        """Deal with numbers that must not be used, and return the first observation of the episode that follows.

        Raises:
            EnvError: the settings say to stop.
        """
        self._record(index, BadValuesError, f"step() returned what is not in its space: {mismatch}")
        return self.start_episode(index)

    def get_state(self) -> dict[str, Any]:
        """Return what is known of the running episodes."""
        return {
            "num_steps": self.num_steps,
            "seeds": list(self._seeds),
            "resets_since_seed": list(self._resets_since_seed),
            "started_at": list(self._started_at),
            "rebuilds": list(self._rebuilds),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self.num_steps = state["num_steps"]
        self._seeds = list(state["seeds"])
        self._resets_since_seed = list(state["resets_since_seed"])
        self._started_at = list(state["started_at"])
        self._rebuilds = list(state["rebuilds"])

    def close(self) -> None:
        """Close all envs; one that fails to is only logged."""
        for index in range(len(self.envs)):
            self._close(index)

    def _mismatch_at_reset(self, row: Any) -> Mismatch | None:
        self._num_resets += 1
        if self._num_resets > len(self.envs) and not self.checker.checks_all(self._num_resets):
            try:
                if self.checker.passes(self.gather([row])):
                    return None
            except (TypeError, ValueError, KeyError, IndexError):
                pass  # the whole check says what is wrong, or that it only has to be cast
        return self.checker.row_mismatch(row)

    def _record(self, index: int, cls: type[EnvError], what: str, cause: Exception | None = None) -> None:
        step = self.num_steps - self._started_at[index]
        seed = self._seeds[index]
        told = "unseeded" if seed is None else f"seed {seed}"
        if seed is not None and self._resets_since_seed[index]:
            told += f" and {self._resets_since_seed[index]} resets after it"
        faults = self._faults
        error = make_error(cls, faults.env_id, what, faults.worker_index, index, step, told)
        faults.record(index, error, cause, self.num_steps)

    def _rebuild(self, index: int) -> int | None:
        """Make env `index` anew, and return a seed for it that is reproducible yet not the one it had."""
        self._close(index)
        while True:
            try:
                self.envs[index] = self._make_env(index)
                break
            except EnvError as error:
                self._faults.record(index, error, error.__cause__, self.num_steps)
        self._check_spaces(index)
        self.steps[index] = self.envs[index].step
        self._rebuilds[index] += 1
        seed = self._seeds[index]
        return None if seed is None else int(np.random.SeedSequence([seed, self._rebuilds[index]]).generate_state(1)[0])

    def _check_spaces(self, index: int) -> None:
        for name in ("observation_space", "action_space"):
            first, other = getattr(self.envs[0], name), getattr(self.envs[index], name)
            if first != other:
                raise EnvError(
                    f"Env {self._faults.env_id!r}: sub-env {index} has the {name} {other}, but sub-env 0 has {first}. "
                    "All sub-envs of a worker need the same spaces: make them independent of the env context's "
                    "vector_index and of chance."
                )

    def _close(self, index: int) -> None:
        try:
            self.envs[index].close()
        except Exception as error:
            logger.warning("Env %r (sub-env %d): %s", self._faults.env_id, index, raised("close", error))
