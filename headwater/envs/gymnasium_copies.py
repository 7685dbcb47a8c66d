"""CopiesVectorEnv: N copies of a Gymnasium env, stepped one after the other in this process.

Its loop is the hot path of most runs. It keeps one list for the observations and one for the rewards, and makes one
array of each; it makes no mask, dict or check per env unless an episode ended, an info came, or something went wrong.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from headwater.envs.env_faults import EnvFaults
from headwater.envs.env_state import check_kind_of_state, get_env_state, has_env_state, set_env_state
from headwater.envs.hang_watchdog import HangWatchdog
from headwater.envs.nested import as_row, make_split, replace_rows, row_of, tree_map
from headwater.envs.space_check import Mismatch
from headwater.envs.step_checker import check_rewards, scalar_mismatch
from headwater.envs.sub_envs import NOT_RETURNED, SubEnvs
from headwater.envs.vector_env import StepResult, VectorEnv
from headwater.errors import EnvError

logger = logging.getLogger(__name__)


class CopiesVectorEnv(VectorEnv):
    """N Gymnasium envs of one kind as a `VectorEnv`. A finished env waits for `reset_done`.

    Args:
        make_env: makes env `i`; called once for each, and again for one that must be rebuilt after a fault.
        num_envs: N.
        env_id: for messages.
        config: a TrainerConfig; read are on_env_error, on_bad_values, max_env_errors_in_a_row, check_env_steps and
            env_hang_warn_s.
        first_env: env 0, where the caller had to make it already.
        initial_seeds: for the first `reset`, unless that is given some.
        worker_index: for messages.

    Raises:
        EnvError: the copies have different spaces.
        UnsupportedSpaceError: a space is not made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Example:
        >>> from headwater.config import TrainerConfig
        >>> env = CopiesVectorEnv(lambda index: gymnasium.make("Pendulum-v1"), 2, "Pendulum-v1", TrainerConfig())
        >>> env.reset(seeds=[1, 2]).shape
        (2, 3)
        >>> env.step(np.zeros((2, 1), np.float32)).rewards.shape
        (2,)
        >>> env.close()
    """

    can_skip = True

    def __init__(
        self,
        make_env: Callable[[int], gymnasium.Env],
        num_envs: int,
        env_id: str,
        config: Any,
        first_env: gymnasium.Env | None = None,
        initial_seeds: Sequence[int] | None = None,
        worker_index: int = 0,
    ) -> None:
        self.num_envs = num_envs
        self.env_id = env_id
        self._faults = EnvFaults(env_id, num_envs, config, worker_index)
        self._sub_envs = SubEnvs(make_env, num_envs, first_env, self._faults, config.check_env_steps)
        first_env = self._sub_envs.envs[0]
        self.observation_space, self.action_space = first_env.observation_space, first_env.action_space
        self._gather, self._checker = self._sub_envs.gather, self._sub_envs.checker
        self._split = make_split(self.action_space)
        self._watchdog = HangWatchdog(env_id, config.env_hang_warn_s)
        weakref.finalize(self, self._watchdog.stop)
        self._initial_seeds = initial_seeds
        self._obs: Any = None
        self._finished = np.zeros(num_envs, bool)
        self._any_finished = False
        self._has_state = all(has_env_state(env) for env in self._sub_envs.envs)

    @property
    def envs(self) -> list[gymnasium.Env]:  # type: ignore[override]
        """The single envs, without their wrappers."""
        return [env.unwrapped for env in self._sub_envs.envs]

    @property
    def num_faults(self) -> int:  # type: ignore[override]
        """Faults so far that were survived."""
        return self._faults.num_faults

    def reset(self, seeds: Sequence[int] | None = None) -> Any:
        if seeds is None and self._obs is None:
            seeds = self._initial_seeds
        self._watchdog.start()
        self._watchdog.ticks += 1
        try:
            rows = []
            for index in range(self.num_envs):
                rows.append(self._sub_envs.start_episode(index, None if seeds is None else int(seeds[index])))
        finally:
            self._watchdog.ticks += 1
        self._obs = self._gather(rows)
        self._finished = np.zeros(self.num_envs, bool)
        self._any_finished = False
        return self._obs

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        if self._obs is None:
            raise EnvError(f"Env {self.env_id!r}: step() was called before reset().")
        if self._any_finished and (active is None or (self._finished & active).any()):
            raise EnvError(
                f"Env {self.env_id!r}: step() was called after an episode ended: call reset_done(mask) first."
            )
        sub_envs = self._sub_envs
        steps: list[Callable[[Any], Any]] = sub_envs.steps
        if active is not None:
            steps = [step if active[index] else self._idle_step(index) for index, step in enumerate(steps)]
        sub_envs.num_steps += 1
        check_all = self._checker.checks_all(sub_envs.num_steps)
        rows: list[Any] = []
        rewards: list[Any] = []
        ended: dict[int, tuple[Any, Any]] = {}
        dropped: list[int] = []
        infos: list[dict[str, Any]] | None = None
        self._watchdog.ticks += 1
        try:
            for index, (env_step, action) in enumerate(zip(steps, self._split(actions), strict=True)):
                result: Any = NOT_RETURNED
                try:
                    result = env_step(action)
                    row, reward, terminated, truncated, info = result
                    if check_all:
                        _check_scalars(reward, terminated, truncated, info)
                except Exception as error:
                    row, reward = sub_envs.replace_after_step(index, result, error), 0.0
                    terminated = truncated = info = False
                    dropped.append(index)
                rows.append(row)
                rewards.append(reward)
                if terminated or truncated:
                    ended[index] = terminated, truncated
                if info:
                    if infos is None:
                        infos = [{} for _ in range(self.num_envs)]
                    infos[index] = info
            obs, reward_array = self._batch(rows, rewards, check_all, dropped)
        finally:
            self._watchdog.ticks += 1
        self._obs = obs
        return self._result(obs, reward_array, ended, infos, dropped, active)

    def reset_done(self, mask: np.ndarray) -> Any:
        indices = np.asarray(mask).nonzero()[0].tolist()
        if not indices:
            return self._obs
        self._watchdog.ticks += 1
        try:
            rows = []
            for index in indices:
                self._faults.episode_ended(index)
                rows.append(self._sub_envs.start_episode(index))
        finally:
            self._watchdog.ticks += 1
        self._obs = replace_rows(self._obs, indices, self._gather(rows))
        self._finished = self._finished & ~np.asarray(mask, bool)
        self._any_finished = bool(self._finished.any())
        return self._obs

    def _result(
        self,
        obs: Any,
        rewards: np.ndarray,
        ended: dict[int, tuple[Any, Any]],
        infos: list[dict[str, Any]] | None,
        dropped: list[int],
        active: np.ndarray | None,
    ) -> StepResult:
        num_envs = self.num_envs
        terminateds, truncateds = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        for index, flags in ended.items():
            if index not in dropped:
                terminateds[index], truncateds[index] = map(bool, flags)
        if ended:
            self._finished = self._finished | terminateds | truncateds
            self._any_finished = bool(self._finished.any())
        if not dropped:
            valid = None if active is None else active.copy()
            return StepResult(obs, rewards, terminateds, truncateds, valid, infos, None)
        lost = np.zeros(num_envs, bool)
        lost[dropped] = True
        return StepResult(
            obs, rewards, terminateds, truncateds, ~lost if active is None else active & ~lost, infos, lost
        )

    def _idle_step(self, index: int) -> Callable[[Any], tuple[Any, float, bool, bool, dict[str, Any]]]:
        """Return a step that leaves env `index` alone and repeats its observation."""
        row = row_of(self._obs, index)
        return lambda action: (row, 0.0, False, False, {})

    def _batch(
        self, rows: list[Any], rewards: list[Any], check_all: bool, dropped: list[int]
    ) -> tuple[Any, np.ndarray]:
        """Make the arrays of a step; an env whose values do not pass has its episode replaced, and joins `dropped`."""
        try:
            obs = self._gather(rows)
            reward_array = np.array(rewards, np.float32).reshape(self.num_envs)
            passes = self._checker.passes(obs, reward_array)
        except (TypeError, ValueError, KeyError, IndexError):
            passes = False
        if not passes:
            obs, reward_array = self._batch_with_care(rows, rewards, dropped)
        if check_all:
            while (mismatch := self._checker.mismatch(obs)) is not None:
                index = mismatch.row
                assert index is not None
                row = self._sub_envs.replace_bad_values(index, mismatch)
                obs = replace_rows(obs, [index], self._gather([row]))
                reward_array[index] = 0
                dropped.append(index)
        return obs, reward_array

    def _batch_with_care(self, rows: list[Any], rewards: list[Any], dropped: list[int]) -> tuple[Any, np.ndarray]:
        """Go through the rows one by one: find those at fault, and cast what a plain gather does not."""
        for index, (row, reward) in enumerate(zip(rows, rewards, strict=True)):
            mismatch = self._checker.row_mismatch(row) or scalar_mismatch(reward, False, False, {})
            if mismatch is None:
                rewards[index] = np.float32(np.asarray(reward).item())
                mismatch = _caught(check_rewards, rewards[index][None])
            if mismatch is not None:
                rows[index], rewards[index] = self._sub_envs.replace_bad_values(index, mismatch), 0.0
                dropped.append(index)
        obs = self._gather([as_row(self.observation_space, row) for row in rows])
        return obs, np.array(rewards, np.float32)

    # State.

    @property
    def has_state(self) -> bool:
        return self._has_state

    def get_state(self) -> dict[str, Any] | None:
        if not self._has_state or self._obs is None:
            return None
        try:
            envs = [get_env_state(env) for env in self._sub_envs.envs]
        except EnvError as error:
            logger.warning("%s Its episodes will restart when a run is resumed.", error)
            self._has_state = False
            return None
        return {
            "kind": type(self).__name__,
            "num_envs": self.num_envs,
            "envs": envs,
            "episodes": self._sub_envs.get_state(),
            "obs": tree_map(np.copy, self._obs),
            "finished": self._finished.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> Any:
        check_kind_of_state(state, self)
        for env, env_state in zip(self._sub_envs.envs, state["envs"], strict=True):
            set_env_state(env, env_state)
        self._sub_envs.set_state(state["episodes"])
        self._obs = tree_map(np.copy, state["obs"])
        self._finished = state["finished"].copy()
        self._any_finished = bool(self._finished.any())
        self._watchdog.start()
        return self._obs

    def close(self) -> None:
        self._watchdog.close()
        self._sub_envs.close()


def _check_scalars(reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
    mismatch = scalar_mismatch(reward, terminated, truncated, info)
    if mismatch is not None:
        raise mismatch


def _caught(check: Callable[..., None], *arguments: Any) -> Mismatch | None:
    try:
        check(*arguments)
    except Mismatch as mismatch:
        return mismatch
    return None
