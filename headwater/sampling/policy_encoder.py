"""PolicyEncoder: the row of all that a policy sees, `[features | action before | reward before | action mask]`.

    raw observations -> features, by space or by a class of the user's own
    the step before  -> its action as the policy sampled it (choices one-hot), its reward as learned from; both by
                        setting, and zeros where an episode begins
    action mask      -> 1 where a choice is allowed; an observation Dict has it under "action_mask"

Where there is neither a step before nor a mask to see, `policy_encoder` gives the encoder of the features alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.action_masks import ACTION_MASK, MaskMismatch, choices_of, mask_leaves, mask_sizes, num_choices
from headwater.envs.nested import tree_leaves
from headwater.errors import ConfigError, EnvError
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import joined, one_part
from headwater.sampling.preprocessors import Encoder, as_row_encoder, get_encoder


def policy_encoder(
    observation_space: spaces.Space, action_space: spaces.Space, config: Any, env_id: str = "env"
) -> Encoder:
    """The encoder of what a policy sees of an env.

    Args:
        observation_space: The env's own.
        action_space: The env's own.
        config: Read are clip_rewards, and of the model custom_preprocessor, use_prev_action and use_prev_reward.
        env_id: For messages.

    Raises:
        ConfigError: an action mask does not fit the action space, or custom_preprocessor is no encoder.
        UnsupportedSpaceError: a space has no encoder.

    Example:
        >>> from headwater.config import TrainerConfig
        >>> space = spaces.Dict({"observation": spaces.Box(-1, 1, (4,)), "action_mask": spaces.MultiBinary(2)})
        >>> policy_encoder(space, spaces.Discrete(2), TrainerConfig(model={"use_prev_reward": True})).space
        EncodedSpace(7: vector [4], prev_reward [1], action_mask [2])
    """
    model = config["model"]
    seen, mask_space = _without_mask(observation_space, env_id)
    features = _features_encoder(seen, model)
    if mask_space is None and not (model["use_prev_action"] or model["use_prev_reward"]):
        return features
    return PolicyEncoder(observation_space, features, action_space, config, env_id)


class PolicyEncoder(Encoder):
    """Encodes observations together with the step before and the action mask.

    Attributes:
        before_size: P, the columns of the step before.
        has_mask: whether there is an action mask.
    """

    def __init__(
        self,
        original_space: spaces.Space,
        features: Encoder,
        action_space: spaces.Space,
        config: Any,
        env_id: str,
    ) -> None:
        self._features = as_row_encoder(features)
        self._clip_rewards = config["clip_rewards"]
        self._env_id = env_id
        rows = [self._features.space]
        self._actions = get_encoder(_sampled_space(action_space)) if config["model"]["use_prev_action"] else None
        self._sees_reward = bool(config["model"]["use_prev_reward"])
        if self._actions is not None:
            space = self._actions.space
            rows.append(one_part("prev_action", space.shape, space.low, space.high))
        if self._sees_reward:
            rows.append(one_part("prev_reward", (1,)))
        start = self._features.space.shape[0]
        self.before_size = sum(row.shape[0] for row in rows[1:])
        self._before = slice(start, start + self.before_size)
        _, mask_space = _without_mask(original_space, env_id)
        self.has_mask = mask_space is not None
        if mask_space is not None:
            assert isinstance(original_space, spaces.Dict)
            self._seen_keys = [key for key in original_space.spaces if key != ACTION_MASK]
            if not num_choices(action_space):
                raise ConfigError(
                    f"Env {env_id!r}: its observation has the key {ACTION_MASK!r}, but its action space {action_space} "
                    "has no choices to mask. Where it is a feature like others, give it another name in a wrapper."
                )
            try:
                self._mask_leaves = mask_leaves(action_space, mask_sizes(mask_space))
            except MaskMismatch as mismatch:
                raise ConfigError(
                    f"Env {env_id!r}: the action mask in its observation does not fit its action space: {mismatch}. "
                    "Give one entry for each choice, 1 where it is allowed."
                ) from None
            self._choices = choices_of(action_space)
            sizes = [choice.size for choice in self._choices]
            self._choice_starts = np.cumsum([0, *sizes[:-1]])
            rows.append(one_part("action_mask", (sum(sizes),), 0, 1))
        super().__init__(original_space, joined(rows))

    def encode(self, obs: Any, before: NDArray[np.float32] | None = None) -> np.ndarray:
        """Return rows float32 `[N, D]`, always a new array.

        Args:
            obs: `[N, ...]`, nested as the env's space.
            before: `[N, P]`, made by `before`; None: episodes begin here.
        """
        out = np.empty((len(next(tree_leaves(obs))), *self.space.shape), np.float32)
        self._features.write(self._seen(obs), out[:, : self._before.start])
        out[:, self._before] = 0 if before is None else before
        if self.has_mask:
            self._write_mask(obs[ACTION_MASK], out[:, self._before.stop :])
        return out

    def before(
        self, num_rows: int, actions: Any = None, rewards: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the columns `[N, P]` of a step, for the rows after it; zeros for what is not given.

        Args:
            num_rows: N.
            actions: `[N, ...]` as the policy sampled them, nested as the action space.
            rewards: `[N]` as the env paid them.
        """
        out = np.zeros((num_rows, self.before_size), np.float32)
        if self._actions is not None and actions is not None:
            self._actions.write(actions, out[:, : self._actions.space.shape[0]])
        if self._sees_reward and rewards is not None:
            out[:, -1] = learned_rewards(rewards, self._clip_rewards)
        return out

    def check_masks(
        self, rows: np.ndarray, idle: NDArray[np.bool_] | None = None, noun: str | Callable[[int], str] = "sub-env"
    ) -> None:
        """Raise EnvError where the mask of an encoded row allows nothing.

        Args:
            rows: `[N, D]`.
            idle: `[N]` bool, rows on which nobody acts; None: none. Where they allow nothing, as after an episode's
                end, they are made to allow all, so that a policy can give some action for every row.
            noun: what a row is called in the message, before its number; or a function that names row i.
        """
        if not self.has_mask:
            return
        masks = rows[:, self._before.stop :]
        allowed = np.maximum.reduceat(masks, self._choice_starts, axis=1) > 0
        if allowed.all():
            return
        if idle is not None:
            masks[idle & ~allowed.all(1)] = 1
            allowed |= idle[:, None]
        if not allowed.all():
            row, choice = (int(index) for index in np.argwhere(~allowed)[0])
            path, size = self._choices[choice]
            name = noun(row) if callable(noun) else f"{noun} {row}"
            raise EnvError(
                f"Env {self._env_id!r} ({name}): its action mask allows none of the {size} choices for {path}. "
                "Allow at least one wherever the episode goes on (one that does nothing, if need be), or end the "
                "episode there."
            )

    def _seen(self, obs: Any) -> Any:
        """What the features are made of."""
        if not self.has_mask:
            return obs
        if self._seen_keys == ["observation"]:
            return obs["observation"]
        return {key: obs[key] for key in self._seen_keys}

    def _write_mask(self, mask: Any, out: NDArray[np.float32]) -> None:
        if len(self._mask_leaves) != 1 or self._mask_leaves[0].columns != slice(0, out.shape[1]):
            out[...] = 1
        for leaf in self._mask_leaves:
            allowed = leaf.of(mask)
            np.not_equal(allowed.reshape(len(allowed), -1), 0, out=out[:, leaf.columns])


