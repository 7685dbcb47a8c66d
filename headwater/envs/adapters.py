"""Adapters: vector and multi-agent envs as a `BaseEnv`, and `to_base_env`, which finds the one that fits.

External envs have theirs in `headwater.envs.external_to_base`; `RemoteVectorEnv` is a BaseEnv itself.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.config import TrainerConfig
from headwater.envs.base_env import AGENT_ID, ALL_DONE, ASYNC_RESET_RETURN, BaseEnv, LostEpisode, Poll, poll_of_start
from headwater.envs.env_context import EnvContext
from headwater.envs.env_faults import EnvFaults, make_error, raised, wrong_reset_result
from headwater.envs.external_env import ExternalEnv
from headwater.envs.hang_watchdog import HangWatchdog
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.envs.nested import as_row, make_gather, row_of
from headwater.envs.sub_envs import NOT_RETURNED
from headwater.envs.vector_env import VectorEnv, info_of_row
from headwater.envs.vectorize import Vectorizer
from headwater.errors import ConfigError, EnvError

logger = logging.getLogger(__name__)


class _MultiAgentEnvToBaseEnv(BaseEnv):
    """N copies of a multi-agent env in this process; `send_actions` steps them, `poll` hands out what came.

    Args:
        make_env: makes env `i`.
        num_envs: N.
        env_id: for messages.
        config: read are on_env_error, max_env_errors_in_a_row and env_hang_warn_s.
        first_env: env 0, where it is there already.
        worker_index: for messages.
    """

    def __init__(
        self,
        make_env: Callable[[int], MultiAgentEnv],
        num_envs: int,
        env_id: str,
        config: Any,
        first_env: MultiAgentEnv | None = None,
        worker_index: int = 0,
    ) -> None:
        self.env_id = env_id
        self.num_envs = num_envs
        self._make_env = make_env
        self._envs = [make_env(i) if i or first_env is None else first_env for i in range(num_envs)]
        first = self._envs[0]
        known = first.observation_spaces or first.action_spaces
        self.possible_agents = first.possible_agents or (None if known is None else list(known))
        self._faults = EnvFaults(env_id, num_envs, config, worker_index)
        self._watchdog = HangWatchdog(env_id, config.env_hang_warn_s)
        weakref.finalize(self, self._watchdog.stop)
        self._running = [False] * num_envs
        self._steps = [0] * num_envs  # of the running episode
        self._num_steps = 0
        self._seeds: list[int | None] = [None] * num_envs
        self._rebuilds = [0] * num_envs
        self._ready: Poll = poll_of_start({})
        self._lost: dict[int, int | None] = {}  # envs whose loss is to be told, and the seed of what follows

    @property
    def envs(self) -> list[Any]:  # type: ignore[override]
        return [env.unwrapped for env in self._envs]

    @property
    def num_faults(self) -> int:  # type: ignore[override]
        return self._faults.num_faults

    def observation_space_of(self, agent_id: Any) -> spaces.Space:
        return self._envs[0].get_observation_space(agent_id)

    def action_space_of(self, agent_id: Any) -> spaces.Space:
        return self._envs[0].get_action_space(agent_id)

    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        self._ready, self._lost = poll_of_start({}), {}
        self._watchdog.start()
        for index in range(self.num_envs):
            self._begin(index, None if seeds is None else int(seeds[index]))

    def poll(self) -> Poll:
        ready, self._ready = self._ready, poll_of_start({})
        for index, seed in self._lost.items():
            self._begin(index, seed)
        self._lost = {}
        return ready

    def send_actions(self, action_dict: dict[Any, dict[Any, Any]]) -> None:
        ready = self._ready
        self._num_steps += 1
        self._watchdog.ticks += 1
        try:
            for index, actions in action_dict.items():
                if not self._running[index]:
                    raise EnvError(f"Env {self.env_id!r}: actions came for sub-env {index}, whose episode has ended.")
                self._steps[index] += 1
                result: Any = NOT_RETURNED
                try:
                    result = self._envs[index].step(actions)
                    obs, rewards, terminateds, truncateds, infos = result
                    over = terminateds.get(ALL_DONE, False) or truncateds.get(ALL_DONE, False)
                    if ALL_DONE not in terminateds and ALL_DONE not in truncateds:
                        raise _BrokenRule(f"step() gave no {ALL_DONE!r} in terminateds or truncateds")
                    if not (type(obs) is dict and type(rewards) is dict):
                        obs, rewards, infos = dict(obs), dict(rewards), dict(infos)
                except Exception as error:
                    self._lose(index, _wrong_step(result, error), error)
                    continue
                if over:
                    self._running[index] = False
                ready.obs[index] = obs
                ready.rewards[index] = rewards
                ready.terminateds[index] = terminateds
                ready.truncateds[index] = truncateds
                ready.infos[index] = infos
        finally:
            self._watchdog.ticks += 1

    def try_reset(self, env_id: Any) -> dict[Any, Any]:
        self._faults.episode_ended(env_id)
        return self._first_obs(env_id, None)[0]

    def stop(self) -> None:
        self._watchdog.stop()
        for index in range(self.num_envs):
            self._close(index)

    def _begin(self, index: int, seed: int | None) -> None:
        """Start an episode whose observations come with the next poll."""
        self._ready.obs[index], self._ready.infos[index] = self._first_obs(index, seed)
        for part in (self._ready.rewards, self._ready.terminateds, self._ready.truncateds):
            part[index] = {}

    def _first_obs(self, index: int, seed: int | None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self._watchdog.ticks += 1
        try:
            while True:
                self._steps[index] = 0
                self._seeds[index] = seed if seed is not None else self._seeds[index]
                result: Any = None
                try:
                    env = self._envs[index]
                    result = env.reset() if seed is None else env.reset(seed=seed)
                    wrong = wrong_reset_result(result)
                except Exception as error:
                    self._record(index, raised("reset", error), error)
                    seed = self._rebuild(index)
                    continue
                if wrong is None and not (isinstance(result[0], dict) and result[0]):
                    wrong = f"reset() gave the observations {result[0]!r}, expected {{agent_id: what it observes}}"
                if wrong is not None:
                    self._record(index, wrong, None)
                    continue
                self._running[index] = True
                return result
        finally:
            self._watchdog.ticks += 1

    def _lose(self, index: int, what: str, error: Exception) -> None:
        """Count a fault; where the run goes on, its episode is lost, and another begins with the poll after that."""
        self._record(index, what, None if isinstance(error, _BrokenRule) else error)
        self._running[index] = False
        self._ready.obs[index] = LostEpisode(what)
        self._lost[index] = self._rebuild(index)

    def _record(self, index: int, what: str, cause: Exception | None) -> None:
        seed = self._seeds[index]
        told = "unseeded" if seed is None else f"last seed {seed}"
        faults = self._faults
        error = make_error(EnvError, self.env_id, what, faults.worker_index, index, self._steps[index], told)
        faults.record(index, error, cause, self._num_steps)

    def _rebuild(self, index: int) -> int | None:
        """Make env `index` anew; a seed for it that is reproducible yet not the one that it had."""
        self._close(index)
        self._envs[index] = self._make_env(index)
        self._rebuilds[index] += 1
        seed = self._seeds[index]
        return None if seed is None else int(np.random.SeedSequence([seed, self._rebuilds[index]]).generate_state(1)[0])

    def _close(self, index: int) -> None:
        try:
            self._envs[index].close()
        except Exception as error:
            logger.warning("Env %r (sub-env %d): %s", self.env_id, index, raised("close", error))


class _BrokenRule(Exception):
    """What an env returned breaks the contract."""


def _wrong_step(result: Any, error: Exception) -> str:
    if isinstance(error, _BrokenRule):
        return str(error)
    if result is NOT_RETURNED:
        return raised("step", error)
    text = "step() must return five dicts by agent: observations, rewards, terminateds, truncateds, infos; it returned "
    if not isinstance(result, tuple):
        return f"{text}a {type(result).__name__}"
    text += f"a tuple of {len(result)} ({', '.join(type(item).__name__ for item in result)})"
    if len(result) == 4:
        text += "; the 1.x line's `dones` are split now: terminateds for true ends, truncateds for time limits"
    return text


class _VectorEnvToBaseEnv(BaseEnv):
    """A vector env as a BaseEnv: every env has the one agent "agent0", and all are stepped together.

    Args:
        env: the vector env.
    """

    is_multi_agent = False
    possible_agents = [AGENT_ID]

    def __init__(self, env: VectorEnv) -> None:
        self.vector_env = env
        self.env_id = env.env_id
        self.num_envs = env.num_envs
        self._gather = make_gather(env.action_space, "action")
        self._ready: Poll = poll_of_start({})
        self._actions: list[Any] = [as_row(env.action_space, env.action_space.sample())] * env.num_envs
        self._asked = np.zeros(env.num_envs, bool)  # an episode runs or begins that the sampler asked for
        self._after_loss: dict[int, Any] = {}  # first observations of what follows lost episodes

    @property
    def envs(self) -> Sequence[Any]:  # type: ignore[override]
        return self.vector_env.envs

    @property
    def num_faults(self) -> int:  # type: ignore[override]
        return self.vector_env.num_faults

    def observation_space_of(self, agent_id: Any) -> spaces.Space:
        return self.vector_env.observation_space

    def action_space_of(self, agent_id: Any) -> spaces.Space:
        return self.vector_env.action_space

    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        obs = self.vector_env.reset(seeds)
        self._asked[:] = True
        self._ready = poll_of_start({index: {AGENT_ID: row_of(obs, index)} for index in range(self.num_envs)})

    def poll(self) -> Poll:
        ready, self._ready = self._ready, poll_of_start({})
        for index, obs in ready.obs.items():
            if isinstance(obs, LostEpisode):  # its next episode began already: that is for the next poll
                self._put_start(index, self._after_loss[index])
        return ready

    def send_actions(self, action_dict: dict[Any, dict[Any, Any]]) -> None:
        env, ready = self.vector_env, self._ready
        for index, actions in action_dict.items():
            if actions:
                self._actions[index] = as_row(env.action_space, actions[AGENT_ID])
        batch = self._gather(self._actions)
        active = self._asked.copy()
        result = env.step(batch, active) if env.can_skip and not active.all() else env.step(batch)
        self._after_loss = {}
        for index in np.flatnonzero(active).tolist():
            row = row_of(result.obs, index)
            if result.dropped is not None and result.dropped[index]:
                ready.obs[index] = LostEpisode("a fault of the env, see the log")
                self._after_loss[index] = row
            elif result.valid is not None and not result.valid[index]:
                self._put_start(index, row)
            else:
                ended = bool(result.terminateds[index]), bool(result.truncateds[index])
                ready.obs[index] = {AGENT_ID: row}
                ready.rewards[index] = {AGENT_ID: result.rewards[index]}
                ready.terminateds[index], ready.truncateds[index] = {ALL_DONE: ended[0]}, {ALL_DONE: ended[1]}
                ready.infos[index] = {AGENT_ID: info_of_row(result.infos, index)}
                self._asked[index] = not any(ended)

    def try_reset(self, env_id: Any) -> dict[Any, Any] | str:
        mask = np.arange(self.num_envs) == env_id
        obs = self.vector_env.reset_done(mask)
        self._asked[env_id] = True
        later = self.vector_env.resets_next(mask)
        return ASYNC_RESET_RETURN if later is not None and later[env_id] else {AGENT_ID: row_of(obs, env_id)}

    def stop(self) -> None:
        self.vector_env.close()

    def _put_start(self, index: int, row: Any) -> None:
        self._ready.obs[index] = {AGENT_ID: row}
        for part in (self._ready.rewards, self._ready.terminateds, self._ready.truncateds):
            part[index] = {}


def make_env(
    creator: Callable[[EnvContext], Any],
    env_id: str,
    num_envs: int,
    config: Any,
    context: EnvContext,
    seeds: Sequence[int] | None = None,
    validate_env: Callable[[Any, EnvContext], None] | None = None,
) -> VectorEnv | BaseEnv:
    """Make a worker's envs: a VectorEnv where each has a single agent and all are stepped together, else a BaseEnv.

    The arguments are those of `make_vector_env`. Nothing is reset.

    Raises:
        EnvError: an env could not be made, is no env, or was refused.
        ConfigError: the settings do not suit the kind of env.
    """
    context = context.copy_with(remote=True) if config.remote_worker_envs else context
    vectorizer = Vectorizer(creator, env_id, num_envs, config, context, seeds, validate_env, 0)
    if not config.remote_worker_envs:
        made = vectorizer.make()
        if isinstance(made, VectorEnv):
            return made
        return to_base_env(
            made, vectorizer.make_one, num_envs, env_id=env_id, config=config, worker_index=context.worker_index
        )
    from headwater.envs.remote_vector_env import RemoteVectorEnv

    return RemoteVectorEnv(
        vectorizer.make_one, num_envs, None, config.remote_env_batch_wait_ms, env_id=env_id, config=config,
        worker_index=context.worker_index,
    )  # fmt: skip


def to_base_env(
    env: Any,
    make_env: Callable[[int], Any] | None = None,
    num_envs: int = 1,
    remote_envs: bool = False,
    remote_env_batch_wait_ms: int = 0,
    *,
    env_id: str = "env",
    config: Any = None,
    worker_index: int = 0,
) -> BaseEnv:
    """Whatever gives experience, as a BaseEnv.

    Args:
        env: a BaseEnv, VectorEnv, MultiAgentEnv, ExternalEnv, PettingZoo env or Gymnasium env: the first of `num_envs`.
        make_env: makes env `i`, for the others; needed from two envs on.
        num_envs: N.
        remote_envs: let each env be a Ray actor; `env` then only says of what kind they are.
        remote_env_batch_wait_ms: see `RemoteVectorEnv`.
        env_id, worker_index: for messages.
        config: a TrainerConfig, for what the adapters read.

    Raises:
        ConfigError: an external env is not single, or there is no adapter.
    """
    config = TrainerConfig() if config is None else config
    if isinstance(env, BaseEnv):
        return env
    if isinstance(env, ExternalEnv):
        if num_envs != 1:
            raise ConfigError(
                f"Env {env_id!r} is an external env, which runs any number of episodes at once: set "
                f"num_envs_per_worker=1, not {num_envs}."
            )
        from headwater.envs.external_to_base import _ExternalEnvToBaseEnv

        return _ExternalEnvToBaseEnv(env, env_id)
    if make_env is None:
        if num_envs > 1:
            raise ConfigError(f"to_base_env: {num_envs} envs of {env_id!r} need make_env, a function of the index.")
        make_env = _only(env)
    if remote_envs:
        from headwater.envs.remote_vector_env import RemoteVectorEnv

        multiagent = isinstance(env, MultiAgentEnv)
        return RemoteVectorEnv(
            make_env, num_envs, multiagent, remote_env_batch_wait_ms, env_id=env_id, config=config,
            worker_index=worker_index,
        )  # fmt: skip
    if isinstance(env, MultiAgentEnv):
        return _MultiAgentEnvToBaseEnv(make_env, num_envs, env_id, config, env, worker_index)
    if not isinstance(env, VectorEnv):
        from headwater.envs.gymnasium_copies import CopiesVectorEnv

        env = CopiesVectorEnv(make_env, num_envs, env_id, config, env, worker_index=worker_index)
    return _VectorEnvToBaseEnv(env)


def _only(env: Any) -> Callable[[int], Any]:
    def make_env(index: int) -> Any:
        return env

    return make_env
