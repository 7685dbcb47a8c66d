"""How Gymnasium's vector envs differ: what each says of its autoreset, its seeds, its masked resets, its final rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from headwater.envs.nested import Gather, as_row, tree_map
from headwater.errors import EnvError


def autoreset_mode(env: gymnasium.vector.VectorEnv, env_id: str) -> AutoresetMode:
    """Return the mode that the env declares in its metadata.

    Raises:
        EnvError: it declares none, and a guess could train on rows that are no transitions.
    """
    declared = env.metadata.get("autoreset_mode")
    try:
        return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError:
        raise EnvError(
            f"Env {env_id!r}: {type(env.unwrapped).__name__} has metadata['autoreset_mode'] = {declared!r}, expected a "
            "gymnasium.vector.AutoresetMode. Set it to what the env does after an episode's end: NEXT_STEP, SAME_STEP "
            "or DISABLED."
        ) from None


def takes_reset_mask(env: gymnasium.vector.VectorEnv, mode: AutoresetMode) -> bool:
    """Whether `reset(options={"reset_mask": ...})` resets single sub-envs. Others ignore the option and reset all.

    An env that does can say so by an attribute `takes_reset_mask`.
    """
    base = env.unwrapped
    if getattr(base, "takes_reset_mask", False):
        return True
    known = isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) or _package(base) == "ale_py" or _is_envpool(base)
    return known or mode is AutoresetMode.DISABLED


def masked_reset_gives_rows(env: gymnasium.vector.VectorEnv) -> bool:
    """Whether a masked reset returns the rows of the mask alone, as EnvPool's does, rather than all N."""
    return _is_envpool(env.unwrapped)


def seed_argument(env: gymnasium.vector.VectorEnv, seeds: Sequence[int] | None) -> Any:
    """Return what `reset` takes as its seed: one for each sub-env where it can, else the first for the whole.

    An env that takes one for each can say so by an attribute `takes_seeds`.
    """
    base = env.unwrapped
    if seeds is not None and getattr(base, "takes_seeds", False):
        return list(seeds)
    if seeds is None or _is_envpool(base):  # EnvPool takes its seed when it is made
        return None
    if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)):
        return list(seeds)
    return np.array(seeds) if _package(base) == "ale_py" else seeds[0]


def with_final_obs(
    space: gymnasium.Space, gather: Gather, obs: Any, ended: np.ndarray, infos: dict[str, Any], env_id: str
) -> Any:
    """Return `obs` `[N, ...]` with the final observations of the sub-envs `ended` (indices), which `infos` holds.

    Raises:
        EnvError: they are not there.
    """
    final = infos.get("final_obs", infos.get("final_observation"))
    if isinstance(final, np.ndarray) and final.dtype == object:
        rows: list[Any] = [final[index] for index in ended]
    elif final is not None:
        rows = [tree_map(lambda leaf, index=index: leaf[index], final) for index in ended]
    else:
        rows = [None]
    if any(row is None for row in rows):
        raise EnvError(
            f"Env {env_id!r}: an episode ended in sub-env {int(ended[0])} and was reset in the same step, but "
            "infos['final_obs'] does not hold its final observation, without which the value after the end cannot be "
            "known: put it there, or use another autoreset mode."
        )
    batch = gather([as_row(space, row) for row in rows])

    def put_back(leaf: np.ndarray, finals: np.ndarray) -> np.ndarray:
        leaf = leaf.copy()
        leaf[ended] = finals
        return leaf

    return tree_map(put_back, obs, batch)


def _package(env: Any) -> str:
    return type(env).__module__.partition(".")[0]


def _is_envpool(env: Any) -> bool:
    return any(cls.__module__.startswith("envpool.") for cls in type(env).__mro__)