class CheckedEncoder(Encoder):
    """An encoder of the user's own, each of whose results is checked."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.original_space, encoder.space)
        self._encoder = encoder
        self._name = f"model.custom_preprocessor: {type(encoder).__name__}"
        space: Any = encoder.space
        if not (isinstance(space, spaces.Box) and 1 <= len(space.shape) <= 3 and space.dtype in (np.float32, np.uint8)):
            raise ConfigError(
                f"{self._name}: its space is {space}, but must be a Box of rank 1 (a vector), 2 or 3 (an image), of "
                "float32 or uint8. Give it to Encoder.__init__(original_space, space)."
            )

    def encode(self, obs: Any) -> np.ndarray:
        code: Any = self._encoder.encode(obs)
        expected = (len(next(tree_leaves(obs))), *self.space.shape)
        if not (isinstance(code, np.ndarray) and code.shape == expected and code.dtype == self.space.dtype):
            came = f"{code.dtype}{list(code.shape)}" if isinstance(code, np.ndarray) else f"a {type(code).__name__}"
            raise ConfigError(
                f"{self._name}.encode returned {came}, but its space asks for {self.space.dtype}{list(expected)}: one "
                "code for each of the batch's observations."
            )
        return code

    def decode(self, row: np.ndarray) -> Any:
        return self._encoder.decode(row)


def learned_rewards(rewards: NDArray[np.float32], clip: bool | float | None) -> NDArray[np.float32]:
    """Rewards as `clip_rewards` lets them be learned from, of any shape."""
    if clip is True:
        return np.sign(rewards)
    return rewards if clip is None or clip is False else np.clip(rewards, -clip, clip)


def _features_encoder(space: spaces.Space, model: Mapping[str, Any]) -> Encoder:
    encoder_class = ModelCatalog.get_custom_preprocessor(model)
    if encoder_class is None:
        return get_encoder(space)
    if not (isinstance(encoder_class, type) and issubclass(encoder_class, Encoder)):
        raise ConfigError(
            f"model.custom_preprocessor: {encoder_class!r} must be a class derived from "
            "headwater.sampling.preprocessors.Encoder, made as Class(observation_space)."
        )
    make: Any = encoder_class
    return CheckedEncoder(make(space))


def _without_mask(space: spaces.Space, env_id: str) -> tuple[spaces.Space, spaces.Space | None]:
    """What there is to see beside the action mask, and the mask's space."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space, None
    rest = {key: child for key, child in space.spaces.items() if key != ACTION_MASK}
    if not rest:
        raise ConfigError(
            f"Env {env_id!r}: its observation has an action mask and nothing else. Add an entry, if only of zeros."
        )
    return rest["observation"] if rest.keys() == {"observation"} else spaces.Dict(rest), space.spaces[ACTION_MASK]


def _sampled_space(space: spaces.Space) -> spaces.Space:
    """Of actions as a policy samples them: choices counted from 0, numbers without bounds, which are never an image."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _sampled_space(child) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_sampled_space(child) for child in space.spaces])
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.Box):
        return spaces.Box(-np.inf, np.inf, (math.prod(space.shape),), np.float32)
    return space
