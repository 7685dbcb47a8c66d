"""BaseEnvSampler: the loop over any BaseEnv: many envs, many agents, many policies, each ready in its own time.

    poll -> who was paid, who ended, who observes -> Lanes.act, one batch for each policy -> send_actions
         -> Trajectory of each policy                                                        (each fragment)

Only what the env's dicts hold is touched agent by agent; encoding, acting and writing rows are arrays over all that are
ready (see `headwater.sampling.lanes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from headwater.config import TrainerConfig
from headwater.data.sequences import sequence_length
from headwater.envs.base_env import ALL_DONE, ASYNC_RESET_RETURN, BaseEnv, LostEpisode, Poll
from headwater.envs.env_faults import BadValuesError, EnvFaults, make_error
from headwater.errors import ConfigError, EnvError
from headwater.sampling.exported_policy import ActingChain
from headwater.sampling.lanes import BadObservation, Lanes
from headwater.sampling.metrics import PERF_KEYS, RolloutMetrics
from headwater.sampling.multi_agent_episode import Agent, MultiAgentEpisode
from headwater.sampling.running_episodes import AgentMapping, RunningEpisodes
from headwater.sampling.sampler import episode_seeds
from headwater.sampling.trajectory import Trajectory

LARGEST = 3.4028234e38  # what float32 holds


class Fragment(NamedTuple):
    """What one call of `sample` collects."""

    trajectories: dict[str, Trajectory]  # by policy id, of those that have rows
    env_steps: int


class _BadReward(Exception):
    """An agent was paid what is no finite number."""


class BaseEnvSampler:
    """Collects fragments from a BaseEnv.

    Args:
        env: the sampler owns its episodes.
        chains: {policy id: from observations to actions with it}.
        configs: {policy id: the config that it sees}.
        config: fragment length, batch mode, horizon.
        mapping: says who is played by which policy.
        key: integers that name the run and the purpose; they seed the envs and the action noise.
        env_indices: [N] each env's index in the whole run; of a worker whose episodes come from outside, its number.
        num_envs_total: envs in the whole run, so that episode ids are unique.
        worker: given to callbacks.
    """

    def __init__(
        self,
        env: BaseEnv,
        chains: Mapping[str, ActingChain],
        configs: Mapping[str, TrainerConfig],
        config: TrainerConfig,
        mapping: AgentMapping,
        key: Sequence[int],
        env_indices: Sequence[int],
        num_envs_total: int,
        callbacks: Any = None,
        worker: Any = None,
    ) -> None:
        if config.horizon is not None and not env.num_envs:
            raise ConfigError(
                f"horizon={config.horizon}: the episodes of env {env.env_id!r} come from outside, and cannot be reset. "
                "Let whoever runs them end them with truncated=True."
            )
        self.env = env
        self.config = config
        self.fragment_length = config.batch_plan(env.num_envs or None).rollout_fragment_length
        self._whole = config.batch_mode == "complete_episodes"
        length = sequence_length(None if self._whole else self.fragment_length, config.model.max_seq_len)
        self._episodes = RunningEpisodes(
            env, mapping, config.multiagent.observation_fn, key, env_indices, num_envs_total, callbacks, worker
        )
        self._running = self._episodes.running
        self._lanes = self._episodes.lanes
        for policy_id, chain in chains.items():
            self._lanes[policy_id] = Lanes(
                policy_id, chain, configs[policy_id], self._running.values(), length, env.is_multi_agent,
                config.check_env_steps,
            )  # fmt: skip
        self._by_agent_steps = config.multiagent.count_steps_by == "agent_steps"
        self._faults = EnvFaults(env.env_id, max(1, env.num_envs), config, getattr(worker, "worker_index", 0))
        self._is_started = False
        self._starting: set[Any] = set()  # envs that were reset and have not observed
        self._left: dict[Any, int] | None = None  # env id -> episodes that may yet begin; None: any number
        self._answers: dict[Any, dict[Any, Any]] | None = None  # to the envs of the last poll; None: were sent
        self._over: list[Any] = []  # envs whose episodes ended in this poll
        self._off_policy: dict[Any, dict[Any, Any]] = {}
        self._env_steps = self._agent_steps = 0
        self._wanted = 0
        self._perf_s = [0.0, 0.0, 0.0, 0.0]
        self._polls = 0

    # What a worker calls.

    @property
    def num_env_faults(self) -> int:
        """Faults of envs that were survived."""
        return self.env.num_faults + self._faults.num_faults

    def sample(self) -> Fragment:
        """One fragment, all from the policies' present weights but for rows that waited for their successor.

        truncate_episodes: `rollout_fragment_length` steps per env (of the envs, or of all agents together, see
        count_steps_by); envs that are not in step may bring a few more. complete_episodes: whole episodes with as many
        steps at least; an episode begins as long as more are wanted.
        """
        self._wanted = self.fragment_length * max(1, self.env.num_envs)
        self._env_steps = self._agent_steps = 0
        self._collect()
        return self._finish()

    def sample_episodes(self, num_episodes: int) -> None:
        """Exactly `num_episodes` whole, fresh episodes, shared out evenly over the envs; only metrics come of them."""
        num_envs = self.env.num_envs
        share, rest = divmod(num_episodes, max(1, num_envs))
        self._left = {i: share + (i < rest) for i in range(num_envs)} if num_envs else {None: num_episodes}
        whole, self._whole, self._wanted = self._whole, True, 0
        try:
            self._collect()
            self._finish()
        finally:
            self._left, self._whole = None, whole

    def restart(self, number: int) -> None:
        """Make all envs begin new episodes, seeded by the run, the env's index and `number`, at the next fragment."""
        self._episodes.restarts = number
        self._forget()

    def get_metrics(self) -> list[RolloutMetrics]:
        """The episodes that ended since the last call."""
        finished, self._episodes.finished = self._episodes.finished, []
        return finished

    def perf_stats(self) -> dict[str, float]:
        """Mean milliseconds per poll since the last call."""
        if not self._polls:
            return dict.fromkeys(PERF_KEYS, float("nan"))
        means = [1000.0 * seconds / self._polls for seconds in self._perf_s]
        self._perf_s, self._polls = [0.0, 0.0, 0.0, 0.0], 0
        return dict(zip(PERF_KEYS, means, strict=True))

    def get_state(self) -> dict[str, Any]:
        """What the next fragments depend on, but for the running episodes, which restart."""
        return {"env": None, "seeded": self._is_started, **self._episodes.get_state()}

    def set_state(self, state: dict[str, Any]) -> bool:
        """Continue from a `get_state()`; False where episodes were running, which restart."""
        self._episodes.set_state(state)
        self.restart(self._episodes.restarts + bool(state["seeded"]))
        return not state["seeded"]

    # The loop.

    def _collect(self) -> None:
        try:
            if not self._is_started:
                self._start()
            elif self._whole:
                self._wake()
            while True:
                if self._answers is None:
                    self._take()
                self._encode()
                if self._has_enough():
                    return
                self._act()
        except BaseException:  # the next fragment begins anew, as nobody knows how far this one came
            self._forget()
            self._episodes.restarts += 1
            raise

    def _start(self) -> None:
        self._is_started = True
        num_envs = self.env.num_envs
        self._starting = set(range(num_envs))
        episodes = self._episodes
        seeds = episode_seeds(episodes.key, episodes.env_indices, episodes.restarts)
        self.env.start_episodes(seeds if num_envs else None)

    def _wake(self) -> None:
        """Whole episodes only: envs that were left alone begin anew."""
        for env_id in range(self.env.num_envs):
            if env_id not in self._running and env_id not in self._starting:
                self._next_episode(env_id)

    def _forget(self) -> None:
        self._is_started = False
        self._episodes.clear()
        self._starting, self._answers, self._off_policy, self._over = set(), None, {}, []
        for lanes in self._lanes.values():
            lanes.clear()

    def _has_enough(self) -> bool:
        if self._left is not None:
            return not (self._running or self._starting or (not self.env.num_envs and self._left[None] > 0))
        if self._whole and self.env.num_envs:
            return not (self._running or self._starting)
        return self._steps() >= self._wanted

    def _steps(self) -> int:
        return self._agent_steps if self._by_agent_steps else self._env_steps

    def _may_begin(self, env_id: Any) -> bool:
        if self._left is not None:
            key = env_id if self.env.num_envs else None
            self._left[key] -= 1
            return self._left[key] >= 0
        return not (self._whole and self.env.num_envs) or self._steps() < self._wanted

    def _take(self) -> None:
        """Take in one poll: rewards, ends, and who is to act next."""
        clock = perf_counter()
        poll = self.env.poll()
        self._perf_s[0] += perf_counter() - clock
        self._polls += 1
        self._answers = {}
        self._off_policy = poll.off_policy_actions
        for env_id, obs in poll.obs.items():
            if type(obs) is LostEpisode:
                self._drop(env_id)
                self._starting.discard(env_id)
                if self.env.num_envs:
                    self._starting.add(env_id)
                continue
            episode = self._running.get(env_id)
            try:
                if episode is None:
                    self._starting.discard(env_id)
                    if self._may_begin(env_id):
                        self._begin(env_id, obs, poll.infos.get(env_id))
                else:
                    self._step(episode, obs, poll)
            except (_BadReward, BadObservation) as error:
                self._replace(env_id, str(error))
        self._reset_those_over()

    def _encode(self) -> None:
        """Encode what ready agents observed, which tells whether it lies in their spaces."""
        clock = perf_counter()
        is_done = False
        while not is_done:
            try:
                for lanes in self._lanes.values():
                    lanes.encode()
                is_done = True
            except BadObservation as error:
                self._replace(error.agent.episode.env_id, f"agent {error.agent.agent_id!r}: {error}")
                self._reset_those_over()
        self._perf_s[1] += perf_counter() - clock

    def _step(self, episode: MultiAgentEpisode, obs: dict[Any, Any], poll: Poll) -> None:
        """One step of an env with a running episode."""
        env_id = episode.env_id
        episode.length += 1
        agents = episode.agents
        if not self.env.num_envs:
            episode.look_whether_to_learn(poll.infos.get(env_id))
        if episode.is_learned_from:
            self._env_steps += 1
        paid = 0.0
        for agent_id, reward in poll.rewards.get(env_id, {}).items():
            try:
                reward = float(reward)
            except (TypeError, ValueError):
                reward = _one_number(agent_id, reward)
            if not -LARGEST <= reward <= LARGEST:
                raise _BadReward(f"agent {agent_id!r}: the reward is {reward}, expected a finite number")
            agent = agents.get(agent_id) or self._episodes.meet(episode, agent_id)
            paid += reward
            agent.reward += reward
            if agent.row >= 0:
                agent.lanes.pay(agent.row, reward)
            elif not agent.ended:
                agent.early_reward += reward
            elif reward:
                raise self._error(
                    episode, f"agent {agent_id!r} was paid {reward} after its end. Let it end with its last reward"
                )
        episode.total_reward += paid
        obs = self._episodes.observed(episode, obs)
        if self._episodes.is_watched:
            self._episodes.remember(episode, obs, poll)
        terminateds, truncateds = poll.terminateds.get(env_id, {}), poll.truncateds.get(env_id, {})
        over = terminateds.get(ALL_DONE, False) or truncateds.get(ALL_DONE, False)
        cut = self.config.horizon is not None and episode.length >= self.config.horizon and not over
        if over or cut or True in terminateds.values() or True in truncateds.values():
            self._end_agents(episode, obs, terminateds, truncateds, cut)
        self._episodes.stepped(episode)
        if over or cut:
            self._episodes.end(episode)
            if self.env.num_envs:
                self._faults.episode_ended(env_id)
            self._over.append(env_id)
            return
        self._answers[env_id] = {}  # type: ignore[index]
        for agent_id, value in obs.items():
            agent = agents.get(agent_id) or self._episodes.meet(episode, agent_id)
            if agent.ended:
                if not (terminateds.get(agent_id) or truncateds.get(agent_id)):
                    raise self._error(
                        episode,
                        f"agent {agent_id!r} observed after its end. Leave agents that have ended out of the "
                        "observations, or give one that returns another id",
                    )
                continue
            agent.seen = value
            self._agent_steps += agent.row >= 0
            agent.lanes.ready.append(agent)
            agent.lanes.raw.append(value)

    def _end_agents(
        self, episode: MultiAgentEpisode, obs: dict[Any, Any], terminateds: Any, truncateds: Any, cut: bool
    ) -> None:
        all_terminated, all_truncated = bool(terminateds.get(ALL_DONE)), bool(truncateds.get(ALL_DONE)) or cut
        over = all_terminated or all_truncated
        ending: list[tuple[Agent, Any, bool, bool]] = []
        for agent_id, agent in episode.agents.items():
            terminated, truncated = bool(terminateds.get(agent_id)), bool(truncateds.get(agent_id))
            if agent.ended or not (over or terminated or truncated):
                continue
            if not (terminated or truncated):
                terminated, truncated = all_terminated, all_truncated
            value = obs.get(agent_id)
            if value is None and truncated and not terminated and agent.row >= 0:
                if not cut:
                    raise self._error(
                        episode,
                        f"agent {agent_id!r} was truncated without a final observation, which is needed for the value "
                        f"of what follows. Give every agent that is truncated one, also those whose turn it is not",
                    )
                value = agent.seen  # the horizon cuts where nobody asked the env for more
            if value is not None and agent.row >= 0:
                agent.lanes.check(agent, value)
            ending.append((agent, value, terminated, truncated))
        for agent, value, terminated, truncated in ending:
            self._agent_steps += agent.row >= 0
            agent.lanes.end(agent, value, terminated, truncated)
            agent.ended = True

    def _reset_those_over(self) -> None:
        """Begin the next episodes: once all steps of the poll are counted, so that the envs' order does not matter."""
        over, self._over = self._over, []
        for env_id in over:
            self._next_episode(env_id)

    def _next_episode(self, env_id: Any) -> None:
        """Reset an env, where another episode of it is wanted."""
        if self.env.num_envs and not self._may_begin(env_id):
            return
        clock = perf_counter()
        obs = self.env.try_reset(env_id)
        self._perf_s[0] += perf_counter() - clock
        if obs is None:
            return
        if isinstance(obs, str):
            if obs != ASYNC_RESET_RETURN:
                raise self._env_error(env_id, f"try_reset({env_id!r}) returned {obs!r}")
            self._starting.add(env_id)
            if self._left is not None:
                self._left[env_id] += 1  # asked again when it observes
        else:
            self._begin(env_id, obs, None)

    def _begin(self, env_id: Any, obs: dict[Any, Any], infos: dict[Any, Any] | None) -> None:
        self._episodes.begin(env_id, obs, infos)
        if self._answers is None:
            self._answers = {}
        self._answers[env_id] = {}

    def _act(self) -> None:
        """Let each policy act for its ready agents, and send what they do."""
        answers, self._answers = self._answers, None
        assert answers is not None
        for lanes in self._lanes.values():
            agents = lanes.ready
            if not agents:
                continue
            logged = self._logged(agents) if self._off_policy else {}
            clock = perf_counter()
            actions = lanes.act(logged)
            self._perf_s[2] += perf_counter() - clock
            for agent, action in zip(agents, actions, strict=True):
                answers[agent.episode.env_id][agent.agent_id] = action
            if self._episodes.is_watched:
                for agent, action in zip(agents, actions, strict=True):
                    agent.last["action"] = action
            for place in logged:
                del answers[agents[place].episode.env_id][agents[place].agent_id]
        self._off_policy = {}
        clock = perf_counter()
        self.env.send_actions(answers)
        self._perf_s[0] += perf_counter() - clock

    def _logged(self, agents: list[Agent]) -> dict[int, Any]:
        logged = {}
        for place, agent in enumerate(agents):
            of_env = self._off_policy.get(agent.episode.env_id)
            if of_env is not None and agent.agent_id in of_env:
                logged[place] = of_env[agent.agent_id]
        return logged

    def _finish(self) -> Fragment:
        episodes = self._episodes
        running = self._running.values()
        held = {episode.episode_id for episode in running} if self._whole else set()
        dropped = episodes.dropped | {episode.episode_id for episode in running if not episode.is_learned_from}
        trajectories = {}
        for policy_id, lanes in self._lanes.items():
            trajectory = lanes.finish(held, dropped, episodes.fragments, episodes.num_envs_total)
            if trajectory is not None:
                trajectories[policy_id] = trajectory
        episodes.fragments += 1
        episodes.dropped = set()
        for episode in running:
            episode.length_before = 0 if episode.episode_id in held else episode.length
        return Fragment(trajectories, self._env_steps)

    # What goes wrong.

    def _replace(self, env_id: Any, what: str) -> None:
        """An env gave bad values: stop, or drop its episode and begin another, by setting."""
        episode = self._running.get(env_id)
        length = 0 if episode is None else episode.length
        account = env_id if self.env.num_envs else 0
        error = make_error(BadValuesError, self.env.env_id, what, self._faults.worker_index, env_id, length)
        self._faults.record(account, error, None, self._env_steps)
        self._drop(env_id)
        self._over.append(env_id)

    def _drop(self, env_id: Any) -> None:
        """Nothing of the env's running episode is learned from."""
        running = self._running.get(env_id)
        if running is None:
            return
        self._agent_steps -= sum(lanes.num_closed(running.episode_id) for lanes in self._lanes.values())
        if running.is_learned_from:
            self._env_steps -= running.length - running.length_before
        self._episodes.drop(env_id)
        if self._answers is not None:
            self._answers.pop(env_id, None)
        if self._left is not None:
            self._left[env_id if self.env.num_envs else None] += 1

    def _error(self, episode: MultiAgentEpisode, what: str) -> EnvError:
        return make_error(EnvError, self.env.env_id, what, self._faults.worker_index, episode.env_id, episode.length)

    def _env_error(self, env_id: Any, what: str) -> EnvError:
        return make_error(EnvError, self.env.env_id, what, self._faults.worker_index, env_id)


def _one_number(agent_id: Any, reward: Any) -> float:
    """A reward that is an array of one number, as some envs give it."""
    if np.size(reward) != 1 or np.asarray(reward).dtype.kind not in "biuf":
        raise _BadReward(f"agent {agent_id!r}: the reward is {reward!r}, expected a finite number")
    return float(np.asarray(reward).item())
