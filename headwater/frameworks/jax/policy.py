"""JAXPolicy: learns with JAX; all of a policy but its loss, which `headwater.build_policy` adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from headwater.frameworks.jax.learner import JaxLearner
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.jax.threads import limit_threads
from headwater.frameworks.learning_policy import LearningPolicy


class JAXPolicy(LearningPolicy):
    """A policy whose network learns in JAX."""

    framework = "jax"
    learning_ops = JAX_OPS

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        limit_threads(config["num_threads"])
        super().__init__(observation_space, action_space, config)

    def make_learner(self) -> JaxLearner:
        return JaxLearner(self)
