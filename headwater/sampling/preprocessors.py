"""Encoders: from a batch of observations, as the env's space nests them, to the one array that a network takes.

`get_encoder` is a function over spaces by singledispatch: a new kind of space registers itself.

    Box uint8, rank 2 or 3   an image, which stays uint8: the network scales it
    Box, rank 3              float32; where the first side is the shortest, as with stacked frames [4, 84, 84], it is
                             taken for the channels and moved to the end: networks see [height, width, channels]
    Box, other ranks         flattened, float32; uint8 of the full range 0..255 is scaled to [0, 1]
    Discrete, MultiDiscrete  one-hot, less `start`; MultiDiscrete of any rank, in C order
    MultiBinary              float32
    Dict, Tuple              the parts as one float32 row: Dict by sorted key, Tuple by place. Images among them are
                             flattened, bytes scaled to [0, 1], and an `EncodedSpace` says where they stand

What a policy sees besides (the action and reward before, action masks) `headwater.sampling.policy_encoder` adds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.nested import tree_leaves
from headwater.errors import UnsupportedSpaceError
from headwater.policy.encoded_space import joined, one_part
from headwater.sampling.action_adapters import ActionAdapter as ActionAdapter
from headwater.sampling.action_adapters import get_action_adapter as get_action_adapter


class Encoder(ABC):
    """Encodes batches `[N, ...]` of one observation space.

    Attributes:
        original_space: of the env.
        space: Box of an encoded observation, which policies are built for.
        is_identity: whether `encode` gives back its argument.

    Example:
        >>> encoder = get_encoder(spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,))]))
        >>> encoder.encode((np.array([1, 3]), np.array([[0.5, 0.25], [0, 1]])))
        array([[1.  , 0.  , 0.  , 0.5 , 0.25],
               [0.  , 0.  , 1.  , 0.  , 1.  ]], dtype=float32)
    """

    is_identity = False

    def __init__(self, original_space: spaces.Space, space: spaces.Box) -> None:
        self.original_space = original_space
        self.space = space

    @abstractmethod
    def encode(self, obs: Any) -> np.ndarray:
        """Return the encoded batch `[N, *space.shape]` of `obs` `[N, ...]`; may be `obs` itself or a view of it."""

    def decode(self, row: np.ndarray) -> Any:
        """Return the observation of which `row` (`space.shape`) is the code, where the encoder can tell."""
        raise NotImplementedError(f"{type(self).__name__} only encodes.")

    def write(self, obs: Any, out: np.ndarray) -> None:
        """Encode `obs` into `out`, float32 `[N, D]` where D is the code's size: its place within a nested code."""
        out[...] = self.encode(obs).reshape(out.shape)


@singledispatch
def get_encoder(space: spaces.Space, path: str = "obs") -> Encoder:
    """Return the encoder of an observation space.

    Args:
        path: how messages call the space.

    Raises:
        UnsupportedSpaceError: the space, or the part of it that the message names, has no encoder.
    """
    raise UnsupportedSpaceError(
        f"The observation space at {path} is {space}, which has no encoding. Supported are Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of these: encode it as one of them in a wrapper of your env."
    )


class _Identity(Encoder):
    is_identity = True

    def encode(self, obs: Any) -> np.ndarray:
        return obs

    def decode(self, row: np.ndarray) -> Any:
        return row.astype(self.original_space.dtype)


class _Numbers(Encoder):
    """Numbers as float32 of the code's shape, times a scale."""

    def __init__(self, original_space: spaces.Space, space: spaces.Box, scale: float = 1.0) -> None:
        super().__init__(original_space, space)
        self._scale = np.float32(scale)
        self._shape = space.shape

    def encode(self, obs: Any) -> np.ndarray:
        code = obs.astype(np.float32, copy=False).reshape((len(obs), *self._shape))
        return code if self._scale == 1 else code * self._scale

    def decode(self, row: np.ndarray) -> Any:
        numbers = np.asarray(row, np.float64) / float(self._scale)
        dtype = np.dtype(self.original_space.dtype)
        numbers = np.rint(numbers) if dtype.kind in "iu" else numbers
        return numbers.reshape(self.original_space.shape or ()).astype(dtype)


@get_encoder.register(spaces.Box)
def _box_encoder(space: spaces.Box, path: str = "obs") -> Encoder:
    rank, is_bytes = len(space.shape), space.dtype == np.uint8
    if rank == 3 and space.shape[0] < min(space.shape[1:]):
        return _ChannelsFirst(space)
    if (is_bytes and rank in (2, 3)) or (space.dtype == np.float32 and rank in (1, 3)):
        return _Identity(space, space)
    return _numbers(space, space.shape if rank == 3 else (math.prod(space.shape),))


class _ChannelsFirst(Encoder):
    """Images `[channels, height, width]`, as `[height, width, channels]`: a view, unless the dtype has to change."""

    def __init__(self, space: spaces.Box) -> None:
        dtype: Any = np.uint8 if space.dtype == np.uint8 else np.float32
        low, high = (np.moveaxis(bound, 0, -1).astype(dtype) for bound in (space.low, space.high))
        super().__init__(space, spaces.Box(low, high, dtype=dtype))

    def encode(self, obs: Any) -> np.ndarray:
        return np.moveaxis(obs, 1, -1).astype(self.space.dtype, copy=False)

    def decode(self, row: np.ndarray) -> Any:
        return np.moveaxis(row, -1, 0).astype(self.original_space.dtype)


