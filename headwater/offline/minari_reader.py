"""MinariReader: rows of a Minari dataset, encoded as a policy sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.data.sample_batch import Batch, SampleBatch
from headwater.envs.nested import as_row, take_rows, tree_leaves
from headwater.errors import HeadwaterError
from headwater.offline.context import OfflineError
from headwater.offline.minari_files import data_directory, open_storage
from headwater.offline.reader import Unit, UnitReader, share
from headwater.sampling.filters import Filter
from headwater.sampling.policy_encoder import PolicyEncoder
from headwater.sampling.preprocessors import ActionAdapter, Encoder, get_action_adapter, get_encoder


class MinariReader(UnitReader):
    """Reads episodes of a Minari dataset: obs, new_obs, actions, rewards, terminateds, truncateds, eps_id and t.

    Observations are encoded, and actions are those which the policy would have sampled for what the dataset holds. An
    episode that just stops is one that was truncated.

    Args:
        target: the dataset's id, or the path of its directory.
        encoder: of observations; None: the default one of the dataset's space.
        action_adapter: of actions; None: likewise.
        obs_filter: sees the encoded observations, counts them and gives what the policy sees; None: none.
        batch_rows: rows of a batch; None: each episode is a batch.
        shuffle_seed: of the order of the episodes; None: as they are stored.
        shard, num_shards: read one of so many parts; each episode is in one of them.
        epochs: how often all is read; None: for ever.

    Raises:
        OfflineError: there is no such dataset, it is damaged, or its spaces are not those of the encoder and adapter.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        encoder: Encoder | None = None,
        action_adapter: ActionAdapter | None = None,
        obs_filter: Filter | None = None,
        batch_rows: int | None = 1024,
        shuffle_seed: int | None = None,
        shard: int = 0,
        num_shards: int = 1,
        epochs: int | None = None,
    ) -> None:
        self.path = data_directory(target)
        known = None if encoder is None else encoder.original_space
        self._storage = open_storage(self.path, known, None if action_adapter is None else action_adapter.space)
        self._encoder = encoder or get_encoder(self._storage.observation_space)
        self._adapter = action_adapter or get_action_adapter(self._storage.action_space)
        self._filter = obs_filter
        self._check_space("observation", self._storage.observation_space, self._encoder.original_space)
        self._check_space("action", self._storage.action_space, self._adapter.space)
        total = int(self._try(lambda: self._storage.total_episodes))
        episodes = self._try(lambda: list(self._storage.get_episode_metadata(range(total))))
        units = self._try(lambda: [Unit(i, 0, int(about["total_steps"])) for i, about in enumerate(episodes)])
        mine = share(units, shard, num_shards)
        if not mine:
            raise OfflineError(
                f"The Minari dataset at {self.path} has {total} episodes, none with steps for shard {shard} of "
                f"{num_shards}. Record more, or take fewer workers."
            )
        super().__init__(mine, batch_rows, shuffle_seed, epochs)

    def _load(self, unit: Unit) -> Any:
        return self._try(lambda: self._rows(unit.source).slice(unit.start, unit.end))

    def _cut(self, loaded: Any, start: int, end: int) -> Batch:
        return loaded.slice(start, end)

    def _rows(self, index: int) -> SampleBatch:
        [episode] = self._storage.get_episodes([index])
        rewards = np.asarray(episode["rewards"], np.float32).reshape(-1)
        steps = len(rewards)
        raw = _as_batch(self._encoder.original_space, episode["observations"], steps + 1, "observations")
        env_actions = _as_batch(self._adapter.space, episode["actions"], steps, "actions")
        sampled = self._adapter.from_env(env_actions)
        obs = self._seen(raw, sampled, rewards)
        terminateds = np.array(episode["terminations"], bool).reshape(-1)
        truncateds = np.array(episode["truncations"], bool).reshape(-1)
        if terminateds.shape != rewards.shape or truncateds.shape != rewards.shape:
            raise ValueError("its rewards, terminations and truncations are not equally many")
        truncateds[-1] |= not terminateds[-1]
        return SampleBatch(
            {
                SampleBatch.OBS: obs[:-1],
                SampleBatch.NEW_OBS: obs[1:],
                SampleBatch.ACTIONS: self._adapter.flatten(sampled),
                SampleBatch.REWARDS: rewards,
                SampleBatch.TERMINATEDS: terminateds,
                SampleBatch.TRUNCATEDS: truncateds,
                SampleBatch.EPS_ID: np.full(steps, index, np.int64),
                SampleBatch.T: np.arange(steps),
            }
        )

    def _seen(self, raw: Any, sampled: Any, rewards: NDArray[np.float32]) -> NDArray[Any]:
        """[T + 1, ...] what the policy sees at each step and at the end."""
        if isinstance(self._encoder, PolicyEncoder):
            before = np.zeros((len(rewards) + 1, self._encoder.before_size), np.float32)
            before[1:] = self._encoder.before(len(rewards), sampled, rewards)
            code: NDArray[Any] = self._encoder.encode(raw, before)
        else:
            code = self._encoder.encode(raw)
        if self._filter is None or self._filter.is_identity:
            return code
        self._filter(code[:-1], update=True)
        return self._filter(code, update=False)

    def _check_space(self, kind: str, stored: spaces.Space, own: spaces.Space) -> None:
        if _shapes(stored) != _shapes(own):
            raise OfflineError(
                f"The Minari dataset at {self.path} has the {kind} space {stored}, but the policy's is {own}. Give a "
                "dataset of the same env."
            )

    def _try(self, function: Any) -> Any:
        try:
            return function()
        except HeadwaterError:
            raise
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError,
                RuntimeError) as error:  # fmt: skip
            raise OfflineError(
                f"The Minari dataset at {self.path} is damaged: {type(error).__name__}: {error}. Fetch or record it "
                "again."
            ) from error


def _as_batch(space: spaces.Space, values: Any, length: int, what: str) -> Any:
    """Stored values as a nested batch `[length, ...]` of the space's dtypes."""
    batch = take_rows(_as_arrays(space, values), slice(0, length))
    expected = list(tree_leaves(_leaf_shapes(space)))
    came = [leaf.shape for leaf in tree_leaves(batch)]
    if came != [(length, *shape.dims) for shape in expected]:
        raise ValueError(f"its {what} have the shapes {came} for {length} of {space}")
    return batch


def _as_arrays(space: spaces.Space, values: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _as_arrays(child, values[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_arrays(child, part) for child, part in zip(space.spaces, values, strict=True))
    return as_row(space, values)


class _Shape:
    """A shape as a leaf: a tuple would be a node."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        self.dims = dims


def _leaf_shapes(space: spaces.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _leaf_shapes(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_leaf_shapes(child) for child in space.spaces)
    return _Shape(tuple(space.shape or ()))


def _shapes(space: spaces.Space) -> Any:
    """What two spaces must have in common for rows of one to be rows of the other; bounds may differ."""
    if isinstance(space, spaces.Dict):
        return {key: _shapes(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_shapes(child) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return ("Discrete", int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return ("MultiDiscrete", space.nvec.tolist(), space.start.tolist())
    return (type(space).__name__ if isinstance(space, spaces.MultiBinary) else "Box", space.shape)
