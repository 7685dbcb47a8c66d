"""check_env: whether an env keeps to its API, and what training would suffer from; every fault with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from headwater.envs.env_checks.conduct import Tried, check_conduct, check_reproducible
from headwater.envs.env_checks.findings import Finding as Finding
from headwater.envs.env_checks.findings import Findings, Stopped, last_line
from headwater.envs.env_checks.multi_agent import MultiAgentWorld
from headwater.envs.env_checks.signatures import check_close, check_render
from headwater.envs.env_checks.single_agent import SingleAgentWorld
from headwater.envs.env_checks.vectors import VectorCheck
from headwater.envs.env_checks.world import World
from headwater.envs.env_context import EnvContext
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.registry import env_creator_for


def check_env(
    env_or_creator: Any, env_config: Mapping[str, Any] | None = None, steps: int = 200, seed: int = 0
) -> list[Finding]:
    """Try an env with random actions and say what is wrong with it; nothing that the env does is raised.

    Args:
        env_or_creator: a Gymnasium env, a vector env of Gymnasium's API, a MultiAgentEnv or a PettingZoo env; or what
            a config's `env` may be: an id, a class, a function of the env context. An env that was made here is closed.
        env_config: for the creator.
        steps: how many to take; some checks take fewer.
        seed: of the episodes and of the actions.

    Returns:
        The faults, errors first; empty for an env that is as it should be.

    Example:
        >>> check_env("CartPole-v1")
        []
        >>> class Silent(gymnasium.Env):
        ...     observation_space = action_space = gymnasium.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return 0, {}
        ...     def step(self, action):
        ...         return 1, None, True, False, {}
        >>> print(check_env(Silent())[0])
        error reward-type (step 1): expected one number as the reward; came the NoneType None. Return float(reward).
    """
    findings = Findings()
    if not isinstance(env_or_creator, type | str | None) and _is_env(env_or_creator):
        _guarded(findings, lambda: _Check(findings, steps, seed).try_env(env_or_creator))
        return findings.listed()
    check = _Check(findings, steps, seed)

    def make() -> Any:
        return env_creator_for(env_or_creator)[1](EnvContext(env_config))

    try:
        env = make()
    except Exception as error:
        findings.error("not-made", "an env", last_line(error), "Mend what makes it, or what it was given.")
        return findings.listed()
    _guarded(findings, lambda: check.try_env(env, judge=False))
    _guarded(findings, lambda: check_close(findings, env))
    _guarded(findings, lambda: check.try_again(make))
    return findings.listed()


def report(findings: Sequence[Finding]) -> str:
    """Findings as text, and in the last line how many there are.

    Example:
        >>> print(report([Finding("warning", "no-end", "", "an end", "none", "Set horizon.")]))
        warning no-end: expected an end; came none. Set horizon.
        0 errors, 1 warning
    """
    return "\n".join([*map(str, findings), summary(findings)])


def summary(findings: Sequence[Finding]) -> str:
    """How many errors and warnings there are."""
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    return f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"


class _Check:
    """Checks one env; the arguments are those of `check_env`."""

    def __init__(self, findings: Findings, steps: int, seed: int) -> None:
        self._findings, self._steps, self._seed = findings, steps, seed
        self._tried: Tried | None = None

    def try_env(self, env: Any, judge: bool = True) -> None:
        """Ask everything of an env; whether it is reproducible only with `judge`, else in `try_again`."""
        findings = self._findings
        env = _prepared(env, findings)
        if isinstance(env, gymnasium.vector.VectorEnv):
            VectorCheck(env, findings).run(self._steps, self._seed)
            return
        world = _world(env, findings)
        if world is None:
            findings.warning(
                "not-checked", "a Gymnasium env, one of its vector envs, a MultiAgentEnv or a PettingZoo env",
                f"a {type(env).__module__}.{type(env).__qualname__}", "Nothing was tried; check what is inside of it.",
            )  # fmt: skip
            return
        world.check_spaces()
        tried = check_conduct(world, self._steps, self._seed)
        if world.takes_seed:
            self._tried = tried
        findings.where = "render"
        check_render(findings, env)
        if judge and self._tried is not None:
            check_reproducible(findings, self._tried, self._steps, self._seed, None)

    def try_again(self, make: Callable[[], Any]) -> None:
        """Ask of the env made anew whether it does the same again."""
        if self._tried is None:
            return
        self._findings.where = "making it again"
        env = self._findings.call("made-again", make)
        try:
            world = _world(_prepared(env, self._findings), self._findings)
            if world is not None:
                world.check_spaces()
                check_reproducible(self._findings, self._tried, self._steps, self._seed, world)
        finally:
            self._findings.call("close-raised", env.close)


def _guarded(findings: Findings, stage: Callable[[], None]) -> None:
    """Run a stage; what stops it becomes a finding."""
    try:
        stage()
    except Stopped:
        pass
    except Exception as error:
        findings.error(
            "not-checked", "an env that can be looked at", last_line(error), "Mend what the exception names first."
        )


def _is_env(thing: Any) -> bool:
    return hasattr(thing, "reset") or hasattr(thing, "step") or not callable(thing)


def _prepared(env: Any, findings: Findings) -> Any:
    """The env as the library would take it."""
    if not isinstance(env, gymnasium.Env):
        from headwater.envs.foreign import as_known_env

        env = findings.call("not-made", lambda: as_known_env(env, type(env).__name__))
    outer = env
    while isinstance(outer, gymnasium.Wrapper):  # gymnasium.make's own checks would only come first
        if isinstance(outer.env, gymnasium.wrappers.PassiveEnvChecker):
            outer.env = outer.env.env
        outer = outer.env
    return env.env if isinstance(env, gymnasium.wrappers.PassiveEnvChecker) else env


def _world(env: Any, findings: Findings) -> World | None:
    """The env as the checks see it; None where it is of a kind that cannot be tried."""
    if isinstance(env, MultiAgentEnv):
        return MultiAgentWorld(env, findings)
    if hasattr(env, "step") and hasattr(env, "reset") and not hasattr(env, "num_envs"):
        return SingleAgentWorld(env, findings)
    return None
