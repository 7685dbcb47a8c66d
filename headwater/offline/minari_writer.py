"""MinariWriter: sampled episodes as a Minari dataset."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.data.sample_batch import Batch, SampleBatch
from headwater.envs.nested import make_gather
from headwater.errors import UnsupportedSpaceError, require
from headwater.offline.context import OfflineError
from headwater.offline.episodes import EpisodeJoiner
from headwater.offline.minari_files import dataset_directory, is_path, open_storage
from headwater.offline.tables import rows_of
from headwater.offline.writer import OutputWriter
from headwater.storage.files import sync_directory

NEEDED = (SampleBatch.OBS, SampleBatch.NEW_OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TERMINATEDS,
          SampleBatch.TRUNCATEDS, SampleBatch.EPS_ID)  # fmt: skip


class MinariWriter(OutputWriter):
    """Writes whole episodes into a Minari dataset; those that fragments cut are joined until they end.

    The dataset appears with its first episodes, complete; later ones are appended in place, so that a process killed in
    that moment may leave it damaged (`ParquetWriter` never does). A dataset of the same spaces that is there already
    is continued.

    Args:
        target: the dataset's id, or the path of its directory (absolute, or beginning with `.` or `~`).
        observation_space: of the observations written.
        action_space: of the actions written.
        decode: [B, ...] column of a batch -> observations [B, ...], nested as the space; None: as they are.
        to_env: [B, ...] column of a batch -> actions [B, ...], nested as the space; None: as they are.
        env_spec: JSON that names the env in the dataset; None: it names none.
        worker_index: of a remote worker (from 1), which has a dataset of its own, `...-worker<i>`.
        data_format: "hdf5", "arrow" or "parquet".
        episodes_per_write: whole episodes that are held back until they are written together.

    Raises:
        OfflineError: the dataset there is of other spaces; from `write`, the batch lacks a column.
    """

    def __init__(
        self,
        target: str | Path,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        decode: Callable[[NDArray[Any]], Any] | None = None,
        to_env: Callable[[NDArray[Any]], Any] | None = None,
        env_spec: str | None = None,
        worker_index: int = 0,
        data_format: str = "hdf5",
        episodes_per_write: int = 64,
    ) -> None:
        require("minari", "offline")
        if data_format == "hdf5":
            require("h5py", "offline")
        name = _own_name(str(target), worker_index)
        self.path = dataset_directory(name)
        self.dataset_id = _id_for(self.path.name) if isinstance(target, Path) or is_path(name) else name
        self.num_rows_lost = 0
        self._spaces = observation_space, action_space
        self._decode, self._to_env = decode, to_env
        self._env_spec = env_spec
        self._format = data_format
        self._episodes_per_write = episodes_per_write
        self._joiner = EpisodeJoiner()
        self._whole: list[SampleBatch] = []
        self._storage: Any = None
        if (self.path / "data" / "metadata.json").is_file():
            self._storage = self._continue()

    def write(self, batch: Batch) -> None:
        parts = rows_of(batch)
        if not parts:
            return
        if len(parts) > 1:
            raise OfflineError(
                f"A Minari dataset is of one agent, and the batch has rows of the policies {', '.join(parts)}. Set "
                "output to a directory: Parquet files hold all of them."
            )
        rows = next(iter(parts.values()))
        missing = [name for name in NEEDED if name not in rows]
        if missing:
            raise OfflineError(
                f"A Minari dataset needs the columns {', '.join(missing)}, which the batch does not have; it has "
                f"{', '.join(rows)}."
            )
        self._whole += self._joiner.add(rows)
        if len(self._whole) >= self._episodes_per_write:
            self.flush()

    def flush(self) -> None:
        """Append the episodes that came to their end; those still running wait for it."""
        if not self._whole:
            return
        episodes, self._whole = self._whole, []
        buffers = [self._buffer(episode) for episode in episodes]
        try:
            if self._storage is None:
                self._storage = self._create(buffers)
            else:
                self._append(buffers)
        except Exception as error:  # h5py says RuntimeError, ValueError or KeyError where the disk is full
            self.num_rows_lost += sum(episode.num_rows for episode in episodes)
            if isinstance(error, OSError):
                raise
            raise OSError(f"{self.path}: {type(error).__name__}: {error}") from error

    def _buffer(self, episode: SampleBatch) -> Any:
        episode_buffer = require("minari.data_collector.episode_buffer", "offline").EpisodeBuffer
        obs = np.concatenate([episode[SampleBatch.OBS], episode[SampleBatch.NEW_OBS][-1:]])
        actions = np.asarray(episode[SampleBatch.ACTIONS])
        return episode_buffer(
            observations=obs if self._decode is None else self._decode(obs),
            actions=actions if self._to_env is None else self._to_env(actions),
            rewards=np.asarray(episode[SampleBatch.REWARDS]),
            terminations=np.asarray(episode[SampleBatch.TERMINATEDS], bool),
            truncations=np.asarray(episode[SampleBatch.TRUNCATEDS], bool),
        )

    def _create(self, buffers: list[Any]) -> Any:
        minari = require("minari", "offline")
        hidden = self.path.with_name(f".{self.path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            (hidden / "data").mkdir(parents=True)
            new = require("minari.dataset.minari_storage", "offline").MinariStorage.new
            kwargs = {"jpeg_encoding": False} if "jpeg_encoding" in inspect.signature(new).parameters else {}
            storage = new(hidden / "data", *self._spaces, data_format=self._format, **kwargs)
            about = {"dataset_id": self.dataset_id, "minari_version": minari.__version__}
            if self._env_spec is not None:
                about["env_spec"] = self._env_spec
            storage.update_metadata(about)
            storage.update_episodes(buffers)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            os.rename(hidden, self.path)
            sync_directory(self.path.parent)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        return open_storage(self.path / "data", *self._spaces)

    def _append(self, buffers: list[Any]) -> None:
        try:
            self._storage.update_episodes(buffers)
        except BaseException:
            self._drop_torn()
            raise

    def _drop_torn(self) -> None:
        """Remove episodes that were begun and not finished: the metadata do not count them."""
        file = self.path / "data" / "main_data.hdf5"
        if not file.is_file():
            return  # in the other formats the next episode is written over a torn one
        h5py = require("h5py", "offline")
        known = int(self._storage.total_episodes)
        try:
            with h5py.File(file, "a") as groups:
                for name in [name for name in groups if int(name.removeprefix("episode_")) >= known]:
                    del groups[name]
        except (OSError, RuntimeError, KeyError, ValueError):
            self._storage = None  # damaged beyond what this can mend: later errors say so

    def _continue(self) -> Any:
        storage = open_storage(self.path / "data", *self._spaces)
        if (storage.observation_space, storage.action_space) != self._spaces:
            raise OfflineError(
                f"The Minari dataset at {self.path} has the spaces {storage.observation_space} and "
                f"{storage.action_space}, but this run's are {self._spaces[0]} and {self._spaces[1]}. Give output "
                "another name."
            )
        return storage


def _own_name(target: str, worker_index: int) -> str:
    if not worker_index:
        return target
    name, version = re.fullmatch(r"(.*?)(-v\d+)?", target, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{name}-worker{worker_index}{version or ''}"


def _id_for(name: str) -> str:
    """An id that Minari accepts, of a directory's name."""
    stem, version = re.fullmatch(r"(.*?)(-v\d+)?", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"headwater/{re.sub(r'[^-_0-9A-Za-z]', '-', stem) or 'dataset'}{version or '-v0'}"


def writer_for_chain(target: str, chain: Any, **kwargs: Any) -> MinariWriter:
    """The writer of a worker's episodes, in the env's own spaces.

    Where a filter or an encoder of the user's own stands between, observations are written as the policy sees them.

    Args:
        target: as of `MinariWriter`.
        chain: the worker's `acting_chain`.
        kwargs: further arguments of `MinariWriter`.
    """
    encoder, adapter = chain.encoder, chain.action_adapter
    observation_space, decode = encoder.space, None
    if chain.obs_filter.is_identity:
        try:
            gather = make_gather(encoder.original_space)
            gather([encoder.decode(np.zeros(encoder.space.shape, encoder.space.dtype))])
            observation_space = encoder.original_space
            if not encoder.is_identity:
                decode = _decoder(encoder, gather)
        except (NotImplementedError, UnsupportedSpaceError):
            pass

    def to_env(actions: NDArray[Any]) -> Any:
        return adapter.to_env(adapter.unflatten(actions))

    return MinariWriter(target, observation_space, adapter.space, decode=decode, to_env=to_env, **kwargs)


def _decoder(encoder: Any, gather: Callable[[list[Any]], Any]) -> Callable[[NDArray[Any]], Any]:
    return lambda rows: gather([encoder.decode(row) for row in rows])