def _numbers(space: spaces.Box, shape: tuple[int, ...]) -> Encoder:
    is_full_range = space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
    scale = 1 / 255 if is_full_range else 1.0
    low, high = (np.asarray(bound, np.float32).reshape(shape) * np.float32(scale) for bound in (space.low, space.high))
    return _Numbers(space, spaces.Box(low, high, dtype=np.float32), scale)


@get_encoder.register(spaces.MultiBinary)
def _multi_binary_encoder(space: spaces.MultiBinary, path: str = "obs") -> Encoder:
    return _Numbers(space, spaces.Box(0.0, 1.0, (math.prod(space.shape),), np.float32))


class _OneHots(Encoder):
    """Integers, each as a block of zeros with a one at its place."""

    def __init__(self, original_space: spaces.Space, counts: np.ndarray, starts: np.ndarray) -> None:
        self._counts, self._starts = counts.ravel(), starts.ravel()
        super().__init__(original_space, spaces.Box(0.0, 1.0, (int(self._counts.sum()),), np.float32))
        # Column of value v of integer j: v - start_j + the blocks before.
        self._shift = np.cumsum(self._counts) - self._counts - self._starts

    def encode(self, obs: Any) -> np.ndarray:
        out = np.empty((len(obs), *self.space.shape), np.float32)
        self.write(obs, out)
        return out

    def write(self, obs: Any, out: np.ndarray) -> None:
        out[...] = 0
        columns = obs.reshape(len(obs), -1) + self._shift
        out[np.arange(len(obs))[:, None], columns] = 1

    def decode(self, row: np.ndarray) -> Any:
        ends = np.cumsum(self._counts)
        values = [int(np.argmax(row[end - n : end])) for n, end in zip(self._counts, ends, strict=True)]
        integers = np.array(values, np.int64) + self._starts
        return integers.reshape(self.original_space.shape or ()).astype(self.original_space.dtype)


@get_encoder.register(spaces.Discrete)
def _discrete_encoder(space: spaces.Discrete, path: str = "obs") -> Encoder:
    return _OneHots(space, np.array([space.n], np.int64), np.array([space.start], np.int64))


@get_encoder.register(spaces.MultiDiscrete)
def _multi_discrete_encoder(space: spaces.MultiDiscrete, path: str = "obs") -> Encoder:
    return _OneHots(space, space.nvec.astype(np.int64), space.start.astype(np.int64))


class _Parts(Encoder):
    """The codes of the parts of a Dict or Tuple side by side."""

    def __init__(self, original_space: spaces.Dict | spaces.Tuple, parts: dict[Any, spaces.Space], path: str) -> None:
        if not parts:
            raise UnsupportedSpaceError(f"The observation space at {path} is {original_space}, which has no parts.")
        self._encoders = {key: as_row_encoder(get_encoder(part, f"{path}[{key!r}]")) for key, part in parts.items()}
        rows = [encoder.space for encoder in self._encoders.values()]
        ends = np.cumsum([row.shape[0] for row in rows]).tolist()
        self._columns = [slice(end - row.shape[0], end) for row, end in zip(rows, ends, strict=True)]
        super().__init__(original_space, joined(rows))

    def encode(self, obs: Any) -> np.ndarray:
        out = np.empty((len(next(tree_leaves(obs))), *self.space.shape), np.float32)
        self.write(obs, out)
        return out

    def write(self, obs: Any, out: np.ndarray) -> None:
        for (key, encoder), columns in zip(self._encoders.items(), self._columns, strict=True):
            encoder.write(obs[key], out[:, columns])

    def decode(self, row: np.ndarray) -> Any:
        parts = zip(self._encoders.items(), self._columns, strict=True)
        values = {key: encoder.decode(row[columns]) for (key, encoder), columns in parts}
        if isinstance(self.original_space, spaces.Dict):
            return {key: values[key] for key in self.original_space.spaces}
        return tuple(values.values())


class _ImageRow(Encoder):
    """An encoder's images as rows: flattened, bytes scaled to [0, 1]."""

    def __init__(self, image: Encoder) -> None:
        self._image = image
        is_bytes = image.space.dtype == np.uint8
        self._scale = np.float32(1 / max(1, image.space.high.max(initial=1)) if is_bytes else 1)
        low, high = (
            bound.reshape((*bound.shape, 1)[:3]) * self._scale for bound in (image.space.low, image.space.high)
        )
        super().__init__(image.original_space, one_part("image", low.shape, low, high))

    def encode(self, obs: Any) -> np.ndarray:
        out = np.empty((len(obs), *self.space.shape), np.float32)
        self.write(obs, out)
        return out

    def write(self, obs: Any, out: np.ndarray) -> None:
        np.multiply(self._image.encode(obs).reshape(out.shape), self._scale, out=out)

    def decode(self, row: np.ndarray) -> Any:
        pixels = row.reshape(self._image.space.shape) / self._scale
        dtype = self._image.space.dtype
        return self._image.decode((np.rint(pixels) if dtype == np.uint8 else pixels).astype(dtype))


def as_row_encoder(encoder: Encoder) -> Encoder:
    """The encoder itself where its codes are rows, else one of its images as rows `[D]` of an `EncodedSpace`."""
    return encoder if len(encoder.space.shape) == 1 else _ImageRow(encoder)


@get_encoder.register(spaces.Dict)
def _dict_encoder(space: spaces.Dict, path: str = "obs") -> Encoder:
    return _Parts(space, {key: space.spaces[key] for key in sorted(space.spaces)}, path)


@get_encoder.register(spaces.Tuple)
def _tuple_encoder(space: spaces.Tuple, path: str = "obs") -> Encoder:
    return _Parts(space, dict(enumerate(space.spaces)), path)
