"""Models of the user's own in TensorFlow: Keras models, modules, and plain callables."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from gymnasium import spaces

tf = pytest.importorskip("tensorflow")

from headwater.errors import CheckpointError, ConfigError  # noqa: E402
from headwater.frameworks.tf.networks import ActingInTF  # noqa: E402
from headwater.policy.catalog import ModelCatalog  # noqa: E402
from tests.frameworks.policies import VECTOR, make_batch, make_obs, make_policy, weights_equal  # noqa: E402


class Normalised(tf.keras.Model):
    """Batch normalisation, dropout, a frozen layer, and values of shape [B, 1]."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name, width=16, dropout=0.1):
        super().__init__(name=name)
        self.body = [
            tf.keras.layers.Dense(width), tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Activation("tanh"), tf.keras.layers.Dropout(dropout),
        ]  # fmt: skip
        self.frozen = tf.keras.layers.Dense(width, trainable=False)
        self.policy = tf.keras.layers.Dense(num_outputs)
        self.value = tf.keras.layers.Dense(1)

    def call(self, obs, training=False):
        x = obs
        for layer in self.body:
            x = layer(x, training=training) if isinstance(layer, tf.keras.layers.Dropout) else layer(x)
        x = self.frozen(x)
        return self.policy(x), self.value(x)


class Separate(tf.Module):
    """The 1.x line's way: the value function apart; and variables of its own."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(name=name)
        width = int(np.prod(obs_space.shape))
        self.policy = tf.Variable(tf.random.normal((width, num_outputs)) * 0.1, name="policy")
        self.value = tf.Variable(tf.zeros((width, 1)), name="value")

    def __call__(self, obs):
        self._obs = obs
        return obs @ self.policy

    def value_function(self):
        return (self._obs @ self.value)[:, 0]


class Plain:
    """No module at all."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        self.kernel = tf.Variable(tf.random.normal((obs_space.shape[0], num_outputs + 1)) * 0.1, name="kernel")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")
        self.variables = [self.kernel, self.count]
        self.trainable_variables = [self.kernel]

    def __call__(self, obs):
        outputs = obs @ self.kernel
        return outputs[:, :-1], outputs[:, -1]


class WrongOutputs(Separate):
    def __call__(self, obs):
        return super().__call__(obs)[:, :-1]


class WrongValues(Separate):
    def value_function(self):
        return super().value_function()[:-1]


class OneTensor(Separate):
    value_function = property()  # there is none


class NoModule:
    def __init__(self, *args):
        pass


