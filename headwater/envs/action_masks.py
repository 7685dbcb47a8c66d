"""Action masks: which choices an env allows, as one flat row with an entry for every choice of its action space.

The row runs over the discrete leaves of the action space in their order (Dict by sorted key, Tuple by place): n entries
for Discrete(n), the sum of nvec for MultiDiscrete, two for each place of MultiBinary. Envs give masks in several forms:

    an array             of all choices of the action space, or of a part of it; anything but 0 is allowed
    a dict or a tuple    nested as the action space is. What has nothing to forbid may be left out: a Box, which has no
                         choices, and a leaf all of whose choices are always allowed
    a tuple of arrays    for MultiDiscrete and MultiBinary: one for each place

In infos None stands for what is left out, as in the masks of Gymnasium's `Space.sample`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.nested import tree_map

ACTION_MASK = "action_mask"  # the key, in observations and infos


class MaskMismatch(Exception):
    """A mask has not the form of its action space; the message says where and how."""


class Choice(NamedTuple):
    """One draw of a discrete leaf.

    Attributes:
        path: how messages call it.
        size: how many there are to choose from.
    """

    path: str
    size: int


class MaskLeaf(NamedTuple):
    """An array of a mask as the env gives it, and the entries of the flat row that it is for."""

    keys: tuple[Any, ...]
    columns: slice

    def of(self, mask: Any) -> Any:
        """The array."""
        for key in self.keys:
            mask = mask[key]
        return mask


def choices_of(space: spaces.Space, path: str = "action") -> list[Choice]:
    """The choices of an action, in the order of the flat row; none for a Box.

    Example:
        >>> choices_of(spaces.Dict({"move": spaces.MultiDiscrete([3, 2]), "force": spaces.Box(-1, 1)}))
        [Choice(path="action['move'][0]", size=3), Choice(path="action['move'][1]", size=2)]
    """
    if isinstance(space, spaces.Discrete):
        return [Choice(path, int(space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        return [Choice(f"{path}[{_index(place)}]", int(n)) for place, n in np.ndenumerate(space.nvec)]
    if isinstance(space, spaces.MultiBinary):
        return [Choice(f"{path}[{_index(place)}]", 2) for place in np.ndindex(space.shape)]
    return [choice for key, child in _children(space) for choice in choices_of(child, f"{path}[{key!r}]")]


def num_choices(space: spaces.Space) -> int:
    """Entries of the flat row."""
    return sum(choice.size for choice in choices_of(space))


def mask_leaves(space: spaces.Space, sizes: Any, path: str = "action") -> list[MaskLeaf]:
    """Where the arrays of a mask belong in the flat row.

    Args:
        space: of the actions.
        sizes: nested as the mask, with the size of each array at the leaves.

    Raises:
        MaskMismatch: an array has another size than its part of the action, or the nesting is another.

    Example:
        >>> mask_leaves(spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), (3, 2))
        [MaskLeaf(keys=(0,), columns=slice(0, 3, None)), MaskLeaf(keys=(1,), columns=slice(3, 5, None))]
    """
    return list(_leaves(space, sizes, path, (), 0))


def flat_mask(space: spaces.Space, mask: Any) -> NDArray[np.int8]:
    """One mask, in any of its forms, as the flat row of 0 and 1.

    Raises:
        MaskMismatch: see `mask_leaves`.

    Example:
        >>> flat_mask(spaces.MultiDiscrete([2, 3]), ([True, False], [0, 1, 1])).tolist()
        [1, 0, 0, 1, 1]
    """
    row = np.ones(num_choices(space), np.int8)
    for leaf in mask_leaves(space, tree_map(lambda array: None if array is None else np.size(array), mask)):
        row[leaf.columns] = np.ravel(leaf.of(mask)) != 0
    return row


def mask_sizes(space: spaces.Space) -> Any:
    """The sizes of the arrays of a mask, nested as its space.

    Raises:
        MaskMismatch: values of the space cannot be a mask.
    """
    if isinstance(space, spaces.Dict):
        return {key: mask_sizes(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(mask_sizes(child) for child in space.spaces)
    is_bits = isinstance(space, spaces.MultiDiscrete) and bool((space.nvec == 2).all() and not space.start.any())
    if is_bits or isinstance(space, spaces.Box | spaces.MultiBinary):
        return math.prod(space.shape or ())
    raise MaskMismatch(f"{space} holds no masks: use MultiBinary, a Box, MultiDiscrete of twos, or nest these")


def _leaves(space: spaces.Space, sizes: Any, path: str, keys: tuple[Any, ...], start: int) -> Iterator[MaskLeaf]:
    width = num_choices(space)
    if sizes is None:
        return
    if not isinstance(sizes, dict | tuple):
        if sizes != width or not width:
            raise MaskMismatch(f"{path} has {width} choices, but its mask has {sizes} entries")
        yield MaskLeaf(keys, slice(start, start + width))
        return
    for key, child in _masked_children(space, sizes, path):
        size = num_choices(child)
        if key in (sizes if isinstance(sizes, dict) else range(len(sizes))):
            yield from _leaves(child, sizes[key], f"{path}[{key!r}]", (*keys, key), start)
        start += size


def _masked_children(space: spaces.Space, sizes: Any, path: str) -> list[tuple[Any, spaces.Space]]:
    """The parts of a space, by the keys under which a mask of these sizes would have them."""
    children = _children(space)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        children = list(enumerate(spaces.Discrete(choice.size) for choice in choices_of(space)))
    elif isinstance(space, spaces.Tuple) and len(sizes) < len(children):
        children = list(enumerate(child for _, child in children if num_choices(child)))
    is_alike = isinstance(sizes, dict) == isinstance(space, spaces.Dict)
    extra = sizes.keys() - dict(children).keys() if isinstance(sizes, dict) else len(sizes) != len(children)
    if not children or not is_alike or extra:
        shown = f"the keys {sorted(sizes, key=str)}" if isinstance(sizes, dict) else f"{len(sizes)} parts"
        raise MaskMismatch(f"{path} is a {space}, but its mask has {shown}")
    return children


def _children(space: spaces.Space) -> list[tuple[Any, spaces.Space]]:
    if isinstance(space, spaces.Dict):
        return [(key, space.spaces[key]) for key in sorted(space.spaces)]
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def _index(place: tuple[int, ...]) -> str:
    return ", ".join(map(str, place))
