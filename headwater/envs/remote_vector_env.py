"""RemoteVectorEnv: envs as Ray actors, each stepped whenever it is ready. For slow envs of uneven speed.

send_actions -> the actors named step, each in its own time -> poll: all that have answered by now
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from headwater.config import TrainerConfig
from headwater.engines import Engine, WorkerLost
from headwater.envs.base_env import (
    AGENT_ID,
    ALL_DONE,
    ASYNC_RESET_RETURN,
    BaseEnv,
    LostEpisode,
    PerAgent,
    Poll,
    poll_of_start,
)
from headwater.envs.env_faults import EnvFaults, make_error, raised, wrong_reset_result, wrong_step_result
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.errors import EnvError, HeadwaterError


class EnvHost:
    """What an actor holds: one env, whose agents it keys, be it one or many.

    Args:
        make_env: makes env `index`.
    """

    def __init__(self, make_env: Callable[[int], Any], index: int) -> None:
        self._env = make_env(index)
        self.is_multi_agent = isinstance(self._env, MultiAgentEnv)

    def describe(self) -> dict[str, Any]:
        """What the driver needs to know."""
        env = self._env
        if not self.is_multi_agent:
            one = {AGENT_ID: env.observation_space}, {AGENT_ID: env.action_space}
            return {"is_multi_agent": False, "possible_agents": [AGENT_ID], "spaces": one, "common": (None, None)}
        by_agent = env.observation_spaces, env.action_spaces
        agents = env.possible_agents or next((list(of) for of in by_agent if of is not None), None)
        known = agents or []
        pairs = {a: env.get_observation_space(a) for a in known}, {a: env.get_action_space(a) for a in known}
        common = env.observation_space, env.action_space
        return {"is_multi_agent": True, "possible_agents": agents, "spaces": pairs, "common": common}

    def reset(self, seed: int | None) -> tuple[PerAgent, PerAgent]:
        """Observations and infos by agent."""
        result = self._env.reset() if seed is None else self._env.reset(seed=seed)
        wrong = wrong_reset_result(result)
        if wrong is not None:
            raise BrokenRule(wrong)
        obs, infos = result
        return (obs, infos) if self.is_multi_agent else ({AGENT_ID: obs}, {AGENT_ID: infos})

    def step(self, actions: PerAgent) -> tuple[PerAgent, PerAgent, PerAgent, PerAgent, PerAgent]:
        """Observations, rewards, terminateds, truncateds, infos by agent."""
        if self.is_multi_agent:
            return self._env.step(actions)
        result = self._env.step(actions[AGENT_ID])
        if not (isinstance(result, tuple) and len(result) == 5):
            raise BrokenRule(wrong_step_result(result))
        obs, reward, terminated, truncated, info = result
        over = {ALL_DONE: bool(terminated)}, {ALL_DONE: bool(truncated)}
        return {AGENT_ID: obs}, {AGENT_ID: reward}, *over, {AGENT_ID: info}

    def close(self) -> None:
        """Close the env."""
        self._env.close()


class BrokenRule(HeadwaterError):
    """What an env returned breaks its API."""


class _Call(NamedTuple):
    env_index: int
    method: str
    started_s: float


class RemoteVectorEnv(BaseEnv):
    """N envs in actors.

    An actor that dies, or does not answer in time, is replaced; its episode is lost, the run goes on. So it is with an
    env that raises, where `on_env_error` says so.

    Args:
        make_env: makes env `i`, in its actor: a Gymnasium env or a MultiAgentEnv.
        num_envs: N.
        multiagent: whether they have several agents; None: their actors know.
        remote_env_batch_wait_ms: how long one that is ready waits for others.
        engine: where the actors run; None: Ray.
        env_id, worker_index: for messages.
        config: read are on_env_error, max_env_errors_in_a_row and sample_timeout_s.

    Raises:
        MissingExtraError: the extra `ray` is not installed.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        multiagent: bool | None = None,
        remote_env_batch_wait_ms: float = 0,
        *,
        engine: Engine | None = None,
        env_id: str = "env",
        config: Any = None,
        worker_index: int = 0,
    ) -> None:
        if engine is None:
            from headwater.engines.ray import RayEngine

            engine = RayEngine()
        config = TrainerConfig() if config is None else config
        self.env_id = env_id
        self.num_envs = num_envs
        self._engine: Any = engine
        self._make_env = make_env
        self._wait_s = remote_env_batch_wait_ms / 1000
        self._timeout_s = float(config.sample_timeout_s)
        self._died = EnvFaults(env_id, num_envs, _Survives(config), worker_index)
        self._raised = EnvFaults(env_id, num_envs, config, worker_index)
        self._actors: list[Any] = []
        self._calls: dict[Any, _Call] = {}  # those that have not answered
        self._ready: Poll = poll_of_start({})
        self._lost: dict[int, int | None] = {}  # envs whose loss was told, and the seed of what follows
        self._steps = [0] * num_envs
        self._num_polls = 0
        self._seeds: list[int | None] = [None] * num_envs
        self._rebuilds = [0] * num_envs
        self._described = self._start_actors()
        self.is_multi_agent = bool(self._described["is_multi_agent"] if multiagent is None else multiagent)
        self.possible_agents = self._described["possible_agents"]

    @property
    def num_faults(self) -> int:  # type: ignore[override]
        return self._died.num_faults + self._raised.num_faults

    @property
    def pids(self) -> list[int]:
        """The processes of the envs."""
        return [self._engine.pid(actor) for actor in self._actors]

    def observation_space_of(self, agent_id: Any) -> spaces.Space:
        return self._space_of(0, "observation", agent_id)

    def action_space_of(self, agent_id: Any) -> spaces.Space:
        return self._space_of(1, "action", agent_id)

    def _space_of(self, which: int, kind: str, agent_id: Any) -> spaces.Space:
        space = self._described["spaces"][which].get(agent_id, self._described["common"][which])
        if space is None:
            raise EnvError(f"Env {self.env_id!r}: agent {agent_id!r} has no {kind} space: give every agent one.")
        return space

    def start_episodes(self, seeds: Sequence[int] | None = None) -> None:
        self._calls, self._ready, self._lost = {}, poll_of_start({}), {}
        for index in range(self.num_envs):
            self._reset(index, None if seeds is None else int(seeds[index]))

    def poll(self) -> Poll:
        self._num_polls += 1
        for index, seed in self._lost.items():
            self._reset(index, seed)
        self._lost = {}
        if self._calls:
            self._collect(None)
            if self._wait_s and self._calls:
                deadline = time.monotonic() + self._wait_s
                while self._calls and (left_s := deadline - time.monotonic()) > 0:
                    self._collect(left_s)
        ready, self._ready = self._ready, poll_of_start({})
        return ready

    def send_actions(self, action_dict: dict[Any, PerAgent]) -> None:
        for index, actions in action_dict.items():
            self._steps[index] += 1
            self._submit(index, "step", actions)

    def try_reset(self, env_id: Any) -> str:
        self._died.episode_ended(env_id)
        self._raised.episode_ended(env_id)
        self._calls = {handle: call for handle, call in self._calls.items() if call.env_index != env_id}
        self._reset(env_id, None)
        return ASYNC_RESET_RETURN

    def get_unwrapped(self) -> list[Any]:
        return []

    def stop(self) -> None:
        actors, self._actors = self._actors, []
        handles = [self._engine.submit(actor, "close") for actor in actors]
        deadline = time.monotonic() + 5.0
        while handles and (left_s := deadline - time.monotonic()) > 0:
            done = set(self._engine.wait(handles, left_s))
            handles = [handle for handle in handles if handle not in done]
        for actor in actors:
            self._engine.stop(actor)
        self._calls = {}
        self._engine.shutdown()

    # Actors and their calls.

    def _start_actors(self) -> dict[str, Any]:
        try:
            self._actors = [self._new_actor(index) for index in range(self.num_envs)]
            described = [self._engine.submit(actor, "describe") for actor in self._actors]
            return [self._engine.get(handle) for handle in described][0]
        except BaseException as error:
            self.stop()
            if isinstance(error, WorkerLost):
                raise EnvError(f"Env {self.env_id!r}: an actor could not be started with it: {error}") from error
            raise

    def _new_actor(self, index: int) -> Any:
        return self._engine.create(EnvHost, self._make_env, index)

    def _submit(self, index: int, method: str, *args: Any) -> None:
        handle = self._engine.submit(self._actors[index], method, *args)
        self._calls[handle] = _Call(index, method, time.monotonic())

    def _reset(self, index: int, seed: int | None) -> None:
        self._steps[index] = 0
        self._seeds[index] = self._seeds[index] if seed is None else seed
        self._submit(index, "reset", seed)

    def _collect(self, timeout_s: float | None) -> None:
        """Take in the answers that are there, once there is one; those that are overdue count as answers."""
        oldest_s = min(call.started_s for call in self._calls.values())
        patience_s = max(0.0, oldest_s + self._timeout_s - time.monotonic())
        limit_s = patience_s if timeout_s is None else min(timeout_s, patience_s)
        for handle in self._engine.wait(list(self._calls), limit_s):
            call = self._calls.pop(handle)
            try:
                self._answered(call, self._engine.get(handle))
            except WorkerLost as error:
                self._replace(call.env_index, f"its actor died: {error}", error, self._died)
            except Exception as error:
                text = str(error) if isinstance(error, BrokenRule) else raised(call.method, error)
                self._replace(call.env_index, text, error, self._raised)
        now_s = time.monotonic()
        for handle, call in list(self._calls.items()):
            if now_s - call.started_s >= self._timeout_s:
                del self._calls[handle]
                what = f"{call.method}() has not come back for {self._timeout_s:g} s (sample_timeout_s)"
                self._replace(call.env_index, what, None, self._died)

    def _answered(self, call: _Call, answer: Any) -> None:
        ready, index = self._ready, call.env_index
        if call.method == "reset":
            obs, infos = answer
            rewards: PerAgent = {}
            terminateds: PerAgent = {}
            truncateds: PerAgent = {}
        else:
            obs, rewards, terminateds, truncateds, infos = answer
        ready.obs[index], ready.rewards[index], ready.infos[index] = obs, rewards, infos
        ready.terminateds[index], ready.truncateds[index] = terminateds, truncateds

    def _replace(self, index: int, what: str, cause: Exception | None, faults: EnvFaults) -> None:
        """Count a fault; where the run goes on, the env gets a new actor, and its next episode a later poll."""
        seed = self._seeds[index]
        told = "unseeded" if seed is None else f"last seed {seed}"
        error = make_error(EnvError, self.env_id, what, faults.worker_index, index, self._steps[index], told)
        faults.record(index, error, cause, self._num_polls)
        self._engine.stop(self._actors[index])
        self._actors[index] = self._new_actor(index)
        self._rebuilds[index] += 1
        if seed is not None:
            seed = int(np.random.SeedSequence([seed, self._rebuilds[index]]).generate_state(1)[0])
        self._ready.obs[index] = LostEpisode(what)
        self._lost[index] = seed


class _Survives:
    """A config under which a fault is always survived: a dead process is no fault of the env's code."""

    on_env_error = on_bad_values = "reset"

    def __init__(self, config: Any) -> None:
        self.max_env_errors_in_a_row = config.max_env_errors_in_a_row
