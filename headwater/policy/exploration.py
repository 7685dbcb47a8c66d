"""Exploration: how an action is drawn from a policy's distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.errors import ConfigError, UnsupportedSpaceError
from headwater.policy.distributions.categorical import MASKED_LOGIT


class StochasticSampling:
    """Sample from the distribution when exploring, else take its deterministic action.

    Args:
        action_space: The env's.
        random_timesteps: So many env steps of the run are uniformly random first. Their log-probabilities are still the
            policy's, so they suit algorithms that do not correct for who acted.
        normalized: Box actions are in [-1, 1] (`normalize_actions`) rather than in the env's units.
        masked: Actions are masked. Random steps keep to the mask; a Box beside it is standard normal then.
    """

    def __init__(
        self, action_space: spaces.Space, random_timesteps: int = 0, normalized: bool = True, masked: bool = False
    ) -> None:
        self.action_space = action_space
        self.random_timesteps = random_timesteps
        self.normalized = normalized
        self.masked = masked

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], action_space: spaces.Space, masked: bool = False
    ) -> StochasticSampling:
        """As `exploration_config` says.

        Raises:
            ConfigError: it names another type of exploration.
        """
        settings = dict(config["exploration_config"])
        kind = settings.pop("type", "StochasticSampling")
        if kind != cls.__name__:
            raise ConfigError(f"exploration_config: its type must be {cls.__name__!r}, but {kind!r} came.")
        return cls(action_space, normalized=config["normalize_actions"], masked=masked, **settings)

    def get_actions(self, dist: Any, rng: Any, explore: bool, timestep: int) -> Any:
        """Actions for each row of `dist`; `timestep` is the number of env steps before them."""
        if not explore:
            return dist.deterministic_sample()
        if timestep >= self.random_timesteps:
            return dist.sample(rng)
        if self.masked:
            return dist.with_inputs(dist.ops.where(dist.inputs > MASKED_LOGIT / 2, 0.0, dist.inputs)).sample(rng)
        return random_actions(self.action_space, len(dist.inputs), rng, self.normalized)


def random_actions(space: spaces.Space, num_rows: int, rng: Any, normalized: bool) -> Any:
    """Uniform actions as a policy would sample them: choices are counted from 0, a Box is in the policy's units.

    Dimensions of a Box without two finite bounds are standard normal.

    Returns:
        [num_rows, ...], nested for Dict and Tuple spaces.
    """
    if isinstance(space, spaces.Dict):
        return {key: random_actions(child, num_rows, rng, normalized) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(random_actions(child, num_rows, rng, normalized) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return _choices(rng.uniform((num_rows,)), np.asarray(space.n))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        choices = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        return _choices(rng.uniform((num_rows, choices.size)).reshape(num_rows, *choices.shape), choices)
    if isinstance(space, spaces.Box):
        return _box_actions(space, num_rows, rng, normalized)
    raise UnsupportedSpaceError(
        f"There are no random actions for {space}. Use Box, Discrete, MultiDiscrete or MultiBinary, or nest these."
    )


def _choices(uniform: NDArray, choices: NDArray) -> NDArray[np.int64]:
    return np.minimum((uniform * choices).astype(np.int64), choices - 1)  # the product may round up to `choices`


def _box_actions(space: spaces.Box, num_rows: int, rng: Any, normalized: bool) -> NDArray[np.float32]:
    shape = (num_rows, *space.shape)
    flat = (num_rows, int(np.prod(space.shape, dtype=int)))
    bounded = np.broadcast_to(np.isfinite(space.low) & np.isfinite(space.high), space.shape)
    actions = np.array(rng.normal(flat), np.float32).reshape(shape)
    uniform = np.asarray(rng.uniform(flat), np.float32).reshape(shape)
    low = np.where(bounded, -1.0 if normalized else space.low, 0.0).astype(np.float32)
    high = np.where(bounded, 1.0 if normalized else space.high, 0.0).astype(np.float32)
    return np.where(bounded, low + uniform * (high - low), actions)
