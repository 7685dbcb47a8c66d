"""ModelNetwork: a model of the user's own in TensorFlow, as the learner needs it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from headwater.errors import ConfigError
from headwater.frameworks.learning_policy import LearningPolicy
from headwater.frameworks.tf.networks import Outputs
from headwater.frameworks.tf.ops import TF_OPS
from headwater.policy.custom_models import check_outputs, make_custom_model, output_mask
from headwater.policy.weights import by_name


class ModelNetwork:
    """A `tf.keras.Model`, a `tf.Module`, or anything callable with `variables` and `trainable_variables`.

    `model(obs)` returns distribution inputs [B, K] and values [B] or [B, 1]; or the inputs alone, if the model has
    `value_function()`, which gives the values of the observations that came last. It has no memory. Keras models learn
    with `training=True` and act without.

    Weights are named by their place among the model's variables, e.g. `model/0/kernel`: Keras's own names count the
    layers of the process.

    Args:
        policy: Whose model it is.

    Raises:
        ConfigError: it is something else, or returns other things or shapes.
    """

    def __init__(self, policy: LearningPolicy) -> None:
        if policy.config["model"]["memory"] is not None:
            raise ConfigError("model.memory: a custom_model has no memory in tf2. Leave out one of the two.")
        space = policy.observation_space
        sample = tf.zeros((2, *space.shape), tf.uint8 if space.dtype == np.uint8 else tf.float32)
        with _seeded(policy.seed_of("model")), tf.GradientTape() as tape:
            self.model = make_custom_model(policy)
            self._is_keras = any(base.__module__.startswith("keras.") for base in type(self.model).__mro__)
            if not callable(self.model) or not hasattr(self.model, "trainable_variables"):
                raise ConfigError(
                    "custom_model: it must be a tf.keras.Model, a tf.Module or another callable with variables, but "
                    f"the class made a {type(self.model).__name__}. Derive it from tf.keras.Model."
                )
            outputs = self._call(sample, training=False)  # the first call makes the variables
        self._masked = output_mask(policy, TF_OPS)
        name = type(self.model).__name__
        check_outputs(name, outputs, (2,), policy.num_outputs, tf.is_tensor, "Or give the values by value_function().")
        variables = {
            f"model/{index}/{variable.name.split('/')[-1].split(':')[0]}": _plain(variable)
            for index, variable in enumerate(self.model.variables)
        }
        trained = {id(_plain(variable)) for variable in self.model.trainable_variables}
        if not trained or not {id(variable) for variable in tape.watched_variables()} <= trained:
            raise ConfigError(
                f"custom_model {name}: it has no trainable_variables, or computes with others than these. Keras layers "
                "belong into a tf.keras.Model."
            )
        self._trained = {key: variable for key, variable in variables.items() if id(variable) in trained}
        self.shapes = {key: tuple(variable.shape) for key, variable in self._trained.items()}
        rest = {key: variable for key, variable in variables.items() if id(variable) not in trained}
        # The states of Keras's generators are 32-bit words; they are no weights, and no other model's business.
        self.generators = {key: variable for key, variable in rest.items() if variable.dtype == tf.uint32}
        self.extras = {key: variable for key, variable in rest.items() if key not in self.generators}
        self.vector = tf.Variable(tf.concat([tf.reshape(variable, (-1,)) for variable in self.present()], 0))

    def weights(self, vector: tf.Tensor) -> list[Any]:
        """The model's own variables, which now hold the vector."""
        for variable, value in zip(self.present(), by_name(TF_OPS, vector, self.shapes).values(), strict=True):
            variable.assign(value)
        return self.present()

    def present(self) -> list[Any]:
        return list(self._trained.values())

    def forward(
        self,
        weights: list[Any],
        obs: tf.Tensor,
        state: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        keep_state: bool = False,
        training: bool = False,
    ) -> Outputs:
        dist_inputs, values = self._call(obs, training)
        return self._masked(obs, dist_inputs), tf.reshape(values, (-1,)), None

    def dist_inputs(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        return self.forward(weights, obs)[0]

    def values(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        return self.forward(weights, obs)[1]

    def _call(self, obs: tf.Tensor, training: bool) -> Any:
        result = self.model(obs, training=training) if self._is_keras else self.model(obs)
        if tf.is_tensor(result) and hasattr(self.model, "value_function"):
            return result, self.model.value_function()
        return result


def _plain(variable: Any) -> tf.Variable:
    """TensorFlow's variable, which Keras wraps."""
    return variable if isinstance(variable, tf.Variable) else variable.value


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Initial weights by seed: TensorFlow draws them, or Keras does with seeds from Python's own generator."""
    before = random.getstate()
    random.seed(seed)
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
