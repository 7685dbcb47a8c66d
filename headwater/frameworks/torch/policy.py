"""TorchPolicy: learns with torch; all of a policy but its loss, which `headwater.build_policy` adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces

from headwater.frameworks.learning_policy import LearningPolicy
from headwater.frameworks.torch.learner import TorchLearner
from headwater.frameworks.torch.ops import TORCH_OPS


class TorchPolicy(LearningPolicy):
    """A policy whose network learns in torch."""

    framework = "torch"
    learning_ops = TORCH_OPS

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        if torch.get_num_threads() != config["num_threads"]:
            torch.set_num_threads(config["num_threads"])
        super().__init__(observation_space, action_space, config)

    def make_learner(self) -> TorchLearner:
        return TorchLearner(self)
