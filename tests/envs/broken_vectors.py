"""Vector envs with one fault each, and one without any: for the tests of `check_env`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from tests.envs.broken_envs import failing


class SoundVector(gymnasium.vector.VectorEnv):
    """Three envs whose episodes have four steps, reset in the step after their end."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs = 3
    single_observation_space = spaces.Box(0, 1, (2,))
    single_action_space = spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 3)
    action_space = batch_space(single_action_space, 3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        self.steps = (self.steps + 1) % 5
        ended = np.full(3, self.steps == 4)
        return self.observe(), np.ones(3), ended, np.zeros(3, bool), {}

    def observe(self) -> Any:
        return self.np_random.random((3, 2), np.float32)


def vector_stepping(change: Callable[..., Any], **attributes: Any) -> type[SoundVector]:
    """`SoundVector` whose step returns `change(*what it would)`."""

    def step(self: Any, actions: Any) -> Any:
        return change(*SoundVector.step(self, actions))

    return type("VectorStepping", (SoundVector,), {"step": step, **attributes})


SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}

BROKEN_VECTORS: list[tuple[str, str, type]] = [
    ("autoreset-mode", "error", type("E", (SoundVector,), {"metadata": {}})),
    ("num-envs", "error", type("E", (SoundVector,), {"num_envs": 0})),
    ("obs-batch", "error", vector_stepping(lambda o, r, t, c, i: (o[:2], r, t, c, i))),
    ("obs-batch", "error", vector_stepping(lambda o, r, t, c, i: (o + 5, r, t, c, i))),
    ("rewards-shape", "error", vector_stepping(lambda o, r, t, c, i: (o, 1.0, t, c, i))),
    ("reward-finite", "error", vector_stepping(lambda o, r, t, c, i: (o, r * np.nan, t, c, i))),
    ("terminateds-shape", "error", vector_stepping(lambda o, r, t, c, i: (o, r, t[:, None], c, i))),
    ("truncateds-shape", "error", vector_stepping(lambda o, r, t, c, i: (o, r, t, c.astype(float), i))),
    ("info-type", "error", vector_stepping(lambda o, r, t, c, i: (o, r, t, c, [{}, {}, {}]))),
    ("step-result", "error", vector_stepping(lambda o, r, t, c, i: (o, r, t, i))),
    ("no-final-observation", "error", type("E", (SoundVector,), {"metadata": SAME_STEP})),
    ("step-raised", "error", type("E", (SoundVector,), {"step": failing})),
    ("not-reproducible", "error", type("E", (SoundVector,), {"observe": lambda env: np.random.random((3, 2))})),
]  # fmt: skip
