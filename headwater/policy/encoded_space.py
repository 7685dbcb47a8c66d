"""EncodedSpace: the space of one encoded row that holds more than a plain vector or image.

Encoders write whatever a policy sees of a step into one array row, so that every sampler, batch and network handles one
array; the parts say which columns mean what. In the row's order: the features of the observation, the action and reward
before, the action mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from headwater.envs.space_json import register_reader, space_from_json, space_to_json

Kind = Literal["vector", "image", "prev_action", "prev_reward", "action_mask"]
FEATURES: tuple[Kind, ...] = ("vector", "image")


@dataclass(frozen=True)
class ObsPart:
    """The columns `start : start + size` of an encoded row.

    Attributes:
        kind: "vector" (numbers, one-hots) and "image" are the env's observation; "prev_action" and "prev_reward" what
            happened before it; "action_mask" what may be done next, 1 for allowed.
        start: The first column.
        shape: `[D]`, or of an image `[height, width, channels]`.
    """

    kind: Kind
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Columns."""
        return math.prod(self.shape)

    @property
    def columns(self) -> slice:
        """Where it stands in a row."""
        return slice(self.start, self.start + self.size)


class EncodedSpace(spaces.Box):
    """A float32 Box of rank 1 that knows its parts.

    Args:
        low: [D] least values.
        high: [D] greatest values.
        parts: In the row's order, without gaps.

    Raises:
        ValueError: the parts do not cover the row.

    Example:
        >>> parts = [ObsPart("vector", 0, (2,)), ObsPart("action_mask", 2, (3,))]
        >>> space = EncodedSpace(np.zeros(5), np.ones(5), parts)
        >>> space.shape, space.num_features, space.mask.columns
        ((5,), 2, slice(2, 5, None))
    """

    def __init__(self, low: Any, high: Any, parts: Sequence[ObsPart]) -> None:
        super().__init__(np.asarray(low, np.float32), np.asarray(high, np.float32), dtype=np.float32)
        self.parts = tuple(parts)
        starts = np.cumsum([0, *(part.size for part in parts)]).tolist()
        if [*(part.start for part in parts), self.shape[0]] != starts:
            raise ValueError(f"the parts {self.parts} do not cover a row of {self.shape[0]} columns one by one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedSpace) and self.parts == other.parts and super().__eq__(other)

    def __repr__(self) -> str:
        parts = ", ".join(f"{part.kind} {list(part.shape)}" for part in self.parts)
        return f"EncodedSpace({self.shape[0]}: {parts})"

    @property
    def num_features(self) -> int:
        """Leading columns that are the env's observation, which filters normalise; the others are left as they are."""
        return sum(part.size for part in self.parts if part.kind in FEATURES)

    @property
    def mask(self) -> ObsPart | None:
        """The action mask; None without."""
        return next((part for part in self.parts if part.kind == "action_mask"), None)


def parts_of(space: spaces.Box) -> tuple[ObsPart, ...]:
    """The parts of any encoded space; a plain Box is one vector, or (of rank 2 or 3) one image."""
    if isinstance(space, EncodedSpace):
        return space.parts
    shape = tuple(space.shape)
    return (ObsPart("vector", 0, shape),) if len(shape) == 1 else (ObsPart("image", 0, (*shape, 1)[:3]),)


def mask_of(space: spaces.Box) -> ObsPart | None:
    """The action mask in rows of an encoded space; None without."""
    return space.mask if isinstance(space, EncodedSpace) else None


def num_features(space: spaces.Box) -> int | None:
    """How many leading columns of a row filters normalise; None: all, of whatever shape."""
    return space.num_features if isinstance(space, EncodedSpace) else None


def one_part(kind: Kind, shape: tuple[int, ...], low: Any = -np.inf, high: Any = np.inf) -> EncodedSpace:
    """The space of a row of one part; the bounds are numbers, or of `shape`."""
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape).ravel() for bound in (low, high))
    return EncodedSpace(low, high, [ObsPart(kind, 0, shape)])


def joined(rows: Sequence[spaces.Box]) -> spaces.Box:
    """The space of rows side by side. Adjacent vectors become one; one vector and nothing else is a plain Box.

    Example:
        >>> plain = spaces.Box(-1, 1, (2,))
        >>> joined([plain, plain, one_part("image", (2, 2, 1), 0, 1)])
        EncodedSpace(8: vector [4], image [2, 2, 1])
        >>> joined([plain, plain])
        Box(-1.0, 1.0, (4,), float32)
    """
    parts: list[ObsPart] = []
    start = 0
    for row in rows:
        for part in parts_of(row):
            if part.kind == "vector" and parts and parts[-1].kind == "vector":
                parts[-1] = replace(parts[-1], shape=(parts[-1].size + part.size,))
            else:
                parts.append(replace(part, start=start))
            start += part.size
    low, high = (np.concatenate([getattr(row, bound) for row in rows]) for bound in ("low", "high"))
    if [part.kind for part in parts] == ["vector"]:
        return spaces.Box(low, high, dtype=np.float32)
    return EncodedSpace(low, high, parts)


@space_to_json.register
def _(space: EncodedSpace) -> dict[str, Any]:
    bounds = [
        spaces.Box(space.low[part.columns].reshape(part.shape), space.high[part.columns].reshape(part.shape))
        for part in space.parts
    ]
    parts = zip(space.parts, bounds, strict=True)
    return {"type": "EncodedSpace", "parts": [{"kind": part.kind, "space": space_to_json(box)} for part, box in parts]}


def _from_json(description: Mapping[str, Any]) -> EncodedSpace:
    parts: list[ObsPart] = []
    boxes = [space_from_json(part["space"]) for part in description["parts"]]
    for part, box in zip(description["parts"], boxes, strict=True):
        if part["kind"] not in get_args(Kind) or not isinstance(box, spaces.Box):
            raise ValueError(f"{part['kind']} in {box} is no part of a row")
        parts.append(ObsPart(part["kind"], parts[-1].columns.stop if parts else 0, tuple(box.shape)))
    low, high = (np.concatenate([getattr(box, bound).ravel() for box in boxes]) for bound in ("low", "high"))
    return EncodedSpace(low, high, parts)


register_reader("EncodedSpace", _from_json)
