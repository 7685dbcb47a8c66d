"""StepChecker: what is asked of every step of an env before its numbers may reach a filter or a batch.

Cheap questions on every step (finite, integers within range), the whole of the spaces on the first and every hundredth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.space_check import LARGEST, Mismatch, check_value

CHECK_EVERY_STEPS = 100

QuickCheck = Callable[[Any], bool]


class StepChecker:
    """Checks what an env returns against its observation space.

    Args:
        space: of a single env.
        num_envs: N.
        every_step: whether to check the whole space on every step (`check_env_steps`).

    Example:
        >>> checker = StepChecker(spaces.Box(-1, 1, (2,)), num_envs=3)
        >>> checker.passes(np.zeros((3, 2), np.float32), np.array([0, np.nan, 0], np.float32))
        False
        >>> checker.mismatch(np.zeros((3, 2), np.float32), np.array([0, np.nan, 0], np.float32)).row
        1
    """

    def __init__(self, space: spaces.Space, num_envs: int, every_step: bool = False) -> None:
        self.space = space
        self.num_envs = num_envs
        self._check_every = 1 if every_step else CHECK_EVERY_STEPS
        self._quick_check = _quick_check(space)

    def checks_all(self, number: int) -> bool:
        """Whether step `number`, counted from 1, is one to check as a whole."""
        return number % self._check_every == 0 or number == 1

    def passes(self, obs: Any, rewards: np.ndarray | None = None) -> bool:
        """Whether a batch passes the cheap checks; `mismatch` then says what is wrong with one that does not."""
        return (rewards is None or is_finite(rewards)) and self._quick_check(obs)

    def mismatch(self, obs: Any, rewards: np.ndarray | None = None) -> Mismatch | None:
        """Return the first fault of a whole batch, with its row; None where it lies in the space."""
        try:
            if rewards is not None:
                check_rewards(rewards)
            check_value(self.space, obs, "obs", self.num_envs)
        except Mismatch as mismatch:
            return mismatch
        return None

    def row_mismatch(self, row: Any) -> Mismatch | None:
        """Return the fault of one env's observation, as the env gave it; None where it lies in the space."""
        try:
            check_value(self.space, row, "obs")
        except Mismatch as mismatch:
            return mismatch
        return None


def is_finite(array: np.ndarray) -> bool:
    """Whether no element is NaN, infinite, or beyond float32, in which policies see it."""
    # One dot product shows any of them, cheaper than a look at each; where it is too large, that follows.
    return bool(np.vdot(array, array) <= LARGEST) or bool((np.abs(array) <= LARGEST).all())


def check_rewards(rewards: np.ndarray) -> None:
    """Raise Mismatch for the first reward `[N]` that is not finite."""
    finite = np.isfinite(rewards)
    if not finite.all():
        row = int(np.argmin(finite))
        raise Mismatch(f"the reward is {rewards[row]}, expected a finite number", row)


def scalar_mismatch(reward: Any, terminated: Any, truncated: Any, info: Any) -> Mismatch | None:
    """Return what is wrong with what one env returned besides its observation."""
    try:
        is_number = np.size(reward) == 1 and np.asarray(reward).dtype.kind in "biuf"
    except ValueError:
        is_number = False
    if not is_number:
        return Mismatch(f"the reward is the {type(reward).__name__} {reward!r}, expected one number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.size(flag) != 1 or np.asarray(flag).dtype.kind not in "biu":
            return Mismatch(f"{name} is the {type(flag).__name__} {flag!r}, expected True or False")
    if not isinstance(info, dict):
        return Mismatch(f"info is the {type(info).__name__} {info!r}, expected a dict")
    return None


def _quick_check(space: spaces.Space) -> QuickCheck:
    """Return the cheap check of a batch that already has the structure, shapes and dtypes of its space."""
    if isinstance(space, spaces.Dict):
        named = [(key, _quick_check(child)) for key, child in space.spaces.items()]
        return lambda batch: all(check(batch[key]) for key, check in named)
    if isinstance(space, spaces.Tuple):
        checks = [_quick_check(child) for child in space.spaces]
        return lambda batch: all(check(part) for check, part in zip(checks, batch, strict=True))
    dtype = np.dtype(space.dtype)
    if isinstance(space, spaces.Box) and dtype.kind == "f":
        return is_finite
    if isinstance(space, spaces.MultiBinary):
        return lambda batch: not batch.size or not (batch.view(np.uint8) > 1).any()
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        # As unsigned numbers, what is below the start is beyond the end too: one comparison for both.
        unsigned = np.dtype(f"u{dtype.itemsize}")
        start = np.asarray(space.start, dtype)
        size = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec).astype(unsigned)
        return lambda batch: bool(((batch - start).view(unsigned) < size).all())
    return lambda batch: True
