"""Gymnasium envs with one fault each, and ones without any: for the tests of `check_env`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env):
    """Walks at random for five steps; nothing is wrong with it."""

    observation_space: Any = spaces.Box(-1, 1, (2,))
    action_space: Any = spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode: str | None = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 1.0, self.steps >= 5, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def observing(observe: Callable[[Any], Any], **attributes: Any) -> type[Sound]:
    """A `Sound` env that observes otherwise."""
    return type("Observing", (Sound,), {"observe": observe, **attributes})


def stepping(step: Callable[[Any, tuple], Any], **attributes: Any) -> type[Sound]:
    """A `Sound` env whose step returns `step(env, what it would)`."""
    return type("Stepping", (Sound,), {"step": lambda self, action: step(self, Sound.step(self, action)), **attributes})


def resetting(reset: Callable[..., Any]) -> type[Sound]:
    """A `Sound` env with another reset."""
    return type("Resetting", (Sound,), {"reset": reset})


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the engine is on fire")


def _reused(env: Any) -> Any:
    if not hasattr(env, "buffer"):
        env.buffer = np.zeros(2, np.float32)
    env.buffer[:] = env.np_random.uniform(-1, 1, 2)
    return env.buffer


def _refuse_bounds(env: Any, action: Any) -> Any:
    if abs(action[0]) == 1:
        raise ValueError("too far")
    return Sound.step(env, action)


def _close_once(env: Any) -> None:
    if hasattr(env, "closed"):
        raise RuntimeError("closed already")
    env.closed = True


def _unseeded(env: Any, *, seed: int | None = None, options: Any = None) -> Any:
    return Sound.reset(env)


def _no_info(env: Any, result: tuple) -> Any:
    return (*result[:4], None)


def _remembering(env: Any, *, seed: int | None = None, options: Any = None) -> Any:
    """A reset that carries over how many episodes there were."""
    obs, info = Sound.reset(env, seed=seed)
    env.episodes = getattr(env, "episodes", 0) + 1
    return obs / np.float32(env.episodes), info


def _global(env: Any) -> Any:
    """What a constructor draws is not seeded by reset."""
    env.drawn = getattr(env, "drawn", None) or np.random.default_rng().uniform(0.1, 1)
    return Sound.observe(env) * np.float32(env.drawn)


def _failing_later(env: Any, *, seed: int | None = None, options: Any = None) -> Any:
    env.episodes = getattr(env, "episodes", 0) + 1
    return Sound.reset(env, seed=seed) if env.episodes < 2 else failing()


def _masked_step(env: Any, action: Any) -> Any:
    assert env.mask[action], "a forbidden action"
    return Sound.step(env, action)


def masked(mask: Callable[[Any], Any], entries: int = 3) -> type[Sound]:
    """A `Sound` env of masked actions, which refuses what is forbidden."""

    def observe(env: Any) -> Any:
        env.mask = np.asarray(mask(env), np.int8)
        return {"action_mask": env.mask, "at": Sound.observe(env)}

    space = spaces.Dict({"action_mask": spaces.MultiBinary(entries), "at": Sound.observation_space})
    return type(
        "Masked", (Sound,),
        {"observe": observe, "observation_space": space, "action_space": spaces.Discrete(3), "step": _masked_step},
    )  # fmt: skip


def one_random(env: Any) -> Any:
    """A mask that allows one choice of three."""
    return np.eye(3, dtype=np.int8)[env.np_random.integers(3)]


DICT_SPACE = spaces.Dict({"a": Sound.observation_space, "b": spaces.Discrete(2)})

SOUND: dict[str, type[Sound]] = {
    "plain": Sound,
    "masked": masked(one_random),
    "dict": observing(lambda env: {"a": Sound.observe(env), "b": 1}, observation_space=DICT_SPACE),
    "float64": observing(lambda env: env.np_random.uniform(-1, 1, 2)),
    "numpy-flags": stepping(lambda env, r: (r[0], np.float32(1), np.bool_(r[2]), np.bool_(r[3]), {})),
    "image": observing(
        lambda env: env.np_random.integers(0, 256, (8, 8, 3), np.uint8),
        observation_space=spaces.Box(0, 255, (8, 8, 3), np.uint8),
    ),
}

# name of the check -> severity, envs that have that fault and no other
BROKEN: list[tuple[str, str, type]] = [
    ("observation-space-missing", "error", type("E", (Sound,), {"observation_space": None})),
    ("action-space-missing", "error", type("E", (Sound,), {"action_space": 3})),
    ("observation-space-kind", "error", observing(lambda env: "up", observation_space=spaces.Text(5, charset="up"))),
    ("action-space-kind", "error", type("E", (Sound,), {"action_space": spaces.Sequence(spaces.Discrete(2))})),
    ("action-unbounded", "warning", type("E", (Sound,), {"action_space": spaces.Box(-np.inf, np.inf, (1,))})),
    ("reset-signature", "error", resetting(lambda env, options=None: _unseeded(env))),
    ("reset-signature", "warning", resetting(lambda env, seed=None: Sound.reset(env, seed=seed))),
    ("reset-result", "error", resetting(lambda env, *, seed=None, options=None: Sound.reset(env, seed=seed)[0])),
    ("info-type", "error", resetting(lambda env, *, seed=None, options=None: (Sound.reset(env, seed=seed)[0], None))),
    ("reset-raised", "error", resetting(failing)),
    ("step-raised", "error", type("E", (Sound,), {"step": failing})),
    ("step-result", "error", stepping(lambda env, r: (*r[:2], r[2], r[4]))),
    ("step-result", "error", stepping(lambda env, r: r[0])),
    ("not-reproducible", "error", resetting(_unseeded)),
    ("not-reproducible", "error", observing(_global)),
    ("carried-over", "warning", resetting(_remembering)),
    ("reset-raised", "error", resetting(_failing_later)),
    ("seed-ignored", "warning", observing(lambda env: np.zeros(2, np.float32))),
    ("obs-shape", "error", observing(lambda env: np.append(Sound.observe(env), np.float32(0)))),
    ("obs-dtype", "error", observing(Sound.observe, observation_space=spaces.Box(-1, 1, (2,), np.int8))),
    ("obs-finite", "error", observing(lambda env: Sound.observe(env) * np.float32(np.nan))),
    ("obs-finite", "error", observing(lambda env: np.sign(Sound.observe(env)) * np.float32(np.inf))),
    ("obs-bounds", "error", observing(lambda env: Sound.observe(env) + 3)),
    ("obs-bounds", "error", observing(lambda env: env.np_random.integers(7, 9), observation_space=spaces.Discrete(5))),
    ("obs-structure", "error", observing(lambda env: {"a": Sound.observe(env)}, observation_space=DICT_SPACE)),
    ("obs-structure", "error", observing(lambda env: None)),
    (
        "obs-structure", "error",
        observing(lambda env: (Sound.observe(env),), observation_space=spaces.Tuple([Sound.observation_space] * 2)),
    ),
    ("obs-reused", "warning", observing(_reused)),
    (
        "obs-scale", "warning",
        observing(lambda env: Sound.observe(env) * 1000, observation_space=spaces.Box(-np.inf, np.inf, (2,))),
    ),
    (
        "image-range", "warning",
        observing(
            lambda env: env.np_random.integers(0, 2, (8, 8), np.uint8),
            observation_space=spaces.Box(0, 1, (8, 8), np.uint8),
        ),
    ),
    (
        "image-dtype", "warning",
        observing(
            lambda env: env.np_random.uniform(0, 255, (8, 8, 3)).astype(np.float32),
            observation_space=spaces.Box(0, 255, (8, 8, 3)),
        ),
    ),
    ("reward-type", "error", stepping(lambda env, r: (r[0], None, *r[2:]))),
    ("reward-type", "error", stepping(lambda env, r: (r[0], np.ones(2), *r[2:]))),
    ("reward-type", "warning", stepping(lambda env, r: (r[0], np.ones(1), *r[2:]))),
    ("reward-finite", "error", stepping(lambda env, r: (r[0], float("nan"), *r[2:]))),
    ("flag-type", "error", stepping(lambda env, r: (*r[:3], None, r[4]))),
    ("flag-type", "warning", stepping(lambda env, r: (*r[:3], 0, r[4]))),
    ("info-type", "error", stepping(_no_info)),
    ("no-end", "warning", stepping(lambda env, r: (*r[:2], False, False, r[4]))),
    ("bounds-refused", "error", type("E", (Sound,), {"step": _refuse_bounds})),
    ("mask-empty", "error", masked(lambda env: [0, 0, 0])),
    ("mask-shape", "error", masked(lambda env: [1, 1, 1, 1], entries=4)),
    (
        "mask-in-info", "warning",
        stepping(lambda env, r: (*r[:4], {"action_mask": np.ones(3, np.int8)}), action_space=spaces.Discrete(3)),
    ),
    ("render-mode", "warning", type("E", (Sound,), {"metadata": {}})),
    ("render-frame", "warning", type("E", (Sound,), {"render": lambda env: None})),
    ("render-raised", "error", type("E", (Sound,), {"render": failing})),
    ("close-raised", "error", type("E", (Sound,), {"close": failing})),
    ("close-twice", "error", type("E", (Sound,), {"close": _close_once})),
]  # fmt: skip
