"""The environments of `examples/envs` are sound, and their best and chance returns are those that they promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import comb
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from examples.envs import CartPoleHidden, MaskedChoice, PixelGrid, RepeatPrevious, SwitchingPair, TMaze
from headwater.registry import env_creator_for

Act = Callable[[Any, dict], Any]


def mean_return(env: gym.Env, act: Act, episodes: int, on_reset: Callable[[], None] = lambda: None) -> float:
    """Of a scripted policy: a function of the observation and the info."""
    total = 0.0
    for episode in range(episodes):
        obs, info = env.reset(seed=episode)
        on_reset()
        ended = False
        while not ended:
            obs, reward, terminated, truncated, info = env.step(act(obs, info))
            total += reward
            ended = terminated or truncated
    return total / episodes


class Allowed(gym.ActionWrapper):
    """Any action becomes an allowed one, for a checker that knows no masks."""

    def action(self, action: Any) -> Any:
        env = self.unwrapped
        starts = np.cumsum([0, *env.choices])
        parts = [env.mask[start:end] for start, end in zip(starts, starts[1:], strict=False)]
        chosen = [
            int(np.flatnonzero(part)[a % part.sum()]) for part, a in zip(parts, np.atleast_1d(action), strict=True)
        ]
        return chosen[0] if isinstance(self.action_space, gym.spaces.Discrete) else np.array(chosen)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "env",
    [
        PixelGrid(render_mode="rgb_array"),
        CartPoleHidden(),
        RepeatPrevious(),
        TMaze(),
        SwitchingPair(),
        Allowed(MaskedChoice()),
        Allowed(MaskedChoice([2, 3])),
        Allowed(MaskedChoice(mask_in="info")),
    ],
    ids=str,
)
def test_gymnasium_finds_no_fault(env: gym.Env) -> None:
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    "name", ["PixelGrid", "CartPoleHidden", "RepeatPrevious", "TMaze", "SwitchingPair", "MaskedChoice"]
)
def test_they_are_made_by_reference(name: str) -> None:
    env = env_creator_for(f"examples.envs:{name}")[1]({})
    env.reset(seed=0)
    env.close()


def test_the_grid_is_solved_from_its_picture() -> None:
    def towards(obs: np.ndarray, info: dict) -> int:
        (agent,), (goal,) = (
            np.argwhere((obs[::4, ::4] == colour).all(-1)) for colour in ((220, 60, 60), (60, 220, 60))
        )
        rows, columns = goal - agent
        return (0 if rows < 0 else 1) if rows else (2 if columns < 0 else 3)

    assert mean_return(PixelGrid(), towards, 400) == pytest.approx(0.96, abs=0.005)
    rng = np.random.default_rng(0)
    assert mean_return(PixelGrid(), lambda obs, info: rng.integers(4), 400) < 0.25


def test_the_hidden_pole_needs_its_speed() -> None:
    before = np.zeros(2)

    def steady(obs: np.ndarray, info: dict) -> int:
        speed = (obs - before) / 0.02 if before.any() else np.zeros(2)
        before[:] = obs
        return int(obs[1] + 0.25 * speed[1] + 0.02 * obs[0] + 0.05 * speed[0] > 0)

    assert mean_return(CartPoleHidden(), steady, 5, on_reset=lambda: before.fill(0.0)) == 500
    rng = np.random.default_rng(0)
    for gain in (10, 30, 100, 1e6):  # from nearly random to always towards the side on which it leans

        def lean(obs: np.ndarray, info: dict, gain: float = gain) -> int:
            return int(rng.random() < 0.5 + 0.5 * np.tanh(gain * obs[1] / 2))

        assert mean_return(CartPoleHidden(), lean, 60) < 65


@pytest.mark.parametrize("delay", [1, 3])
def test_memory_repeats_and_chance_does_not(delay: int) -> None:
    seen: list[int] = []

    def remember(obs: int, info: dict) -> int:
        seen.append(obs)
        return seen[-1 - delay] if len(seen) > delay else 0

    assert mean_return(RepeatPrevious(delay=delay), remember, 20, on_reset=seen.clear) == 24
    # 300 episodes of 24: standard deviation 0.12 of the mean.
    for table in ([0, 1, 2, 3], [3, 0, 1, 2], [1, 1, 1, 1]):
        assert mean_return(RepeatPrevious(delay=delay), lambda o, i, t=table: t[o], 300) == pytest.approx(6, abs=0.6)


def test_the_maze_needs_its_signal() -> None:
    signals: list[float] = []

    def follow(obs: np.ndarray, info: dict) -> int:
        signals.append(float(obs[0]))
        return int(signals[0] > 0)

    assert mean_return(TMaze(length=5), follow, 50, on_reset=signals.clear) == 1
    assert mean_return(TMaze(length=5), lambda obs, info: int(obs[0] > 0), 2000) == pytest.approx(0, abs=0.1)


def pay_a_step(joint: np.ndarray, key: int) -> float:
    """What SwitchingPair pays for a step, exactly, when `joint[a1, a2]` has the probabilities of the policy's pairs."""
    env = SwitchingPair()
    pay = 0.0
    for before, first, second in itertools.product((0, 1), repeat=3):
        env.reset(seed=0)
        env.key = key
        env.step((before, 0))
        pay += joint[before].sum() * joint[first, second] * env.step((first, second))[1]
    return pay