class Hidden(tf.Module):
    """A Keras layer in a module, which does not find its variables."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(name=name)
        self.layer = tf.keras.layers.Dense(num_outputs)
        self.value = tf.Variable(tf.zeros((obs_space.shape[0],)))

    def __call__(self, obs):
        return self.layer(obs), tf.linalg.matvec(obs, self.value)


def custom(model=Normalised, seed=1, framework="tf2", memory=None, **config):
    settings = {"custom_model": model, "custom_model_config": config, "memory": memory}
    return make_policy(seed=seed, framework=framework, model=settings, lr=1e-2)


@pytest.mark.parametrize("model", [Normalised, Separate, Plain])
def test_custom_models_learn(model):
    policy = custom(model)
    batch = make_batch(policy, 128)
    batch["value_targets"] = batch["obs"][:, 0].copy()
    first = policy.learn_on_batch(batch)
    for rows in (128, 127, 126):
        for _ in range(4):
            last = policy.learn_on_batch({name: column[:rows] for name, column in batch.items()}, 4, 32)
    assert last["vf_loss"] < 0.7 * first["vf_loss"]
    assert policy.learner.phase.count == 1
    assert isinstance(policy.acting_network, ActingInTF)
    assert policy.values(batch["obs"]) == pytest.approx(policy.values(batch["obs"]), abs=0)


def test_what_is_not_trained_is_part_of_the_weights_too():
    policy, other = custom(), custom(seed=2)
    before = policy.get_weights()
    names = list(before)
    assert "model/0/kernel" in names and any(name.endswith("moving_mean") for name in names)
    batch = make_batch(policy)
    policy.learn_on_batch(batch, 2, 16)
    after = policy.get_weights()
    frozen = [name for name in names if name not in policy.learner.trained_shapes and name.endswith("kernel")]
    moving = [name for name in names if name.endswith("moving_mean")]
    assert len(frozen) == len(moving) == 1
    assert np.array_equal(before[frozen[0]], after[frozen[0]])
    assert not np.array_equal(before[moving[0]], after[moving[0]])
    other.set_weights(after)
    obs = make_obs(VECTOR, 5)
    assert np.array_equal(policy.values(obs), other.values(obs))


def test_names_do_not_depend_on_what_keras_made_before():
    first, second = custom(), custom()
    assert list(first.get_weights()) == list(second.get_weights())
    assert weights_equal(first.get_weights(), second.get_weights())
    assert not weights_equal(first.get_weights(), custom(seed=2).get_weights())


def test_making_a_model_leaves_pythons_generator_alone():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    custom()
    assert random.random() == expected


def test_continues_bit_for_bit_with_dropout():
    straight, first, second = custom(), custom(), custom(seed=7)
    batch = make_batch(straight)
    for _ in range(2):
        straight.learn_on_batch(batch, 2, 16)
    first.learn_on_batch(batch, 2, 16)
    second.set_state(copy.deepcopy(first.get_state()))
    second.learn_on_batch(batch, 2, 16)
    assert weights_equal(straight.get_weights(), second.get_weights())


def test_a_bad_update_leaves_everything_alone():
    policy = custom()
    batch = make_batch(policy)
    before = policy.get_weights()
    batch["obs"][:] = 1e30
    batch["value_targets"][:] = np.nan
    policy.learn_on_batch(batch)
    assert policy.num_bad_updates == 1
    assert weights_equal(before, policy.get_weights())


def test_gradients_computed_and_applied_equal_learning():
    a, b = custom(Separate), custom(Separate)
    batch = make_batch(a)
    for _ in range(3):
        a.learn_on_batch(batch)
        b.apply_gradients(b.compute_gradients(batch)[0])
    for name, weight in a.get_weights().items():
        assert b.get_weights()[name] == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize(("model", "message"), [
    (WrongOutputs, r"WrongOutputs.*\(2, 3\), but have \(2, 2\)"),
    (WrongValues, r"WrongValues.*\(2,\), but have \(1,\)"),
    (OneTensor, r"OneTensor.*one tensor of shape \(2, 3\).*value_function"),
    (NoModule, "made a NoModule"),
    (Hidden, "Keras layers belong into a tf.keras.Model"),
    ("nobody", "not registered"),
])  # fmt: skip
def test_wrong_models_are_named(model, message):
    with pytest.raises(ConfigError, match=message):
        custom(model)


def test_models_by_name():
    ModelCatalog.register_custom_model("normalised_tf", Normalised)
    assert custom("normalised_tf", width=8).get_weights()["model/0/kernel"].shape == (4, 8)


def test_what_custom_models_cannot_do(tmp_path):
    with pytest.raises(ConfigError, match="acting: 'numpy'"):
        make_policy(framework="tf2", model={"custom_model": Separate}, acting="numpy")
    with pytest.raises(ConfigError, match="custom_model"):
        custom().export_model(tmp_path)
    with pytest.raises(ConfigError, match="a custom_model has no memory"):
        custom(memory="lstm")
    with pytest.raises(CheckpointError, match="model/0/kernel: expected shape"):
        custom(width=8).set_weights(custom().get_weights())


def test_images_reach_a_model_as_bytes():
    seen = []

    class Pixels(Separate):
        def __call__(self, obs):
            seen.append(obs.dtype)
            return super().__call__(tf.reshape(tf.cast(obs, tf.float32), (-1, 12)) / 255.0)

    policy = make_policy(
        spaces.Box(0, 255, (2, 2, 3), np.uint8), framework="tf2", model={"custom_model": Pixels}
    )  # fmt: skip
    policy.learn_on_batch(make_batch(policy), 1, 16)
    assert set(seen) == {tf.uint8}
