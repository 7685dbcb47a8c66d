"""ExternalEnv: the world drives. Its own thread runs episodes and asks for actions where it needs them.

class MyEnv(ExternalEnv):
    def run(self):
        while True:
            episode = self.start_episode()
            ... self.get_action(episode, obs), self.log_returns(episode, reward) ...
            self.end_episode(episode, obs)
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from gymnasium import spaces

from headwater.envs.base_env import AGENT_ID, ALL_DONE, AgentID, PerAgent, space_by_agent
from headwater.envs.external_episodes import EpisodeLost as EpisodeLost
from headwater.envs.external_episodes import ExternalEpisodes
from headwater.errors import EnvError

logger = logging.getLogger(__name__)


class ExternalEnv:
    """Episodes that are run from outside, of one agent each. Subclass it, and override `run`.

    `run` is called in a daemon thread, and may start threads of its own: all methods may be called from any thread, and
    any number of episodes may run at once, up to `max_concurrent`. While the policy learns, callers simply wait. An
    exception in `run` ends the training with its traceback; so does its return, once nothing is left to learn from.

    Args:
        action_space: of the agent.
        observation_space: of the agent.
        max_concurrent: how many episodes may run at once.
        timeout_s: how long `get_action` waits at most for a sampler that asks for experience; the time in which it
            does not, because the policy learns or nobody trains it at the moment, does not count.

    Example:
        >>> class Coin(ExternalEnv):
        ...     def run(self):
        ...         episode = self.start_episode()
        ...         guess = self.get_action(episode, 1)
        ...         self.log_returns(episode, float(guess == 1))
        ...         self.end_episode(episode, 0)
        >>> from headwater.envs.external_to_base import _ExternalEnvToBaseEnv
        >>> env = _ExternalEnvToBaseEnv(Coin(spaces.Discrete(2), spaces.Discrete(2)))
        >>> poll = env.poll()
        >>> poll.obs.values()
        dict_values([{'agent0': 1}])
        >>> env.send_actions({episode: {"agent0": 1} for episode in poll.obs})
        >>> env.poll().rewards.values()
        dict_values([{'agent0': 1.0}])
        >>> env.stop()
    """

    is_multi_agent = False

    def __init__(
        self,
        action_space: spaces.Space,
        observation_space: spaces.Space,
        max_concurrent: int = 100,
        timeout_s: float = 60.0,
    ) -> None:
        self.action_space: Any = action_space
        self.observation_space: Any = observation_space
        self.timeout_s = timeout_s
        self.episodes = ExternalEpisodes(max_concurrent)
        self.error: str | None = None  # the traceback of what `run` raised
        self.has_returned = False
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Run episodes, for as long as there are any."""
        raise NotImplementedError(f"{type(self).__name__} must override run(), which drives the episodes.")

    # What `run` calls.

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode.

        Args:
            episode_id: an id that no episode ever had; default: one is made.
            training_enabled: False acts in the episode, but neither learns from it nor counts it.

        Returns:
            Its id.

        Raises:
            EnvError: the id is or was in use, or `max_concurrent` episodes are running.
        """
        return self.episodes.start(episode_id, training_enabled)

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """The policy's action for an observation, as the action space has it; waits for it.

        Raises:
            EpisodeLost: the episode was abandoned, or the sampler gave it up for a bad value.
            EnvError: no such episode runs, another caller waits in it, or the sampler has stopped.
        """
        future = self.episodes.ask(episode_id, self._by_agent(observation))
        polled_before = self.episodes.poll_seconds()
        while True:
            try:
                return self._of_agent(future.result(self.timeout_s))
            except FutureTimeout:
                if self.episodes.poll_seconds() - polled_before > self.timeout_s:
                    raise EnvError(
                        f"Episode {episode_id!r}: no action came in {self.timeout_s} s, though the sampler asks for "
                        "experience. Give the env a larger timeout_s if its other episodes are that slow."
                    ) from None

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Tell of an action that was taken already, as the env takes it or as a `LoggedAction`.

        Returns at once, except where many logged steps wait to be learned from.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        self.episodes.room().result()
        self.episodes.log(episode_id, self._by_agent(observation), self._by_agent(action))

    def log_returns(self, episode_id: str, reward: float, info: Mapping[str, Any] | None = None) -> None:
        """Pay the latest action; adds up until the next observation.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        self.episodes.pay(episode_id, {AGENT_ID: float(reward)}, {AGENT_ID: dict(info)} if info else None)

    def end_episode(
        self, episode_id: str, observation: Any, terminated: bool | None = None, truncated: bool = False
    ) -> None:
        """End an episode. One without any action is ignored.

        Args:
            episode_id: of the episode.
            observation: the final one.
            terminated: whether it truly ended; default: unless it is truncated.
            truncated: whether it was only cut: what would have come is estimated from the observation.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        terminated = not truncated if terminated is None else terminated
        if not (terminated or truncated):
            raise EnvError(f"Episode {episode_id!r}: end_episode() needs terminated=True or truncated=True.")
        self.episodes.end(episode_id, self._by_agent(observation), bool(terminated), bool(truncated))

    def abandon_episode(self, episode_id: str, reason: str = "abandoned") -> None:
        """Drop an episode: nothing of it is learned from. Whoever waits in it gets an EpisodeLost."""
        self.episodes.abandon(episode_id, reason)

    # What the adapter calls.

    def start(self) -> None:
        """Let `run` begin in its thread; does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{type(self).__name__}.run", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End every wait with an error, which ends `run` soon."""
        self.episodes.close(f"{type(self).__name__} was stopped: nobody acts in its episodes any more.")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def check_runs(self) -> None:
        """Raise EnvError where nothing can come any more."""
        if self.error is not None:
            raise EnvError(
                f"{type(self).__name__}.run() raised, which ends its episodes. Mend what the traceback shows:\n"
                f"{self.error}"
            )
        if self.has_returned and not self.episodes.has_work():
            raise EnvError(
                f"{type(self).__name__}.run() returned, and nothing is left to learn from. Let it run episodes for as "
                "long as the training lasts."
            )

    def get_observation_space(self, agent_id: AgentID) -> spaces.Space:
        """The observation space of an agent."""
        return _space_of(type(self).__name__, "observation", self.observation_space, agent_id)

    def get_action_space(self, agent_id: AgentID) -> spaces.Space:
        """The action space of an agent."""
        return _space_of(type(self).__name__, "action", self.action_space, agent_id)

    @property
    def possible_agents(self) -> Sequence[Any] | None:
        """Ids of all agents, where they are known."""
        if not self.is_multi_agent:
            return [AGENT_ID]
        return None if isinstance(self.observation_space, spaces.Space) else list(self.observation_space)

    @property
    def unwrapped(self) -> Any:
        """The env itself."""
        return self

    def close(self) -> None:
        """The same as `stop`."""
        self.stop()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException:
            self.error = traceback.format_exc()
        self.has_returned = True
        self.episodes.wake()

    def _by_agent(self, value: Any) -> PerAgent:
        return {AGENT_ID: value}

    def _of_agent(self, values: PerAgent) -> Any:
        return values[AGENT_ID]


