"""VectorEnv: N envs stepped as one, arrays in and arrays out. The first station of the data's way.

Whatever an env is (N copies in this process, a native vector env in one of Gymnasium's three autoreset modes, envs in
processes of their own), the sampler sees the same rows through this contract: the final observation of each episode, an
explicit reset after it, and a mark on every row that is not a transition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headwater.errors import EnvError

if TYPE_CHECKING:
    from gymnasium import spaces

    from headwater.envs.env_context import EnvContext


class StepResult(NamedTuple):
    """What one step of N envs gives; `obs` nests as the observation space does, with arrays `[N, ...]` at its leaves.

    The arrays are the caller's to read until the next call into the env: copy what is kept for longer.

    Attributes:
        obs: observations after the step. Where an episode ended: its *final* observation, in every autoreset mode.
        rewards: float32 `[N]`.
        terminateds: bool `[N]`, the episode truly ended.
        truncateds: bool `[N]`, the episode was cut.
        valid: bool `[N]`, False where the row is not a transition: the env was only being reset, and `obs` holds the
            first observation of the new episode. None means that all are.
        infos: a list of N dicts, a dict of arrays as Gymnasium's vector envs give it, or None where all are empty.
            `info_of_row` reads both.
        dropped: bool `[N]`, True where the running episode was lost to a fault of the env (then `valid` is False too).
            None means that none was.
    """

    obs: Any
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    valid: np.ndarray | None
    infos: list[dict[str, Any]] | dict[str, Any] | None
    dropped: np.ndarray | None


class VectorEnv(ABC):
    """N envs stepped together. Subclass it for an env that is a batch by nature; adapters make the rest into one.

    The loop of its user is: `obs = reset(seeds)`; then for ever `result = step(actions)`, and where episodes ended (or
    are to be cut) `obs = reset_done(mask)`, else `obs = result.obs`. No env is reset before `reset`, each is reset once
    for an episode, and none is stepped after its end.

    Attributes:
        num_envs: N.
        observation_space: of a single env.
        action_space: of a single env.
        env_id: the name for messages.
        autoreset_rows: whether `step` may return rows that are not transitions even without faults.
        can_skip: whether `step` takes `active`, the mask of the envs to step.
        envs: the N single envs, unwrapped, where they are objects in this process; else empty.
        num_faults: faults of the env that were survived, see `on_env_error` and `on_bad_values`.

    Example:
        >>> from headwater.config import TrainerConfig
        >>> from headwater.envs.env_context import EnvContext
        >>> from headwater.registry import env_creator_for
        >>> env_id, creator = env_creator_for("CartPole-v1")
        >>> env = make_vector_env(creator, env_id, 4, TrainerConfig(), EnvContext(), seeds=[0, 1, 2, 3])
        >>> env.reset().shape
        (4, 4)
        >>> result = env.step(np.array([0, 1, 0, 1]))
        >>> result.rewards.tolist(), bool(result.terminateds.any())
        ([1.0, 1.0, 1.0, 1.0], False)
        >>> env.close()
    """

    num_envs: int
    observation_space: spaces.Space
    action_space: spaces.Space
    env_id: str
    autoreset_rows: bool = False
    can_skip: bool = False
    envs: Sequence[Any] = ()
    num_faults: int = 0

    @abstractmethod
    def reset(self, seeds: Sequence[int] | None = None) -> Any:
        """Start a new episode in every env and return the observations `[N, ...]`.

        Args:
            seeds: one for each env. None lets each go on with its own random generator; at the first call it means the
                seeds that the vector env was made with.
        """

    @abstractmethod
    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        """Take `actions` `[N, ...]` (nested as the action space) and return what came of them.

        Args:
            active: only where `can_skip`: bool `[N]`, the envs to step. The others may have finished; their rows are
                not `valid` and repeat their last observation.
        """

    @abstractmethod
    def reset_done(self, mask: np.ndarray) -> Any:
        """Start a new episode in the envs of `mask` (bool `[N]`) and return the observations `[N, ...]` to act on next.

        To be called between two steps where an episode ended, with all that did, and with those that the caller cuts.
        An env that resets in its next step (`autoreset_rows`) still shows the final observation here; its next row is
        then not `valid`, and that row's observation is the first of the new episode.
        """

    @property
    def can_reset_rows(self) -> bool:
        """Whether `reset_done` may name envs whose episode has not ended, as a horizon does."""
        return True

    def resets_next(self, mask: np.ndarray) -> np.ndarray | None:
        """After `reset_done(mask)`: the envs that only reset in their next step, bool `[N]`; None where none does."""
        return mask if self.autoreset_rows else None

    @property
    def has_state(self) -> bool:
        """Whether `get_state` can save the envs."""
        return False

    def get_state(self) -> dict[str, Any] | None:
        """Return all that decides the future of the envs, as JSON values and arrays; None where that cannot be had."""
        return None

    def set_state(self, state: dict[str, Any]) -> Any:
        """Go on from `state`, without a reset, and return the observations `[N, ...]` to act on next."""
        raise NotImplementedError(f"{type(self).__name__} cannot go on from a saved state: its episodes restart.")

    def start_episodes(self, seeds: Sequence[int]) -> Any:
        """Drop all running episodes and start new ones from `seeds`, as `reset` does."""
        return self.reset(seeds)

    def close(self) -> None:  # noqa: B027  (nothing to release is a fair default)
        """Release what the envs hold. May be called twice."""


def info_of_row(infos: list[dict[str, Any]] | dict[str, Any] | None, index: int) -> dict[str, Any]:
    """Return the info dict of env `index`, of its finished episode's last step where one ended there.

    Example:
        >>> infos = {"score": np.array([0, 7]), "_score": np.array([False, True])}
        >>> info_of_row(infos, 0), info_of_row(infos, 1)
        ({}, {'score': np.int64(7)})
    """
    if not infos:
        return {}
    if isinstance(infos, list):
        return infos[index]
    final = infos.get("final_info")
    if isinstance(final, dict) and _has_row(infos, "final_info", index):
        return info_of_row(final, index)
    row = {}
    for key, value in infos.items():
        if key.startswith("_") or key in ("final_info", "final_obs") or not _has_row(infos, key, index):
            continue
        row[key] = info_of_row(value, index) if isinstance(value, dict) else value[index]
    return row


def _has_row(infos: dict[str, Any], key: str, index: int) -> bool:
    mask = infos.get(f"_{key}")
    return True if mask is None else bool(mask[index])


def make_vector_env(
    creator: Callable[[EnvContext], Any],
    env_id: str,
    num_envs: int,
    config: Any,
    context: EnvContext,
    seeds: Sequence[int] | None = None,
    validate_env: Callable[[Any, EnvContext], None] | None = None,
    global_index_offset: int = 0,
) -> VectorEnv:
    """Make N envs and put them behind the contract, as `config.vectorization` says. Nothing is reset.

    Args:
        creator: makes one env from an EnvContext; its attribute `gym_id` says, where it is just `gymnasium.make`, of
            what id. A creator may also return a vector env of N envs itself, of Gymnasium's API or a VectorEnv.
        env_id: for messages.
        num_envs: N.
        config: a TrainerConfig; read are vectorization, horizon and what the adapters read.
        context: of the worker; its items are the env_config. Each env gets a copy with its own vector_index.
        seeds: for the first reset, one for each env.
        validate_env: called with each env made and its context; what it raises refuses the env.
        global_index_offset: vector_index of the first env.

    Raises:
        EnvError: an env could not be made, is no env, or was refused.
        ConfigError: the env has no native vector env though config.vectorization asks for it.
    """
    from headwater.envs.vectorize import Vectorizer

    made = Vectorizer(creator, env_id, num_envs, config, context, seeds, validate_env, global_index_offset).make()
    if not isinstance(made, VectorEnv):
        raise EnvError(f"Env {env_id!r} is no env of single agents: headwater.envs.adapters.make_env takes every kind.")
    return made
