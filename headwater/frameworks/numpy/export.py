"""Exported policies: a directory with `policy.json` and `weights.safetensors`, which needs no framework to be read.

`policy.json` holds

    {"format": "headwater-policy", "version": 1,
     "observation_space": ..., "action_space": ...,    as headwater.envs.space_json writes spaces
     "network": ...,                                   NetworkDescription.to_json()
     "action_dist": null | "SquashedGaussian" | ...,    as model.custom_action_dist names it
     "free_log_std": bool, "normalize_actions": bool,
     "explore": bool, "exploration_config": {...}}

and the tensors are named and laid out as in `headwater.policy.network_description`. Neither file can hold code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from headwater.envs.space_json import space_from_json, space_to_json
from headwater.errors import CheckpointError, ConfigError, HeadwaterError
from headwater.policy.catalog import ModelCatalog
from headwater.policy.network_description import NetworkDescription

FORMAT, VERSION = "headwater-policy", 1
_DESCRIPTION, _WEIGHTS = "policy.json", "weights.safetensors"


class Export(NamedTuple):
    """What an export's directory holds."""

    observation_space: spaces.Box
    action_space: spaces.Space
    config: dict[str, Any]
    network: NetworkDescription
    weights: dict[str, NDArray[Any]]


def write_export(
    path: str | Path,
    observation_space: spaces.Box,
    action_space: spaces.Space,
    config: Mapping[str, Any],
    network: NetworkDescription | None,
    weights: Mapping[str, NDArray[Any]],
) -> Path:
    """Write a policy's acting half to the directory `path`, made where it is missing.

    Raises:
        ConfigError: the network or the distribution is a class of the user's own, which a file cannot hold.
    """
    dist = config["model"]["custom_action_dist"]
    if network is None or not (dist is None or ModelCatalog.is_named_family(dist)):
        what = "custom_model" if network is None else "custom_action_dist"
        raise ConfigError(
            f"export_model: model.{what} is code of your own ({config['model'][what]!r}), which an export cannot hold. "
            "Save a checkpoint instead, or get_weights() for your own format."
        )
    description = {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(observation_space),
        "action_space": space_to_json(action_space),
        "network": network.to_json(),
        "action_dist": dist,
        "free_log_std": config["model"]["free_log_std"],
        "normalize_actions": config["normalize_actions"],
        "explore": config["explore"],
        "exploration_config": dict(config["exploration_config"]),
    }
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    temporary = {name: directory / f".tmp-{os.getpid()}-{name}" for name in (_DESCRIPTION, _WEIGHTS)}
    try:
        save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, temporary[_WEIGHTS])
        temporary[_DESCRIPTION].write_text(json.dumps(description, indent=1, allow_nan=False), encoding="utf-8")
        for name, file in temporary.items():
            file.replace(directory / name)
    finally:
        for file in temporary.values():
            file.unlink(missing_ok=True)
    return directory


def read_export(path: str | Path) -> Export:
    """Read the directory that `write_export` wrote.

    Raises:
        CheckpointError: it is no such export, is of a newer version, or is damaged.
    """
    directory = Path(path)
    try:
        description = json.loads((directory / _DESCRIPTION).read_text(encoding="utf-8"))
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{_DESCRIPTION} has not the format {FORMAT!r}")
        if description["version"] != VERSION:
            raise ValueError(f"it has version {description['version']!r}, and this headwater reads version {VERSION}")
        observation_space = space_from_json(description["observation_space"])
        if not isinstance(observation_space, spaces.Box):
            raise ValueError("its observation space is no Box")
        model = {"custom_model": None, "custom_action_dist": description["action_dist"]}
        config = {
            "model": {**model, "free_log_std": bool(description["free_log_std"])},
            "lr": 0.0,
            "lr_schedule": None,
            **{key: description[key] for key in ("normalize_actions", "explore", "exploration_config")},
        }
        return Export(
            observation_space,
            space_from_json(description["action_space"]),
            config,
            NetworkDescription.from_json(description["network"]),
            load_file(directory / _WEIGHTS),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError, HeadwaterError) as error:
        raise CheckpointError(
            f"{directory} holds no exported policy that can be read: {type(error).__name__}: {error}. "
            "Give the directory that export_model(path) wrote."
        ) from error
