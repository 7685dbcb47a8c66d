"""Minari datasets on the disk: where one is, and its storage, opened without calling what its metadata names."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

from gymnasium import spaces

from headwater.errors import require
from headwater.offline.context import OfflineError

PREFIX = "minari:"


def is_path(target: str) -> bool:
    """Whether a target names a directory rather than a dataset's id: it is absolute, or begins with `.` or `~`."""
    return os.path.isabs(target) or target.startswith((".", "~"))


def dataset_directory(target: str | Path) -> Path:
    """The directory of a dataset, given by its path or by its id below Minari's own root; it need not exist."""
    if isinstance(target, Path) or is_path(target):
        return Path(target).expanduser().absolute()  # some of Minari fails with relative ones
    datasets = require("minari.storage.datasets_root_dir", "offline")
    return Path(datasets.get_dataset_path(target.removeprefix(PREFIX)))


def data_directory(target: str | Path) -> Path:
    """Where the data of a dataset that is there lies.

    Raises:
        OfflineError: there is none.
    """
    directory = dataset_directory(target)
    for data in (directory / "data", directory):
        if (data / "metadata.json").is_file():
            return data
    raise OfflineError(
        f"No Minari dataset is at {directory}. Give the directory of one (beginning with '/', '.' or '~') or the id of "
        f"one that is on this machine; others are fetched by: minari download {target}"
    )


def read_metadata(data: Path) -> dict[str, Any]:
    """What a dataset says of itself.

    Raises:
        OfflineError: it says nothing that can be read.
    """
    try:
        content = json.loads((data / "metadata.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise OfflineError(f"{data / 'metadata.json'} cannot be read: {error}. Fetch the dataset again.") from error


def open_storage(data: Path, observation_space: spaces.Space | None, action_space: spaces.Space | None) -> Any:
    """The storage of a dataset.

    Its spaces are those that it stores. Where it stores none they are the ones given: Minari itself would make the env
    that the dataset names, and so call what a file names.

    Raises:
        OfflineError: the dataset is damaged, or of a kind that this Minari does not know.
    """
    minari = require("minari", "offline")
    storages = require("minari.dataset._storages", "offline")
    metadata = read_metadata(data)
    try:
        found = {}
        for name, given in (("observation_space", observation_space), ("action_space", action_space)):
            stored = metadata.get(name)
            found[name] = minari.serialization.deserialize_space(stored) if isinstance(stored, str) else given
            if found[name] is None:
                raise ValueError(f"it does not store its {name}; give the space")
        storage_class = storages.get_minari_storage(metadata["data_format"])
        kwargs = {}
        if "jpeg_encoding" in inspect.signature(storage_class).parameters:
            kwargs["jpeg_encoding"] = bool(metadata.get("jpeg_encoding", True))
        return storage_class(data, found["observation_space"], found["action_space"], **kwargs)
    except (ImportError, OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError,
            NotImplementedError) as error:  # fmt: skip
        raise OfflineError(
            f"The Minari dataset at {data} cannot be read: {type(error).__name__}: {error}. Fetch or record it again."
        ) from error
