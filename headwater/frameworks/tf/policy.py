"""TFPolicy: learns with TensorFlow; all of a policy but its loss, which `headwater.build_policy` adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from headwater.frameworks.learning_policy import LearningPolicy
from headwater.frameworks.tf.device import prepare
from headwater.frameworks.tf.learner import TFLearner
from headwater.frameworks.tf.ops import TF_OPS


class TFPolicy(LearningPolicy):
    """A policy whose network learns in TensorFlow."""

    framework = "tf2"
    learning_ops = TF_OPS

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        prepare(config["num_threads"])
        super().__init__(observation_space, action_space, config)

    def make_learner(self) -> TFLearner:
        return TFLearner(self)
