"""Action adapters: from the actions that a distribution sampled to those that the env takes.

The batch stores what was sampled, so that its log-probability can be computed again; the env gets what its space
allows. `get_action_adapter` is a function over spaces by singledispatch: a new kind of space registers itself.

    Box                      bounded dimensions: [-1, 1] stretched onto [low, high] (normalize_actions), then clipped;
                             half-bounded and unbounded ones as they are, clipped to the bound there is (clip_actions)
    Discrete, MultiDiscrete  counted from 0 by the distribution, from `start` by the env
    MultiBinary              int8
    Dict, Tuple              each part by its own adapter, nested alike
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.errors import UnsupportedSpaceError

# Integers beyond this are not exact in float32.
_LARGEST_EXACT = 2**24


class ActionAdapter(ABC):
    """Adapts batches of actions `[N, ...]` of one action space.

    Attributes:
        space: the env's action space.
        is_identity: whether `to_env` gives back its argument.
        is_nested: whether actions are dicts or tuples, which a batch column holds as `flatten` makes them.
        flat_width: A, the numbers in one action.

    Example:
        >>> adapter = get_action_adapter(spaces.Box(300, 500, (1,)))
        >>> adapter.to_env(np.array([[0.0], [1.0], [7.0]], np.float32)).ravel().tolist()
        [400.0, 500.0, 500.0]
    """

    is_identity = False
    is_nested = False

    def __init__(self, space: spaces.Space, flat_width: int) -> None:
        self.space = space
        self.flat_width = flat_width

    @abstractmethod
    def to_env(self, actions: Any) -> Any:
        """Return what the env takes for the sampled `actions` `[N, ...]`: a new array, or they themselves unchanged."""

    @abstractmethod
    def from_env(self, actions: Any) -> Any:
        """Return the sampled actions that `to_env` maps to `actions` `[N, ...]`; what it clipped stays clipped."""

    def flatten(self, actions: Any) -> Any:
        """Return sampled actions as one array: nested ones float32 `[N, A]`, parts side by side; others as they are.

        The parts come in the order of `MultiActionDistribution`: Dict by sorted key, Tuple by place.
        """
        return actions

    def unflatten(self, flat: Any) -> Any:
        """Return the sampled actions of which `flat` is the array."""
        return flat


@singledispatch
def get_action_adapter(
    space: spaces.Space, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    """Return the adapter of an action space.

    Args:
        clip_actions: whether Box actions are clipped to the bounds.
        normalize_actions: whether bounded dimensions of a Box are stretched; they are then clipped in any case.
        path: how messages call the space.

    Raises:
        UnsupportedSpaceError: the space, or the part of it that the message names, cannot be acted in.
    """
    raise UnsupportedSpaceError(
        f"The action space at {path} is {space}, for which there is no distribution. Supported are Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of these: offer it as one of them in a wrapper of your env."
    )


class _Integers(ActionAdapter):
    """Integers counted from 0, to those of a Discrete, MultiDiscrete or MultiBinary space."""

    def __init__(self, space: spaces.Space, start: Any, largest: int, path: str) -> None:
        super().__init__(space, math.prod(space.shape or ()))
        if largest > _LARGEST_EXACT:
            raise UnsupportedSpaceError(f"The action space at {path}, {space}, has more than {_LARGEST_EXACT} values.")
        self._dtype = np.dtype(space.dtype)
        self._start = np.asarray(start, self._dtype)
        self._shape = space.shape or ()
        self.is_identity = self._dtype == np.int64 and not self._start.any()

    def to_env(self, actions: Any) -> Any:
        if self.is_identity and actions.dtype == np.int64:
            return actions.reshape((len(actions), *self._shape))
        return actions.astype(self._dtype).reshape((len(actions), *self._shape)) + self._start

    def from_env(self, actions: Any) -> Any:
        return actions.astype(np.int64) - self._start.astype(np.int64)


@get_action_adapter.register(spaces.Discrete)
def _discrete_adapter(
    space: spaces.Discrete, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    return _Integers(space, space.start, int(space.n), path)


@get_action_adapter.register(spaces.MultiDiscrete)
def _multi_discrete_adapter(
    space: spaces.MultiDiscrete, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    return _Integers(space, space.start, int(space.nvec.max(initial=1)), path)


@get_action_adapter.register(spaces.MultiBinary)
def _multi_binary_adapter(
    space: spaces.MultiBinary, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    return _Integers(space, 0, 2, path)


class _Numbers(ActionAdapter):
    """Numbers of a Box: stretched, clipped, and rounded where the Box is one of integers."""

    def __init__(self, space: spaces.Box, clip_actions: bool, normalize_actions: bool) -> None:
        super().__init__(space, math.prod(space.shape))
        self._shape, self._dtype = space.shape, np.dtype(space.dtype)
        self._is_integer = self._dtype.kind in "iu"
        # float32 is what was sampled; wider bounds need the wider arithmetic.
        self._work = np.dtype(np.float32) if self._dtype in (np.float32, np.float16) else np.dtype(np.float64)
        low: NDArray[Any] = space.low.astype(self._work)
        high: NDArray[Any] = space.high.astype(self._work)
        is_bounded = np.isfinite(low) & np.isfinite(high)
        bottom, top = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
        self._stretches = bool(normalize_actions and (is_bounded & ((low != -1) | (high != 1))).any())
        # Halved first, as the whole width may overflow.
        self._half = (top / 2 - bottom / 2).astype(self._work)
        self._middle = (top / 2 + bottom / 2).astype(self._work)
        clipped = np.full(space.shape, clip_actions or self._is_integer) | (is_bounded & normalize_actions)
        self._low, self._high = np.where(clipped, low, -np.inf), np.where(clipped, high, np.inf)
        self._clips = bool((np.isfinite(self._low) | np.isfinite(self._high)).any())
        self.is_identity = not (self._stretches or self._clips) and self._dtype == np.float32

    def to_env(self, actions: Any) -> Any:
        actions = actions.reshape((len(actions), *self._shape))
        if self.is_identity and actions.dtype == np.float32:
            return actions
        result: NDArray[Any] = np.array(actions, self._work)
        if self._stretches:
            result *= self._half
            result += self._middle
        if self._clips:
            np.maximum(result, self._low, out=result)
            np.minimum(result, self._high, out=result)
        if self._is_integer:
            np.rint(result, out=result)
        return result.astype(self._dtype, copy=False)

    def from_env(self, actions: Any) -> Any:
        if not self._stretches:
            return actions.astype(np.float32)
        # A dimension without width, whose every action is its middle, was sampled as anything.
        width = np.where(self._half == 0, 1, self._half)
        return ((actions.astype(self._work) - self._middle) / width).astype(np.float32)


@get_action_adapter.register(spaces.Box)
def _box_adapter(
    space: spaces.Box, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    return _Numbers(space, clip_actions, normalize_actions)


class _Parts(ActionAdapter):
    """The parts of a Dict or Tuple, each adapted on its own."""

    is_nested = True

    def __init__(
        self, space: spaces.Dict | spaces.Tuple, parts: dict[Any, spaces.Space], clips: bool, stretches: bool, path: str
    ) -> None:
        self._adapters = {
            key: get_action_adapter(part, clips, stretches, f"{path}[{key!r}]") for key, part in parts.items()
        }
        super().__init__(space, sum(adapter.flat_width for adapter in self._adapters.values()))
        self._is_tuple = isinstance(space, spaces.Tuple)
        self.is_identity = all(adapter.is_identity for adapter in self._adapters.values())

    def to_env(self, actions: Any) -> Any:
        if self.is_identity:
            return actions
        return self._nest({key: adapter.to_env(actions[key]) for key, adapter in self._adapters.items()})

    def from_env(self, actions: Any) -> Any:
        return self._nest({key: adapter.from_env(actions[key]) for key, adapter in self._adapters.items()})

    def flatten(self, actions: Any) -> Any:
        parts = list(self._leaf_columns(actions))
        return np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), np.float32)

    def unflatten(self, flat: Any) -> Any:
        parts, start = {}, 0
        for key, adapter in self._adapters.items():
            end = start + adapter.flat_width
            columns = flat[:, start:end]
            parts[key] = adapter.unflatten(columns) if adapter.is_nested else _as_sampled(adapter, columns)
            start = end
        return self._nest(parts)

    def _leaf_columns(self, actions: Any) -> Iterator[np.ndarray]:
        for key, adapter in self._adapters.items():
            part = actions[key]
            flat = adapter.flatten(part) if adapter.is_nested else part.reshape(len(part), adapter.flat_width)
            yield flat.astype(np.float32, copy=False)

    def _nest(self, parts: dict[Any, Any]) -> Any:
        if self._is_tuple:
            return tuple(parts.values())
        assert isinstance(self.space, spaces.Dict)
        return {key: parts[key] for key in self.space.spaces}


def _as_sampled(adapter: ActionAdapter, columns: np.ndarray) -> np.ndarray:
    """Return a part's columns `[N, width]` in the shape and kind that its distribution samples."""
    shaped = columns.reshape((len(columns), *(adapter.space.shape or ())))
    return shaped.astype(np.int64) if isinstance(adapter, _Integers) else shaped


@get_action_adapter.register(spaces.Dict)
def _dict_adapter(
    space: spaces.Dict, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    parts = {key: space.spaces[key] for key in sorted(space.spaces)}
    return _Parts(space, parts, clip_actions, normalize_actions, path)


@get_action_adapter.register(spaces.Tuple)
def _tuple_adapter(
    space: spaces.Tuple, clip_actions: bool = True, normalize_actions: bool = True, path: str = "action"
) -> ActionAdapter:
    return _Parts(space, dict(enumerate(space.spaces)), clip_actions, normalize_actions, path)
