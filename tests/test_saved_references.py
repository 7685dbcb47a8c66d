"""What a checkpoint may name: models of every framework are models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from headwater.algorithms.ppo.config import PPOConfig
from headwater.errors import CheckpointError
from headwater.saved_references import resolve_saved_references

MODELS = ["torch.nn:Linear", "keras:Sequential", "flax.linen:Dense"]


@pytest.mark.parametrize("reference", MODELS)
def test_models_of_every_framework_are_taken(reference: str, tmp_path: Path) -> None:
    if find_spec(reference.split(":")[0].split(".")[0]) is None:
        pytest.skip("not installed")
    config = PPOConfig.from_dict(PPOConfig().to_dict(), {"model": {"custom_model": reference}})
    resolve_saved_references(config, {}, False, tmp_path)
    assert config.model.custom_model.__name__ == reference.split(":")[1]


def test_another_class_is_no_model(tmp_path: Path) -> None:
    config = PPOConfig.from_dict(PPOConfig().to_dict(), {"model": {"custom_model": "numpy:ndarray"}})
    with pytest.raises(CheckpointError, match="the class ndarray.*trust=True"):
        resolve_saved_references(config, {}, False, tmp_path)
