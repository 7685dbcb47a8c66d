"""GymnasiumVectorEnv: a `gymnasium.vector.VectorEnv` of any autoreset mode behind headwater's contract.

Native vector envs run at their own speed: nothing is made per env and step. Their three ways to go on after an
episode's end become one: the final observation in its row, and a mark on the rows that are not transitions.

    NEXT_STEP   the step after an end resets, ignores the action, and gives a row that is not `valid`
    SAME_STEP   the step resets at once; the final observation comes in infos["final_obs"] and is put back into its row
    DISABLED    `reset_done` resets, by the option `reset_mask`
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from headwater.envs.async_envs import close_async_vector_env, ended_processes
from headwater.envs.classic_control import can_reset_in_next_step, reset_in_next_step
from headwater.envs.env_faults import BadValuesError, EnvFaults, make_error, raised
from headwater.envs.env_state import check_kind_of_state, get_env_state, has_env_state, set_env_state
from headwater.envs.gymnasium_modes import (
    autoreset_mode,
    masked_reset_gives_rows,
    seed_argument,
    takes_reset_mask,
    with_final_obs,
)
from headwater.envs.hang_watchdog import HangWatchdog
from headwater.envs.nested import as_row, make_gather, replace_rows, take_rows, tree_map
from headwater.envs.space_check import Mismatch
from headwater.envs.step_checker import StepChecker
from headwater.envs.vector_env import StepResult, VectorEnv
from headwater.errors import EnvError

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0


class GymnasiumVectorEnv(VectorEnv):
    """A vector env of Gymnasium's API as a `VectorEnv`.

    A vector env whose `reset` takes one integer as its seed gets the first of the seeds, from which it seeds all its
    sub-envs; SyncVectorEnv, AsyncVectorEnv and ale_py's take one for each.

    After an error (with `on_env_error="reset"`) the whole vector env is made anew and all its running episodes are
    dropped; after bad values in one row, only that one's where the env can reset it alone.

    Args:
        env: the vector env.
        env_id: for messages.
        config: as in CopiesVectorEnv.
        make_env: makes the vector env anew after an error; None where it cannot be.
        initial_seeds: for the first `reset`, unless that is given some.
        worker_index: for messages.

    Raises:
        EnvError: the env does not declare its autoreset mode.
        UnsupportedSpaceError: a space is not made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Example:
        >>> from headwater.config import TrainerConfig
        >>> env = GymnasiumVectorEnv(gymnasium.make_vec("CartPole-v1", num_envs=3), "CartPole-v1", TrainerConfig())
        >>> env.autoreset_rows, env.reset(seeds=[7, 8, 9]).shape
        (True, (3, 4))
        >>> env.step(np.array([0, 1, 0])).valid is None
        True
        >>> env.close()
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        env_id: str,
        config: Any,
        make_env: Callable[[], gymnasium.vector.VectorEnv] | None = None,
        initial_seeds: Sequence[int] | None = None,
        worker_index: int = 0,
    ) -> None:
        self.env_id = env_id
        self.num_envs = env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._env, self._make_env = env, make_env
        self._mode = autoreset_mode(env, env_id)
        self._takes_reset_mask = takes_reset_mask(env, self._mode)
        self.autoreset_rows = self._mode is AutoresetMode.NEXT_STEP
        self._gather = make_gather(self.observation_space, "obs")
        make_gather(self.action_space, "action")  # refuses spaces whose values do not stack
        self._owns_actions = isinstance(self.action_space, gymnasium.spaces.Box)
        self._batch_shape = (self.num_envs, *(self.observation_space.shape or ()))
        self._checker = StepChecker(self.observation_space, self.num_envs, config.check_env_steps)
        # One account for the values of each sub-env, and the last one for the whole.
        self._faults = EnvFaults(env_id, self.num_envs + 1, config, worker_index)
        self._watchdog = HangWatchdog(env_id, config.env_hang_warn_s)
        weakref.finalize(self, self._watchdog.stop)
        self._initial_seeds = initial_seeds
        self._seeds: Sequence[int] | None = None
        self._num_steps = 0
        self._rebuilds = 0
        self._obs: Any = None  # to act on next
        self._finished = np.zeros(self.num_envs, bool)  # ended in the last step, or cut after it
        self._any_finished = False
        self._lost: np.ndarray | None = None  # episodes lost in reset_done, to be told by the next step
        self._has_state = has_env_state(env)

    @property
    def envs(self) -> Sequence[Any]:  # type: ignore[override]
        """The single envs, where the vector env holds such in this process."""
        return [env.unwrapped for env in getattr(self._env.unwrapped, "envs", ())]

    @property
    def num_faults(self) -> int:  # type: ignore[override]
        """Faults so far that were survived."""
        return self._faults.num_faults

    @property
    def can_reset_rows(self) -> bool:
        """Whether `reset_done` may name envs whose episode has not ended, as a horizon does."""
        return self._takes_reset_mask or can_reset_in_next_step(self._env)

    def reset(self, seeds: Sequence[int] | None = None) -> Any:
        if seeds is None and self._obs is None:
            seeds = self._initial_seeds
        self._watchdog.start()
        self._lost = None
        return self._start_all(None if seeds is None else [int(seed) for seed in seeds])

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        if self._obs is None or (self._any_finished and self._mode is AutoresetMode.DISABLED):
            asked = "before reset()" if self._obs is None else "after an episode ended: call reset_done(mask) first"
            raise EnvError(f"Env {self.env_id!r}: step() was called {asked}.")
        if self._lost is not None:
            return self._tell_lost(self._lost)
        self._num_steps += 1
        check_all = self._checker.checks_all(self._num_steps)
        if self._owns_actions:
            actions = np.array(actions)  # the env may write into them
        self._watchdog.ticks += 1
        try:
            obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
            obs = self._conformed(obs, check_all)
            rewards = _vector(rewards, np.float32, self.num_envs, "the rewards")
            terminateds = _vector(terminateds, np.bool_, self.num_envs, "terminated")
            truncateds = _vector(truncateds, np.bool_, self.num_envs, "truncated")
        except Exception as error:
            return self._tell_lost(self._restart(self._error_of("step", error), error))
        finally:
            self._watchdog.ticks += 1

        valid = ~self._finished if self._any_finished and self.autoreset_rows else None
        ended = terminateds | truncateds
        any_ended = bool(ended.any())
        if valid is not None and any_ended:
            terminateds, truncateds = terminateds & valid, truncateds & valid
        self._obs, self._finished, self._any_finished = obs, ended, any_ended
        passes = self._checker.passes(obs, rewards)
        if any_ended and self._mode is AutoresetMode.SAME_STEP:
            obs = with_final_obs(self.observation_space, self._gather, obs, np.flatnonzero(ended), infos, self.env_id)
            passes = passes and self._checker.passes(obs, rewards)
        result = StepResult(obs, rewards, terminateds, truncateds, valid, infos or None, None)
        return result if passes and not check_all else self._checked(result)

    def reset_done(self, mask: np.ndarray) -> Any:
        mask = np.asarray(mask, bool)
        to_reset = mask if self._mode is AutoresetMode.DISABLED else mask & ~self._finished
        if to_reset.any():
            self._reset_rows(to_reset)
        if not self.autoreset_rows:
            self._finished = self._finished & ~mask
            self._any_finished = bool(self._finished.any())
        for account in (*np.flatnonzero(mask).tolist(), self.num_envs):
            self._faults.episode_ended(account)
        return self._obs

    def resets_next(self, mask: np.ndarray) -> np.ndarray | None:
        # Rows that a masked reset has cut show the first observation of their new episode already.
        return self._finished if self.autoreset_rows else None

    @property
    def has_state(self) -> bool:
        return self._has_state

    def get_state(self) -> dict[str, Any] | None:
        if not self._has_state or self._obs is None:
            return None
        return {
            "kind": type(self).__name__,
            "num_envs": self.num_envs,
            "env": get_env_state(self._env),
            "obs": tree_map(np.copy, self._obs),
            "finished": self._finished.copy(),
            "seeds": self._seeds,
            "num_steps": self._num_steps,
            "rebuilds": self._rebuilds,
        }

    def set_state(self, state: dict[str, Any]) -> Any:
        check_kind_of_state(state, self)
        set_env_state(self._env, state["env"])
        self._obs = tree_map(np.copy, state["obs"])
        self._finished = state["finished"].copy()
        self._any_finished = bool(self._finished.any())
        self._seeds, self._num_steps, self._rebuilds = state["seeds"], state["num_steps"], state["rebuilds"]
        self._watchdog.start()
        return self._obs

    def close(self) -> None:
        self._watchdog.close()
        self._close_env()

    # Resets.

    def _start_all(self, seeds: Sequence[int] | None) -> Any:
        """Reset all sub-envs, again after a fault that the settings let pass; return and keep the observations."""
        while True:
            self._seeds = self._seeds if seeds is None else seeds
            self._watchdog.ticks += 1
            try:
                obs, _ = self._env.reset(seed=seed_argument(self._env, seeds))
                obs = self._conformed(obs, check_all=True)
                mismatch = self._checker.mismatch(obs)
                if mismatch is not None:
                    raise mismatch
                break
            except Exception as error:
                fault = self._error_of("reset", error)
                self._faults.record(self.num_envs, fault, error, self._num_steps)
                seeds = None if isinstance(fault, BadValuesError) else self._rebuild(fault)
            finally:
                self._watchdog.ticks += 1
        self._obs = obs
        self._finished = np.zeros(self.num_envs, bool)
        self._any_finished = False
        return obs

    def _reset_rows(self, mask: np.ndarray) -> None:
        """Reset the sub-envs of `mask` while the others go on."""
        if not self._takes_reset_mask:
            if can_reset_in_next_step(self._env):
                reset_in_next_step(self._env, mask)
                self._finished = self._finished | mask
                self._any_finished = True
                return
            raise EnvError(
                f"Env {self.env_id!r}: {type(self._env.unwrapped).__name__} cannot reset single sub-envs before their "
                "episode ends, which a horizon needs. Set vectorization='sync', or give the time limit to the env."
            )
        self._watchdog.ticks += 1
        try:
            obs, _ = self._env.reset(options={"reset_mask": mask.copy()})
            if masked_reset_gives_rows(self._env):
                obs = replace_rows(self._obs, mask, obs)
            obs = self._conformed(obs, check_all=True)
        except Exception as error:
            self._lost = self._restart(self._error_of("reset", error), error) & ~mask
            return
        finally:
            self._watchdog.ticks += 1
        indices = np.flatnonzero(mask)
        self._obs = replace_rows(self._obs, indices, take_rows(obs, indices))
        self._finished = self._finished & ~mask
        self._any_finished = bool(self._finished.any())

    # Faults.

    def _conformed(self, obs: Any, check_all: bool) -> Any:
        """Return the observations with the space's dtypes; raise Mismatch where their shapes or dtypes do not fit."""
        if check_all:
            mismatch = self._checker.mismatch(obs)
            if mismatch is not None and mismatch.row is None:
                raise mismatch
        if type(obs) is not np.ndarray or obs.dtype != self.observation_space.dtype:
            obs = as_row(self.observation_space, obs)
        if type(obs) is np.ndarray and obs.shape != self._batch_shape:
            raise Mismatch(f"obs has the shape {obs.shape}, expected {self._batch_shape}")
        return obs

    def _checked(self, result: StepResult) -> StepResult:
        """Look at all values of a step, and drop the episodes whose values must not be used."""
        obs, rewards, terminateds, truncateds, valid, infos, _ = result
        dropped = np.zeros(self.num_envs, bool)
        while True:
            mismatch = self._checker.mismatch(obs, rewards) or self._checker.mismatch(self._obs)
            if mismatch is None:
                break
            row = mismatch.row
            error = self._error(BadValuesError, f"step() returned what is not in its space: {mismatch}", row)
            if row is None or not self._takes_reset_mask:
                return self._tell_lost(self._restart(error))
            self._faults.record(row, error, None, self._num_steps)
            dropped[row] = True
            self._reset_rows(np.arange(self.num_envs) == row)
            obs = replace_rows(obs, [row], take_rows(self._obs, [row]))
            rewards = np.where(dropped, np.float32(0), rewards)
        if not dropped.any():
            return result
        running = ~dropped if valid is None else valid & ~dropped
        dropped = dropped if valid is None else dropped & valid
        return StepResult(obs, rewards, terminateds & running, truncateds & running, running, infos, dropped)

    def _restart(self, error: EnvError, cause: Exception | None = None) -> np.ndarray:
        """Start all sub-envs anew after a fault, and return the mask of those that were in an episode."""
        lost = ~self._finished if self.autoreset_rows else np.ones(self.num_envs, bool)
        self._faults.record(self.num_envs, error, cause, self._num_steps)
        self._start_all(None if isinstance(error, BadValuesError) else self._rebuild(error))
        return lost

    def _tell_lost(self, lost: np.ndarray) -> StepResult:
        self._lost = None
        none = np.zeros(self.num_envs, bool)
        return StepResult(self._obs, np.zeros(self.num_envs, np.float32), none, none.copy(), none.copy(), None, lost)

    def _rebuild(self, error: EnvError) -> Sequence[int] | None:
        """Make the vector env anew, and return seeds that are reproducible yet not those it had."""
        if self._make_env is None:
            raise EnvError(f"{error} This vector env was made by the user and cannot be made anew here.") from error
        self._close_env()
        self._env = self._make_env()
        self._rebuilds += 1
        if self._seeds is None:
            return None
        return [int(np.random.SeedSequence([seed, self._rebuilds]).generate_state(1)[0]) for seed in self._seeds]

    def _error_of(self, method: str, error: Exception) -> EnvError:
        if isinstance(error, EnvError):  # worded in the sub-env's own process
            return error
        if isinstance(error, Mismatch):
            return self._error(BadValuesError, f"{method}() returned what is not in its space: {error}", error.row)
        what = raised(method, error)
        base = self._env.unwrapped
        ended = ended_processes(base) if isinstance(base, AsyncVectorEnv) else ""
        return self._error(EnvError, what + (f" (ended processes: {ended})" if ended else ""))

    def _error(self, cls: type[EnvError], what: str, row: int | None = None) -> EnvError:
        seed = None if self._seeds is None else f"seed {self._seeds[row or 0]}"
        what = f"in step {self._num_steps} of the vector env, {what}"
        return make_error(cls, self.env_id, what, self._faults.worker_index, row, None, seed)

    def _close_env(self) -> None:
        base = self._env.unwrapped
        try:
            if isinstance(base, AsyncVectorEnv):
                close_async_vector_env(base, CLOSE_TIMEOUT_S)
            else:
                self._env.close()
        except Exception as error:
            logger.warning("Env %r: %s", self.env_id, raised("close", error))


def _vector(values: Any, dtype: Any, num_envs: int, name: str) -> np.ndarray:
    array = np.asarray(values, dtype)
    if array.shape != (num_envs,):
        raise Mismatch(f"{name} have the shape {array.shape}, expected ({num_envs},)")
    return array