class ExternalMultiAgentEnv(ExternalEnv):
    """Episodes of several agents that are run from outside: an `ExternalEnv` with dicts by agent in all places.

    `get_action` takes the observations of those who act (and the final ones of those that have just ended) and returns
    the actions of those who act. Spaces are one for all agents, or {agent id: space}.

    Example:
        >>> class Meeting(ExternalMultiAgentEnv):
        ...     def run(self):
        ...         episode = self.start_episode()
        ...         actions = self.get_action(episode, {"guest": 0, "host": 1})
        ...         self.log_returns(episode, {"host": 1.0}, terminateds={"guest": True})
        ...         self.end_episode(episode, {"guest": 0, "host": 0})
        >>> Meeting(spaces.Discrete(2), {"guest": spaces.Discrete(1), "host": spaces.Discrete(2)}).possible_agents
        ['guest', 'host']
    """

    is_multi_agent = True

    def __init__(
        self,
        action_space: spaces.Space | Mapping[Any, spaces.Space],
        observation_space: spaces.Space | Mapping[Any, spaces.Space],
        max_concurrent: int = 100,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__(action_space, observation_space, max_concurrent, timeout_s)  # type: ignore[arg-type]

    def log_returns(  # type: ignore[override]
        self,
        episode_id: str,
        reward: Mapping[Any, float],
        info: Mapping[Any, Mapping[str, Any]] | None = None,
        terminateds: Mapping[Any, bool] | None = None,
        truncateds: Mapping[Any, bool] | None = None,
    ) -> None:
        """Pay agents, whether they have just acted or not, and say which have ended while the others go on.

        Args:
            episode_id: of the episode.
            reward: {agent id: reward}; adds up until the next observations.
            info: {agent id: info}.
            terminateds, truncateds: {agent id: whether it ended, or was cut}; its final observation comes next.

        Raises:
            EpisodeLost, EnvError: as of `get_action`; the whole episode is to be ended by `end_episode`.
        """
        for flags in (terminateds, truncateds):
            if flags and flags.get(ALL_DONE):
                raise EnvError(
                    f"Episode {episode_id!r}: end it by end_episode(), not by {ALL_DONE!r} in log_returns()."
                )
        self.episodes.pay(
            episode_id,
            {agent: float(value) for agent, value in reward.items()},
            {agent: dict(value) for agent, value in (info or {}).items()},
            dict(terminateds or {}),
            dict(truncateds or {}),
        )

    def _by_agent(self, value: Any) -> PerAgent:
        return dict(value)

    def _of_agent(self, values: PerAgent) -> Any:
        return values


def _space_of(env_id: str, kind: str, given: Any, agent_id: AgentID) -> spaces.Space:
    if isinstance(given, spaces.Space):  # first, as a Dict space is a Mapping too
        return given
    return space_by_agent(env_id, kind, given, None, agent_id)
