"""Multi-agent envs with one fault each, and one without any: for the tests of `check_env`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.multi_agent_env import MultiAgentEnv
from tests.envs.broken_envs import failing


class SoundAgents(MultiAgentEnv):
    """Two agents, of which "a" ends after two steps and the episode after four; "b" is masked."""

    possible_agents: Any = ["a", "b"]

    def __init__(self) -> None:
        plain = spaces.Box(0, 1, (1,))
        self.observation_spaces = {"a": plain, "b": spaces.Dict({"action_mask": spaces.MultiBinary(2), "at": plain})}
        self.action_spaces = {"a": spaces.Box(-1, 1, (1,)), "b": spaces.Discrete(2)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        assert "b" not in actions or self.mask[actions["b"]], "a forbidden action"
        self.steps += 1
        obs = self.observe()
        if self.steps > 2:
            del obs["a"]
        ended = {"a": self.steps == 2, "b": False, "__all__": self.steps >= 4}
        return obs, dict.fromkeys(actions, 1.0), ended, {"__all__": False}, {}

    def observe(self) -> dict[str, Any]:
        self.mask = np.eye(2, dtype=np.int8)[self.rng.integers(2)]
        at = self.rng.random(1).astype(np.float32)
        return {"a": at, "b": {"action_mask": self.mask, "at": at.copy()}}


def agents_stepping(change: Callable[..., Any], **attributes: Any) -> type[SoundAgents]:
    """`SoundAgents` whose step returns `change(env, *what it would)`."""

    def step(self: Any, actions: Any) -> Any:
        return change(self, *SoundAgents.step(self, actions))

    return type("AgentsStepping", (SoundAgents,), {"step": step, **attributes})


def agents_with(**attributes: Any) -> type[SoundAgents]:
    """`SoundAgents` with other attributes, set after its own."""

    def init(self: Any) -> None:
        SoundAgents.__init__(self)
        vars(self).update(attributes)

    return type("AgentsWith", (SoundAgents,), {"__init__": init})


def _cut_without_obs(env: Any, obs: Any, rewards: Any, ended: Any, cut: Any, infos: Any) -> Any:
    return {a: o for a, o in obs.items() if a != "a"}, rewards, {**ended, "a": False}, {**cut, "a": ended["a"]}, infos


def _ends_alone(env: Any, obs: Any, rewards: Any, ended: Any, cut: Any, infos: Any) -> Any:
    return obs, rewards, {"a": ended["a"], "b": ended["__all__"], "__all__": False}, cut, infos


def _without_all(flags: dict[str, Any]) -> dict[str, Any]:
    return {agent: flag for agent, flag in flags.items() if agent != "__all__"}


def _masked_wrongly(env: Any) -> Any:
    obs = SoundAgents.observe(env)
    return {**obs, "b": {**obs["b"], "action_mask": np.zeros(2, np.int8)}}


def _agents_reusing(env: Any) -> Any:
    obs = SoundAgents.observe(env)
    env.buffer = getattr(env, "buffer", np.zeros(1, np.float32))
    env.buffer[:] = obs["a"]
    return {**obs, "a": env.buffer}


def _only_obs(env: Any, *, seed: int | None = None, options: Any = None) -> Any:
    return SoundAgents.reset(env, seed=seed)[0]


def _nobody(env: Any, *, seed: int | None = None, options: Any = None) -> Any:
    return {}, {}


def _observes_always(env: Any, obs: Any, *others: Any) -> Any:
    return {**obs, "a": np.ones(1, np.float32)}, *others


def _cut_as_a_whole(env: Any, obs: Any, rewards: Any, ended: Any, cut: Any, infos: Any) -> Any:
    over = ended["__all__"]
    return {} if over else obs, rewards, {**ended, "__all__": False}, {"__all__": over}, infos


def _seeing(at: Any) -> type[SoundAgents]:
    """Agents of which "b" sees `at`."""
    return agents_stepping(lambda env, obs, *others: ({**obs, "b": {**obs["b"], "at": at}}, *others))


UNBOUNDED = spaces.Box(-np.inf, np.inf, (1,))

BROKEN_AGENTS: list[tuple[str, str, type]] = [
    ("reset-result", "error", type("E", (SoundAgents,), {"reset": _only_obs})),
    ("nobody-acts", "error", type("E", (SoundAgents,), {"reset": _nobody})),
    ("reset-raised", "error", type("E", (SoundAgents,), {"reset": failing})),
    ("step-raised", "error", type("E", (SoundAgents,), {"step": failing})),
    ("step-result", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, t, i))),
    ("rewards-dict", "error", agents_stepping(lambda env, o, r, t, c, i: (o, [1.0, 1.0], t, c, i))),
    ("infos-dict", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, t, c, None))),
    ("terminateds-dict", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, t["__all__"], c, i))),
    ("all-missing", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, _without_all(t), {}, i))),
    ("all-missing", "error", agents_stepping(_ends_alone)),
    ("unknown-agent", "error", agents_stepping(lambda env, o, r, t, c, i: (o, {**r, "c": 1.0}, t, c, i))),
    ("unknown-agent", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, {**t, "c": False}, c, i))),
    ("unknown-agent", "error", agents_with(possible_agents=["a"])),
    ("possible-agents", "error", agents_with(possible_agents=["a", "b", "b"])),
    ("observes-after-end", "error", agents_stepping(_observes_always)),
    ("no-final-observation", "error", agents_stepping(_cut_without_obs)),
    ("no-final-observation", "error", agents_stepping(_cut_as_a_whole)),
    ("action-space-missing", "error", agents_with(action_spaces={"a": spaces.Box(-1, 1, (1,))})),
    ("observation-space-missing", "error", agents_with(observation_spaces=None)),
    ("obs-shape", "error", _seeing(np.ones(3, np.float32))),
    ("obs-finite", "error", _seeing(np.full(1, np.nan, np.float32))),
    ("obs-reused", "warning", type("E", (SoundAgents,), {"observe": _agents_reusing})),
    ("reward-finite", "error", agents_stepping(lambda env, o, r, t, c, i: (o, {"b": np.inf}, t, c, i))),
    ("flag-type", "error", agents_stepping(lambda env, o, r, t, c, i: (o, r, {**t, "b": "no"}, c, i))),
    ("mask-empty", "error", type("E", (SoundAgents,), {"observe": _masked_wrongly})),
    ("action-unbounded", "warning", agents_with(action_spaces={"a": UNBOUNDED, "b": spaces.Discrete(2)})),
]
