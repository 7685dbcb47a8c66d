"""Actions to try an env with: at random or at the bounds, and always ones that the action mask allows."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.action_masks import ACTION_MASK, MaskMismatch, choices_of, flat_mask
from headwater.envs.env_checks.findings import Findings, Stopped

Mode = Literal["random", "low", "high"]


class Chooser:
    """Chooses actions of one agent.

    Args:
        space: of its actions.
        seed: of what is drawn.
        mode: "random", or "low" or "high" for the ends of each part of the action.

    Example:
        >>> Chooser(spaces.Discrete(3), 0).choose(np.array([0, 0, 1], np.int8))
        np.int64(2)
        >>> Chooser(spaces.Box(-1, 2), 0, "high").choose(None)
        array([2.], dtype=float32)
    """

    def __init__(self, space: spaces.Space, seed: int, mode: Mode = "random") -> None:
        self.space = copy.deepcopy(space)  # the user's own generator is not touched
        self.space.seed(seed)
        self._mode = mode
        self._rng = np.random.default_rng(seed)

    def choose(self, mask: NDArray[np.int8] | None) -> Any:
        """An action that the flat row `mask` allows; None allows all."""
        action = self.space.sample()
        if self._mode != "random":
            action = _at_end(self.space, action, self._mode)
        return action if mask is None else self._allowed(self.space, action, mask)[0]

    def _allowed(self, space: spaces.Space, action: Any, row: NDArray[np.int8]) -> tuple[Any, NDArray[np.int8]]:
        """The action with what is forbidden replaced, and the entries of the row that are left for what follows."""
        if isinstance(space, spaces.Dict):
            chosen = {}
            for key in sorted(space.spaces):
                chosen[key], row = self._allowed(space.spaces[key], action[key], row)
            return {key: chosen[key] for key in space.spaces}, row
        if isinstance(space, spaces.Tuple):
            parts = []
            for child, part in zip(space.spaces, action, strict=True):
                part, row = self._allowed(child, part, row)
                parts.append(part)
            return tuple(parts), row
        choices = choices_of(space)
        if not choices:
            return action, row
        start = getattr(space, "start", 0)
        flat = np.ravel(np.asarray(action) - start)
        for place, choice in enumerate(choices):
            allowed, row = np.flatnonzero(row[: choice.size]), row[choice.size :]
            if flat[place] not in allowed:
                flat[place] = self._rng.choice(allowed)
        if isinstance(space, spaces.Discrete):
            return np.asarray(flat[0] + start, space.dtype)[()], row
        return np.asarray(flat.reshape(space.shape or ()) + start, space.dtype), row


def has_numbers(space: Any) -> bool:
    """Whether an action has a part with bounds: a Box."""
    if isinstance(space, spaces.Dict):
        return any(map(has_numbers, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(has_numbers, space.spaces))
    return isinstance(space, spaces.Box)


def mask_for(findings: Findings, space: spaces.Space, obs: Any, info: Any, who: str) -> NDArray[np.int8] | None:
    """The flat action mask in an observation, or else in its info; None where there is none that can be used.

    Raises:
        Stopped: it allows nothing.
    """
    mask = obs.get(ACTION_MASK) if isinstance(obs, dict) else None
    if mask is None and isinstance(info, dict):
        mask = info.get(ACTION_MASK)
    if mask is None:
        return None
    try:
        row = flat_mask(space, mask)
    except MaskMismatch as mismatch:
        findings.error(
            "mask-shape", "an entry of the mask for every choice of the action space", str(mismatch),
            "Give the mask the sizes of the action space's choices.", who,
        )  # fmt: skip
        return None
    start = 0
    for choice in choices_of(space):
        if not row[start : start + choice.size].any():
            findings.error(
                "mask-empty", f"at least one allowed choice of {choice.path}", "a mask that allows none",
                "End the episode where nobody can do anything, or allow an action that does nothing.", who,
            )  # fmt: skip
            raise Stopped
        start += choice.size
    return row


def _at_end(space: spaces.Space, action: Any, mode: Mode) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _at_end(child, action[key], mode) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_at_end(child, part, mode) for child, part in zip(space.spaces, action, strict=True))
    if not isinstance(space, spaces.Box):
        return action
    bound = space.low if mode == "low" else space.high
    return np.where(np.isfinite(bound), bound, action).astype(space.dtype)
