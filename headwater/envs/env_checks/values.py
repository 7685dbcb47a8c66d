"""What is asked of spaces, observations, rewards and flags, whichever kind of env gives them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.action_masks import ACTION_MASK, MaskMismatch, mask_leaves, mask_sizes
from headwater.envs.env_checks.findings import Findings, shown
from headwater.envs.nested import make_gather, make_split
from headwater.envs.space_check import LARGEST, Mismatch, check_value
from headwater.errors import UnsupportedSpaceError

LARGE = 100.0  # numbers beyond this are far from what networks learn well from

_OBS_REMEDIES = {
    "obs-structure": "Give the keys and parts that the observation space has, or change the space.",
    "obs-shape": "Return that shape, or change the space.",
    "obs-dtype": "Convert the observation, as by np.asarray(obs, dtype=space.dtype), or change the space.",
    "obs-finite": "Find where the number comes from: a division by zero, a logarithm, an overflow.",
    "obs-bounds": "Widen the bounds of the space, or clip the observation to them.",
}


def check_observation_space(findings: Findings, space: Any, who: str = "") -> bool:
    """Check an observation space; return whether it is a space at all."""
    if not _is_space(findings, space, "observation", who):
        return False
    try:
        make_gather(space, "obs")
    except UnsupportedSpaceError as error:
        findings.error("observation-space-kind", "a space of arrays", f"{space}", str(error).rpartition(". ")[2], who)
    for path, leaf in _boxes(space):
        _check_image(findings, path, leaf, who)
    return True


def check_action_space(findings: Findings, space: Any, who: str = "") -> bool:
    """Check an action space; return whether it is a space at all."""
    if not _is_space(findings, space, "action", who):
        return False
    try:
        make_split(space, "action")
    except UnsupportedSpaceError as error:
        findings.error("action-space-kind", "a space of arrays", f"{space}", str(error).rpartition(". ")[2], who)
    for path, leaf in _boxes(space, "action"):
        if not leaf.is_bounded():
            findings.warning(
                "action-unbounded", f"finite bounds of {path}", f"{leaf}",
                "Give the space low and high, from which actions are normalised and to which they are clipped.", who,
            )  # fmt: skip
    return True


def check_mask_space(findings: Findings, obs_space: Any, action_space: Any, who: str = "") -> None:
    """Check that the action mask among the observations, where there is one, fits the actions."""
    if not isinstance(obs_space, spaces.Dict) or ACTION_MASK not in obs_space.spaces:
        return
    try:
        mask_leaves(action_space, mask_sizes(obs_space[ACTION_MASK]))
    except MaskMismatch as mismatch:
        findings.error(
            "mask-shape", "an entry of the mask for every choice of the action space", str(mismatch),
            "Give observation_space['action_mask'] the sizes of the action space's choices.", who,
        )  # fmt: skip


def check_observation(findings: Findings, space: Any, obs: Any, who: str = "") -> bool:
    """Check an observation against its space; return whether it lies in it."""
    try:
        check_value(space, obs)
        return True
    except Mismatch as mismatch:
        kind, came = _kind(space, obs), str(mismatch)
    except Exception:  # values so odd that they cannot be compared
        kind, came = "obs-structure", shown(obs)
    expected = str(space)
    expected = expected if len(expected) <= 160 else f"{expected[:157]}..."
    findings.error(kind, f"an observation in {expected}", came, _OBS_REMEDIES[kind], who)
    return False


def check_reward(findings: Findings, reward: Any, who: str = "") -> None:
    """Check that a reward is one finite number."""
    try:
        array = np.asarray(reward)
    except Exception:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.size != 1:
        findings.error("reward-type", "one number as the reward", shown(reward), "Return float(reward).", who)
    elif not abs(float(array.reshape(-1)[0])) <= LARGEST:
        findings.error(
            "reward-finite", "a finite reward", shown(reward),
            "Find where the number comes from: a division by zero, a logarithm, an overflow.", who,
        )  # fmt: skip
    elif array.ndim:
        findings.warning("reward-type", "one number as the reward", shown(reward), "Return float(reward).", who)


def check_flag(findings: Findings, name: str, flag: Any, who: str = "") -> bool:
    """Check that a flag is a bool of Python or NumPy, and return its truth (False where it has none)."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag)
    try:
        array = np.asarray(flag)
    except Exception:
        array = np.asarray(None)
    readable = array.size == 1 and array.dtype.kind in "biu"
    severity: Any = "warning" if readable else "error"
    findings.add(severity, "flag-type", f"{name} as True or False", shown(flag), f"Return bool({name}).", who)
    return bool(array.reshape(-1)[0]) if readable else False


