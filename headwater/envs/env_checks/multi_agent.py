"""MultiAgentWorld: what is asked of a MultiAgentEnv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.envs.base_env import ALL_DONE
from headwater.envs.env_checks.findings import Findings, Stopped, last_line, shown
from headwater.envs.env_checks.signatures import check_reset_signature
from headwater.envs.env_checks.values import (
    check_action_space,
    check_flag,
    check_mask_space,
    check_observation_space,
    check_reward,
)
from headwater.envs.env_checks.world import Moment, PerAgent, World

PARTS = ("observations", "rewards", "terminateds", "truncateds", "infos")
FIVE = f"({', '.join(PARTS)}), each {{agent id: value}}, from step()"


class MultiAgentWorld(World):
    """A MultiAgentEnv; the arguments are those of `World`."""

    def __init__(self, env: Any, findings: Findings) -> None:
        super().__init__(env, findings)
        self._spaces: dict[Any, tuple[Any, Any]] = {}
        self._seen: set[Any] = set()  # in this episode
        self._ended: set[Any] = set()

    def check_spaces(self) -> None:
        self.takes_seed = check_reset_signature(self.findings, self.env)
        possible = self.env.possible_agents
        if possible is None:
            return
        if len(set(possible)) != len(list(possible)) or ALL_DONE in possible:
            self.findings.error(
                "possible-agents", f"ids that differ, none of them {ALL_DONE!r}, in possible_agents", shown(possible),
                "Name each agent once.",
            )  # fmt: skip
        for agent in possible:
            self._spaces_of(agent)

    def observation_space(self, agent: Any) -> Any:
        return self._spaces_of(agent)[0]

    def action_space(self, agent: Any) -> Any:
        return self._spaces_of(agent)[1]

    def reset(self, seed: int | None) -> Moment:
        self._seen, self._ended = set(), set()
        result = self._reset_env(self.env, seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            self.findings.error(
                "reset-result", "(observations, infos), each {agent id: value}, from reset()", shown(result),
                "Return a dict of infos beside the observations.",
            )  # fmt: skip
            result = (result, {})
        obs, infos = self._as_dict("observations", result[0]), self._as_dict("infos", result[1])
        if not obs:
            raise self._stop(
                "nobody-acts", "observations of the agents that act first, from reset()", "none",
                "Return {agent id: observation} of at least one agent.",
            )  # fmt: skip
        self._check_observations(obs)
        return Moment(obs, infos, {}, list(obs), False)

    def step(self, actions: PerAgent) -> Moment:
        self._next_step()
        result = self.findings.call("step-raised", lambda: self.env.step(actions))
        if not isinstance(result, tuple) or len(result) != 5:
            four = isinstance(result, tuple) and len(result) == 4
            raise self._stop(
                "step-result", FIVE, f"a tuple of {len(result)}" if isinstance(result, tuple) else shown(result),
                "The `dones` of the 1.x line are split now: terminateds for true ends, truncateds for time limits."
                if four else "Return these five.",
            )  # fmt: skip
        obs, rewards, terminateds, truncateds, infos = map(self._as_dict, PARTS, result)
        self._check_observations(obs)
        self._check_known("rewards", rewards)
        for agent, reward in rewards.items():
            check_reward(self.findings, reward, self.named(agent))
        terminated, truncated = self._flags("terminateds", terminateds), self._flags("truncateds", truncateds)
        if ALL_DONE not in terminateds and ALL_DONE not in truncateds:
            self.findings.error(
                "all-missing", f"{ALL_DONE!r} in terminateds and truncateds", f"the keys {list(terminateds)}",
                f"Say at every step whether the whole episode ended: terminateds[{ALL_DONE!r}] = True or False.",
            )  # fmt: skip
        over = ALL_DONE in terminated or ALL_DONE in truncated
        self._check_final_observations(obs, terminated, truncated)
        self._ended |= (terminated | truncated) - {ALL_DONE}
        acting = [] if over else [agent for agent in obs if agent not in self._ended]
        if not over and self._seen and self._seen <= self._ended:
            raise self._stop(
                "all-missing", f"{ALL_DONE!r} true once every agent ended", "false, though all that observed ended",
                f"Set terminateds[{ALL_DONE!r}] = True with the last agent's end.",
            )  # fmt: skip
        return Moment(obs, infos, rewards, acting, over)

    def _spaces_of(self, agent: Any) -> tuple[Any, Any]:
        """The spaces of an agent, checked when it is first heard of."""
        if agent not in self._spaces:
            found = []
            for kind, get, check in (
                ("observation", self.env.get_observation_space, check_observation_space),
                ("action", self.env.get_action_space, check_action_space),
            ):
                try:
                    space = get(agent)
                except Exception as error:
                    self.findings.error(
                        f"{kind}-space-missing", f"a gymnasium.spaces.Space as its {kind} space", last_line(error),
                        f"Set {kind}_space of all agents, or {kind}_spaces with an entry for this one.",
                        self.named(agent),
                    )  # fmt: skip
                    space = None
                else:
                    space = space if check(self.findings, space, self.named(agent)) else None
                found.append(space)
            self._spaces[agent] = (found[0], found[1])
            if None not in found:
                check_mask_space(self.findings, found[0], found[1], self.named(agent))
        return self._spaces[agent]

    def _as_dict(self, name: str, value: Any) -> PerAgent:
        if isinstance(value, Mapping):
            return dict(value)
        self.findings.error(
            f"{name}-dict", f"{name} as a dict {{agent id: value}}", shown(value), "Key the values by agent.",
        )  # fmt: skip
        raise Stopped

    def _check_observations(self, obs: PerAgent) -> None:
        self._check_known("observations", obs)
        for agent, value in obs.items():
            if agent == ALL_DONE:
                continue
            if agent in self._ended:
                self.findings.error(
                    "observes-after-end", "no observation of an agent that ended in this episode", shown(value),
                    "Leave out agents that ended; one that comes back needs a new id.", self.named(agent),
                )  # fmt: skip
            self._seen.add(agent)
            self._check_observation(agent, value)
            if self.action_space(agent) is None:
                raise Stopped

    def _check_known(self, name: str, values: PerAgent) -> None:
        """Check that the keys are agents: in observations those that may appear, elsewhere those that have or may."""
        possible = self.env.possible_agents
        known = set(self._seen if possible is None else possible)
        if name == "observations" and possible is None:
            known |= set(values) - {ALL_DONE}
        for agent in values:
            if agent not in known:
                self.findings.error(
                    "unknown-agent", f"{name} of agents that exist: {sorted(map(str, known))}", repr(agent),
                    "Use the ids of possible_agents, or add this one there." if possible is not None
                    else "Use the ids under which agents observe.", self.named(agent),
                )  # fmt: skip

    def _flags(self, name: str, flags: PerAgent) -> set[Any]:
        """Whose flag is true."""
        self._check_known(name, {agent: flag for agent, flag in flags.items() if agent != ALL_DONE})
        return {
            agent for agent, flag in flags.items()
            if check_flag(self.findings, f"{name}[{agent!r}]", flag, self.named(agent) if agent != ALL_DONE else "")
        }  # fmt: skip

    def _check_final_observations(self, obs: PerAgent, terminated: set[Any], truncated: set[Any]) -> None:
        cut = truncated - {ALL_DONE}
        if ALL_DONE in truncated and ALL_DONE not in terminated:
            cut |= self._seen
        for agent in cut - terminated - self._ended - set(obs):
            self.findings.error(
                "no-final-observation", "a final observation of an agent that is truncated", "none",
                "Give it its observation in the same step, also where it is not its turn: the value of what follows is "
                "computed from it.", self.named(agent),
            )  # fmt: skip