@given(st.integers(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_an_independent_pair_is_paid_a_quarter_at_most(key: int, p: float, q: float) -> None:
    assert pay_a_step(np.outer([1 - p, p], [1 - q, q]), key) <= 0.25 + 1e-9


@given(st.integers(0, 1), st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_any_pair_is_paid_a_half_at_most(key: int, weights: list[float]) -> None:
    assert pay_a_step(np.reshape(weights, (2, 2)) / np.sum(weights), key) <= 0.5 + 1e-9
    assert pay_a_step(0.5 * np.eye(2)[:, [key, 1 - key]], key) == 0.5


def test_the_pairs_are_paid_as_written_down() -> None:
    rng = np.random.default_rng(0)
    # 500 episodes of 20 paid steps: standard deviation about 0.1 of the mean.
    for p, q in ((0.5, 0.5), (0.5, 1.0), (0.3, 0.9)):

        def independent(obs: np.ndarray, info: dict, p: float = p, q: float = q) -> tuple[int, int]:
            second = int(rng.random() < q)
            return int(rng.random() < p), (second if obs[0] == 0 else 1 - second)

        expected = 20 * p * (1 - p)
        assert mean_return(SwitchingPair(), independent, 500) == pytest.approx(expected, abs=0.5)

    def dependent(obs: np.ndarray, info: dict) -> tuple[int, int]:
        first = int(rng.integers(2))
        return first, first ^ int(obs[0])

    assert mean_return(SwitchingPair(), dependent, 500) == pytest.approx(10, abs=0.5)
    assert mean_return(SwitchingPair(), lambda obs, info: (1, 1 ^ int(obs[0])), 10) == 0


@pytest.mark.parametrize("mask_in", ["observation", "info"])
@pytest.mark.parametrize("choices", [4, [4, 3], [2, 2, 2]])
def test_the_best_of_what_is_allowed(choices: Any, mask_in: str) -> None:
    env = MaskedChoice(choices, mask_in=mask_in)
    starts = np.cumsum([0, *env.choices])

    def best(obs: Any, info: dict) -> Any:
        values, mask = (obs["values"], obs["action_mask"]) if mask_in == "observation" else (obs, info["action_mask"])
        worth = np.where(mask, values, -1)
        taken = [int(worth[start:end].argmax()) for start, end in zip(starts, starts[1:], strict=False)]
        return taken[0] if isinstance(choices, int) else taken

    expected = sum(10 * comb(n, k) / (2**n - 1) * k / (k + 1) for n in env.choices for k in range(1, n + 1))
    assert mean_return(env, best, 400) == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("choices", [4, [4, 3]])
def test_what_is_forbidden_is_refused(choices: Any) -> None:
    env = MaskedChoice(choices)
    env.reset(seed=0)
    for _ in range(50):
        first = env.mask[: env.choices[0]]
        if first.all():
            env._show()
            continue
        forbidden = int(np.flatnonzero(first == 0)[0])
        with pytest.raises(ValueError, match="forbidden"):
            env.step(forbidden if isinstance(choices, int) else np.array([forbidden, 0]))
        return