class Ranges:
    """How large the numbers in observations are, and whether inputs of a network would suffer from it.

    Example:
        >>> ranges, findings = Ranges(), Findings()
        >>> ranges.see("", spaces.Box(-np.inf, np.inf, (1,)), np.array([5000.0]))
        >>> ranges.report(findings)
        >>> findings.listed()[0].check
        'obs-scale'
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}

    def see(self, who: str, space: Any, obs: Any) -> None:
        """Take note of an observation that lies in its space."""
        for path, leaf in _boxes(space):
            if len(leaf.shape) > 1 or leaf.dtype == np.uint8 or not leaf.shape or not leaf.shape[0]:
                continue
            value = np.asarray(_at(space, obs, path), np.float64)
            low, high = self._seen.get((who, path), (np.inf, -np.inf))
            self._seen[who, path] = min(low, float(value.min())), max(high, float(value.max()))

    def report(self, findings: Findings) -> None:
        """Add a warning for each vector with numbers beyond `LARGE`."""
        findings.where = ""
        for (who, path), (low, high) in self._seen.items():
            if max(-low, high) > LARGE:
                findings.warning(
                    "obs-scale", f"numbers of about -1 to 1 in {path}", f"numbers from {low:.4g} to {high:.4g}",
                    "Set observation_filter='MeanStdFilter', or scale the observation in the env.", who,
                )  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal, NaN to NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    try:
        a, b = np.asarray(one), np.asarray(other)
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))
    except Exception:
        return True  # what cannot be compared is no proof of a difference


def copied(value: Any) -> Any:
    """A deep copy, or the value itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _is_space(findings: Findings, space: Any, kind: str, who: str) -> bool:
    if isinstance(space, spaces.Space):
        return True
    remedy = f"Set self.{kind}_space in the env's constructor."
    if space is not None and type(space).__module__.partition(".")[0] == "gym":
        remedy = "It is a space of the old gym package: import spaces from gymnasium."
    came = "none" if space is None else shown(space)
    findings.error(f"{kind}-space-missing", f"a gymnasium.spaces.Space as {kind}_space", came, remedy, who)
    return False


def _check_image(findings: Findings, path: str, leaf: spaces.Box, who: str) -> None:
    rank = len(leaf.shape)
    if rank in (2, 3) and leaf.dtype == np.uint8:
        if (leaf.low != 0).any() or (leaf.high != 255).any():
            findings.warning(
                "image-range", f"bounds 0 to 255 of the image {path}", f"{leaf}",
                "Networks divide images of uint8 by 255: spread the values over 0 to 255, or use another dtype.", who,
            )  # fmt: skip
    elif rank == 3 and max(float(np.abs(leaf.low).max()), float(np.abs(leaf.high).max())) > LARGE:
        findings.warning(
            "image-dtype", f"uint8, or numbers of about -1 to 1, in the image {path}", f"{leaf}",
            "Give images as uint8 from 0 to 255, which networks scale, or scale them in the env.", who,
        )  # fmt: skip


def _boxes(space: Any, path: str = "obs") -> Iterator[tuple[str, spaces.Box]]:
    if isinstance(space, spaces.Box):
        yield path, space
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        for key, child in _items(space):
            if not (path == "obs" and key == ACTION_MASK):
                yield from _boxes(child, f"{path}[{key!r}]")


def _at(space: Any, value: Any, wanted: str, path: str = "obs") -> Any:
    """The part of a value that `_boxes` calls `wanted`."""
    if path == wanted:
        return value
    for key, child in _items(space):
        here = f"{path}[{key!r}]"
        if wanted == here or wanted.startswith(f"{here}["):
            return _at(child, value[key], wanted, here)
    raise KeyError(wanted)


def _items(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, spaces.Space]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def _kind(space: Any, value: Any) -> str:
    """What is wrong with a value that is not in its space, as the name of a check."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        wanted = dict if isinstance(space, spaces.Dict) else (list, tuple)
        keys = [key for key, _ in _items(space)]
        if not isinstance(value, wanted) or len(value) != len(keys):
            return "obs-structure"
        if isinstance(value, dict) and set(value) != set(keys):
            return "obs-structure"
        for key, child in _items(space):
            try:
                check_value(child, value[key])
            except Mismatch:
                return _kind(child, value[key])
        return "obs-structure"
    try:
        array = np.asarray(value)
    except ValueError:
        return "obs-shape"
    if array.dtype.kind not in "biuf":
        return "obs-dtype" if array.shape == space.shape and array.ndim else "obs-structure"
    if space.shape is None or array.shape != space.shape:
        return "obs-shape"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "obs-finite"
    if not np.can_cast(array.dtype, space.dtype, "same_kind") and isinstance(value, np.ndarray | np.generic):
        return "obs-dtype"
    return "obs-bounds"
