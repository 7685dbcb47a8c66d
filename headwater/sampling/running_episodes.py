"""RunningEpisodes: which episodes run in a BaseEnv's envs, who plays in them, and what callbacks hear of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.callbacks import overridden
from headwater.envs.base_env import BaseEnv, PerAgent, Poll
from headwater.errors import ConfigError
from headwater.sampling.lanes import Lanes, agent_key
from headwater.sampling.metrics import RolloutMetrics
from headwater.sampling.multi_agent_episode import Agent, MultiAgentEpisode

AgentMapping = Callable[[Any, MultiAgentEpisode], str]  # (agent id, episode) -> policy id


class RunningEpisodes:
    """Begins and ends episodes, and gives each agent the policy that plays it.

    Args:
        env: whose episodes they are.
        mapping: says who is played by which policy.
        observation_fn: the setting of that name.
        key: integers that name the run and the purpose, for the action noise.
        env_indices: [N] each env's index in the whole run; of a worker whose episodes come from outside, its number.
        num_envs_total: envs in the whole run, so that episode ids are unique.
        callbacks: hear of episodes; `worker` is given to them.

    Attributes:
        running: by env id.
        lanes: by policy id; to be set before the first episode.
        finished: metrics of those that ended.
        dropped: ids of episodes of which nothing is to be learned, and whose rows are not yet thrown away.
        restarts, fragments: how often all began anew, and the fragments so far: they name random numbers.
        is_watched: whether a callback hears of episodes.
    """

    def __init__(
        self,
        env: BaseEnv,
        mapping: AgentMapping,
        observation_fn: Callable[..., Any] | None,
        key: Sequence[int],
        env_indices: Sequence[int],
        num_envs_total: int,
        callbacks: Any,
        worker: Any,
    ) -> None:
        self.running: dict[Any, MultiAgentEpisode] = {}
        self.lanes: dict[str, Lanes] = {}
        self.finished: list[RolloutMetrics] = []
        self.dropped: set[int] = set()
        self.restarts = self.fragments = 0
        self.is_watched = any(
            overridden(callbacks, name) for name in ("on_episode_start", "on_episode_step", "on_episode_end")
        )
        self.key, self.env_indices, self.num_envs_total = list(key), list(env_indices), num_envs_total
        self._env, self._mapping, self._observation_fn = env, mapping, observation_fn
        self._callbacks, self._worker = callbacks, worker
        self._watches_steps = overridden(callbacks, "on_episode_step")
        self._counts: dict[Any, int] = {}  # env id -> episodes so far; under None, of those from outside
        self._known_spaces: set[tuple[Any, str]] = set()

    def begin(self, env_id: Any, obs: PerAgent, infos: PerAgent | None) -> MultiAgentEpisode:
        """Begin an episode with its first observations; who observed waits for an action."""
        comes_back = bool(self._env.num_envs)
        name = env_id if comes_back else None
        count = self._counts[name] = self._counts.get(name, 0) + 1
        index = self.env_indices[env_id if comes_back else 0]
        episode = MultiAgentEpisode(env_id, index, (count - 1) * self.num_envs_total + index)
        self.running[env_id] = episode
        self._call("on_episode_start", episode, policies=self.policies())
        obs = self.observed(episode, obs)
        if not comes_back:
            episode.look_whether_to_learn(infos)
        for agent_id, value in obs.items():
            agent = self.meet(episode, agent_id)
            agent.seen = value
            if self.is_watched:
                agent.last = {"raw_obs": value, "info": (infos or {}).get(agent_id)}
            agent.lanes.wait(agent, value)
        return episode

    def meet(self, episode: MultiAgentEpisode, agent_id: Any) -> Agent:
        """An agent that this episode has not seen before; its policy is asked for.

        Raises:
            ConfigError: there is no such policy, or it is one for other spaces.
        """
        policy_id = self._mapping(agent_id, episode)
        lanes = self.lanes.get(policy_id)
        if lanes is None:
            raise ConfigError(
                f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r} of env {self._env.env_id!r}; the "
                f"policies are {', '.join(sorted(self.lanes))}."
            )
        if (agent_id, policy_id) not in self._known_spaces:
            self._check_spaces(agent_id, lanes)
            if self._env.possible_agents is not None:  # ids that never come again are not kept
                self._known_spaces.add((agent_id, policy_id))
        key = [*self.key, *([self.restarts] if self.restarts else []), episode.env_index]
        if self._env.is_multi_agent or not self._env.num_envs:
            count = 0 if self._env.num_envs else self._counts[None]
            key += [agent_key(agent_id), self.fragments, count]
        agent = lanes.open_lane(episode, agent_id, len(episode.agents), key)
        episode.agents[agent_id] = agent
        return agent

    def end(self, episode: MultiAgentEpisode) -> None:
        """An episode came to its end."""
        self._call("on_episode_end", episode, policies=self.policies())
        del self.running[episode.env_id]
        if episode.is_learned_from:
            self.finished.append(episode.metrics(by_agent=self._env.is_multi_agent))
        else:
            self.dropped.add(episode.episode_id)

    def drop(self, env_id: Any) -> MultiAgentEpisode | None:
        """Nothing of the env's running episode is learned from; None where there is none."""
        episode = self.running.pop(env_id, None)
        if episode is not None:
            self.dropped.add(episode.episode_id)
            for lanes in {agent.lanes for agent in episode.agents.values()}:
                lanes.forget(episode.agents.values())
        return episode

    def clear(self) -> None:
        """Forget all that run."""
        self.running.clear()
        self.dropped = set()

    def policies(self) -> dict[str, Any]:
        """By id."""
        return {policy_id: lanes.policy for policy_id, lanes in self.lanes.items()}

    def observed(self, episode: MultiAgentEpisode, obs: PerAgent) -> PerAgent:
        """What agents observe, as observation_fn changes it.

        Raises:
            ConfigError: it gave no dict.
        """
        if self._observation_fn is None:
            return obs
        seen = self._observation_fn(
            agent_obs=obs, worker=self._worker, base_env=self._env, policies=self.policies(), episode=episode
        )
        if not isinstance(seen, dict):
            raise ConfigError(
                f"multiagent.observation_fn returned a {type(seen).__name__}, expected {{agent id: observation}}."
            )
        return seen

    def remember(self, episode: MultiAgentEpisode, obs: PerAgent, poll: Poll) -> None:
        """Keep what callbacks may ask for."""
        infos = poll.infos.get(episode.env_id) or {}
        for agent_id, value in obs.items():
            agent = episode.agents.get(agent_id)
            if agent is not None:
                agent.last["raw_obs"], agent.last["info"] = value, infos.get(agent_id)
        for agent_id, reward in (poll.rewards.get(episode.env_id) or {}).items():
            episode.agents[agent_id].last["reward"] = reward

    def stepped(self, episode: MultiAgentEpisode) -> None:
        """Tell callbacks of a step."""
        if self._watches_steps:
            self._call("on_episode_step", episode)

    def get_state(self) -> dict[str, Any]:
        """All but the running episodes, as JSON values."""
        return {
            "restarts": self.restarts,
            "fragments": self.fragments,
            "episode_counts": [[name, count] for name, count in self._counts.items()],
            "finished": [metrics.to_state() for metrics in self.finished],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over a `get_state()`."""
        self.restarts, self.fragments = int(state["restarts"]), int(state["fragments"])
        self._counts = {name: int(count) for name, count in state["episode_counts"]}
        self.finished = [RolloutMetrics.from_state(metrics) for metrics in state["finished"]]

    def _check_spaces(self, agent_id: Any, lanes: Lanes) -> None:
        env, chain = self._env, lanes.chain
        pairs = [("action", env.action_space_of(agent_id), chain.action_adapter.space)]
        if self._observation_fn is None:
            pairs.append(("observation", env.observation_space_of(agent_id), chain.encoder.original_space))
        for kind, space, expected in pairs:
            if space is not expected and space != expected:
                raise ConfigError(
                    f"Env {env.env_id!r}: agent {agent_id!r} has the {kind} space {space}, but the policy "
                    f"{lanes.policy_id!r}, which is to play it, is one for {expected}. Map it to a policy of its kind."
                )

    def _call(self, name: str, episode: MultiAgentEpisode, **kwargs: Any) -> None:
        if self.is_watched:
            getattr(self._callbacks, name)(
                worker=self._worker, base_env=self._env, episode=episode, env_index=episode.env_id, **kwargs
            )
