from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from examples.envs import MaskedChoice
from headwater.envs.check_env import Finding, check_env, report, summary
from tests.envs.broken_agents import BROKEN_AGENTS, SoundAgents
from tests.envs.broken_envs import BROKEN, SOUND, Sound, resetting, stepping
from tests.envs.broken_vectors import BROKEN_VECTORS, SoundVector

STEPS = 30


def checks(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.check, finding.severity) for finding in findings}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_env_has_no_findings(name: str) -> None:
    assert check_env(SOUND[name], steps=STEPS) == []


@pytest.mark.parametrize("cls", [SoundAgents, SoundVector])
def test_sound_envs_of_other_kinds_have_no_findings(cls: type) -> None:
    assert check_env(lambda context: cls(), steps=STEPS) == []


def ids(cases: list[tuple[str, str, type]]) -> list[str]:
    return [f"{number}-{check}" for number, (check, _, _) in enumerate(cases)]


@pytest.mark.parametrize(("check", "severity", "cls"), BROKEN, ids=ids(BROKEN))
def test_each_fault_of_an_env_is_found(check: str, severity: str, cls: type) -> None:
    assert_only(check, severity, cls)


@pytest.mark.parametrize(("check", "severity", "cls"), BROKEN_AGENTS, ids=ids(BROKEN_AGENTS))
def test_each_fault_of_a_multi_agent_env_is_found(check: str, severity: str, cls: type) -> None:
    assert_only(check, severity, cls)


@pytest.mark.parametrize(("check", "severity", "cls"), BROKEN_VECTORS, ids=ids(BROKEN_VECTORS))
def test_each_fault_of_a_vector_env_is_found(check: str, severity: str, cls: type) -> None:
    assert_only(check, severity, cls)


# What a fault brings with it.
FOLLOWS: dict[str, set[str]] = {
    "all-missing": {"no-end"},
    "bounds-refused": {"step-raised"},
}


def assert_only(check: str, severity: str, cls: type) -> None:
    findings = check_env(lambda context: made(cls), steps=STEPS)
    assert (check, severity) in checks(findings), report(findings)
    others = {finding.check for finding in findings} - {check} - FOLLOWS.get(check, set())
    assert not others, report(findings)
    for finding in findings:
        assert finding.expected and finding.came and finding.remedy.endswith("."), finding


def made(cls: type) -> Any:
    env = cls()
    for name in ("observation_space", "action_space"):  # what a creator checks by itself
        if not hasattr(env, name):
            setattr(env, name, None)
    return env


def test_an_exception_of_the_env_is_named_with_its_place() -> None:
    finding = check_env(resetting(lambda env, *, seed=None, options=None: {}["key"]))[0]
    assert finding.check == "reset-raised" and finding.came.startswith("KeyError: 'key' (test_check_env.py:")


def test_old_apis_are_named_with_their_remedy() -> None:
    four = check_env(stepping(lambda env, result: (*result[:3], {})), steps=3)[0]
    assert four.check == "step-result" and "old gym API: return terminated" in four.remedy
    alone = check_env(resetting(lambda env, *, seed=None, options=None: Sound.reset(env, seed=seed)[0]), steps=3)[0]
    assert alone.check == "reset-result" and "old gym API: return (observation, {})" in alone.remedy


def test_agents_are_named() -> None:
    cls = next(cls for check, _, cls in BROKEN_AGENTS if check == "no-final-observation")
    finding = check_env(lambda context: cls(), steps=STEPS)[0]
    assert finding.where == "agent 'a', step 2"


def test_what_is_no_env_is_a_finding_too() -> None:
    class Duck:
        observation_space, action_space = Sound.observation_space, Sound.action_space
        reset, step, observe = Sound.reset, Sound.step, Sound.observe

    for thing in (None, 3, "Cartpol-v1", object(), lambda context: None, lambda context: 1 / 0):
        findings = check_env(thing)
        assert findings and findings[0].check in ("not-made", "not-checked"), thing
    assert "env-class" in {finding.check for finding in check_env(Duck(), steps=3)}


def test_an_env_that_is_given_is_not_closed() -> None:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.close = lambda: pytest.fail("closed")
    assert check_env(env) == []


def test_the_global_generator_and_the_spaces_of_the_env_are_not_touched() -> None:
    env = Sound()
    env.action_space = gymnasium.spaces.Box(-1, 1, (1,), seed=5)
    expected = gymnasium.spaces.Box(-1, 1, (1,), seed=5).sample()
    state = np.random.get_state()[1].copy()
    check_env(env, steps=5)
    assert (np.random.get_state()[1] == state).all() and env.action_space.sample() == expected


def test_an_env_that_is_given_cannot_be_made_anew() -> None:
    cls = next(cls for check, _, cls in BROKEN if check == "carried-over")
    assert checks(check_env(cls())) == {("not-reproducible", "error")}


def test_an_env_that_can_be_made_only_once() -> None:
    made = []

    def make(context: Any) -> Any:
        assert not made, "the port is taken"
        made.append(Sound())
        return made[0]

    [finding] = check_env(make, steps=5)
    assert finding.check == "made-again" and "the port is taken" in finding.came


def test_env_config_reaches_the_creator() -> None:
    assert check_env(MaskedChoice, {"choices": [3, 2], "steps": 4}) == []
    assert check_env(MaskedChoice, {"mask_in": "info"})[0].check == "mask-in-info"


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "FrozenLake-v1", "examples.envs:PixelGrid",
     "examples.envs:MaskedChoice", "examples.envs:SwitchingPair", "examples.envs:TMaze"],
)  # fmt: skip
def test_real_envs_have_nothing_to_mend(env: str) -> None:
    if env == "LunarLander-v3":
        pytest.importorskip("Box2D")
    assert check_env(env) == []


def test_atari_has_no_errors() -> None:
    pytest.importorskip("ale_py")
    assert checks(check_env("ale_py:ALE/Pong-v5", steps=50)) <= {("no-end", "warning")}


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_gymnasiums_vector_envs_have_nothing_to_mend(mode: str) -> None:
    autoreset = gymnasium.vector.AutoresetMode[mode]
    env = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": autoreset})
    assert check_env(env) == []
    env.close()


def test_pettingzoo_envs_have_no_errors() -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    assert check_env(lambda context: spread.parallel_env(), steps=60) == []
    assert check_env(lambda context: spread.env()) == []  # 25 turns of each of three
    nothing_random = {("seed-ignored", "warning")}
    assert checks(check_env(lambda context: tictactoe.env(), steps=60)) == nothing_random
    assert checks(check_env("pettingzoo:tictactoe_v3", steps=60)) == nothing_random
    assert checks(check_env(tictactoe.env(), steps=60)) == nothing_random


def test_envs_that_are_converted_are_checked_as_what_they_become() -> None:
    class Old:
        observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

        def seed(self, seed: int) -> None:
            self.rng = np.random.default_rng(seed)

        def reset(self) -> Any:
            self.steps = 0
            return self.rng.random(1, np.float32)

        def step(self, action: Any) -> Any:
            self.steps += 1
            return self.rng.random(1, np.float32), 1.0, self.steps == 3, {}

    assert check_env(Old(), steps=STEPS) == []


def test_the_summary_counts() -> None:
    assert summary([]) == "0 errors, 0 warnings"
    assert report(check_env(resetting(None))).endswith("1 error, 0 warnings")
