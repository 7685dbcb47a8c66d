"""World: an env of one agent or of many as the checks see it, with everything keyed by agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from headwater.envs.env_checks.findings import Findings, Stopped
from headwater.envs.env_checks.values import Ranges, check_observation, same

PerAgent = dict[Any, Any]


class Moment(NamedTuple):
    """What one step gave, each `{agent: value}`.

    Attributes:
        obs, infos, rewards: as the env gave them.
        acting: the agents that are to act next.
        over: whether the episode ended.
    """

    obs: PerAgent
    infos: PerAgent
    rewards: PerAgent
    acting: list[Any]
    over: bool


class World(ABC):
    """An env whose every answer is checked as it comes.

    Args:
        env: the env.
        findings: where faults go.

    Attributes:
        takes_seed: whether `reset` takes a seed.
        limit: steps after which an episode is cut, where the env says so.
    """

    takes_seed = True
    limit: int | None = None

    def __init__(self, env: Any, findings: Findings) -> None:
        self.env = env
        self.findings = findings
        self.ranges = Ranges()
        self._episode = 0
        self._step = 0

    @abstractmethod
    def check_spaces(self) -> None:
        """Check the spaces and the signatures.

        Raises:
            Stopped: without them nothing can be tried.
        """

    @abstractmethod
    def observation_space(self, agent: Any) -> Any:
        """The space of an agent's observations; None where there is none."""

    @abstractmethod
    def action_space(self, agent: Any) -> Any:
        """The space of an agent's actions; None where there is none."""

    @abstractmethod
    def reset(self, seed: int | None) -> Moment:
        """Begin an episode, and check what comes.

        Raises:
            Stopped: the env cannot be followed.
        """

    @abstractmethod
    def step(self, actions: PerAgent) -> Moment:
        """Take a step, and check what comes.

        Raises:
            Stopped: the env cannot be followed.
        """

    def named(self, agent: Any) -> str:
        """How findings call an agent."""
        return f"agent {agent!r}"

    def begin(self, episode: int) -> None:
        """Say that an episode begins, counted from 1."""
        self._episode, self._step = episode, 0
        self.findings.where = "reset" if episode == 1 else f"reset of episode {episode}"

    def _next_step(self) -> None:
        self._step += 1
        of = "" if self._episode == 1 else f" of episode {self._episode}"
        self.findings.where = f"step {self._step}{of}"

    def _check_observation(self, agent: Any, obs: Any) -> None:
        space = self.observation_space(agent)
        if space is not None and check_observation(self.findings, space, obs, self.named(agent)):
            self.ranges.see(self.named(agent), space, obs)

    def _reset_env(self, env: Any, seed: int | None) -> Any:
        """Call `reset` with a seed where it takes one; a fault that only the seed brings is none of other resets."""
        if seed is None or not self.takes_seed:
            return self.findings.call("reset-raised", env.reset)
        return self.findings.call("reset-raised", lambda: env.reset(seed=seed))

    def _stop(self, check: str, expected: str, came: str, remedy: str) -> Stopped:
        self.findings.error(check, expected, came, remedy)
        return Stopped()


def differ(one: list[Any], other: list[Any]) -> int | None:
    """The first place at which two histories differ; None where they are the same."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if not same(a, b):
            return place
    return None if len(one) == len(other) else min(len(one), len(other))
