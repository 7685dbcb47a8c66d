"""What the future of Gymnasium's classic-control envs hangs on: the attributes that their checkpoint holds.

Only the exact classes are listed: a subclass may keep more, and then has to bring `get_state` and `set_state` itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

# Class -> its attributes besides the random generator. What only rendering reads (Pendulum's last_u) is left out.
CLASSIC_CONTROL: dict[type, tuple[str, ...]] = {
    AcrobotEnv: ("state",),
    CartPoleEnv: ("state", "steps_beyond_terminated"),
    Continuous_MountainCarEnv: ("state",),
    MountainCarEnv: ("state",),
    PendulumEnv: ("state",),
    CartPoleVectorEnv: ("state", "steps", "prev_done", "low", "high"),
}


def get_attributes(env: Any) -> dict[str, Any]:
    """Return the attributes of a classic-control env: arrays, numbers, tuples of such, and None."""
    return {name: _own(getattr(env, name)) for name in CLASSIC_CONTROL[type(env)]}


def set_attributes(env: Any, attributes: dict[str, Any]) -> None:
    """Give a classic-control env what `get_attributes` returned of another; it then needs no reset."""
    for name in CLASSIC_CONTROL[type(env)]:
        setattr(env, name, _own(attributes[name]))
    if isinstance(env, PendulumEnv):
        env.last_u = None


def can_reset_in_next_step(env: Any) -> bool:
    """Whether `reset_in_next_step` is for this vector env: for the native CartPole only."""
    return type(env) is CartPoleVectorEnv


def reset_in_next_step(env: Any, mask: np.ndarray) -> None:
    """Have the envs of `mask` (bool `[N]`) start a new episode in the next step, as they do where one ended."""
    env.prev_done = env.prev_done | mask


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
