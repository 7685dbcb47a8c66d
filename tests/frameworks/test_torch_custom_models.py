"""Models of the user's own in torch."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from headwater.errors import CheckpointError, ConfigError
from headwater.frameworks.torch.networks import ActingInTorch, TorchModel
from headwater.policy.catalog import ModelCatalog
from tests.frameworks.policies import VECTOR, make_batch, make_obs, make_policy


class Normalised(nn.Module):
    """Batch normalisation, dropout, a frozen layer, and values of shape [B, 1]."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name, width=16, dropout=0.1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(obs_space.shape[0], width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(dropout)
        )
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.policy = nn.Linear(width, num_outputs)
        self.value = nn.Linear(width, 1)

    def forward(self, obs):
        x = self.frozen(self.body(obs))
        return self.policy(x), self.value(x)


class Separate(TorchModel):
    """The 1.x line's way: the value function apart."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.policy = nn.Linear(obs_space.shape[0], num_outputs)
        self.value = nn.Linear(obs_space.shape[0], 1)

    def forward(self, obs):
        self._obs = obs
        return self.policy(obs)

    def value_function(self):
        return self.value(self._obs).squeeze(1)


class WrongOutputs(Separate):
    def forward(self, obs):
        return super().forward(obs)[:, :-1]


class WrongValues(Separate):
    def value_function(self):
        return self.value(self._obs).squeeze(1)[:-1]


class OneTensor(nn.Module):
    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__()
        self.policy = nn.Linear(obs_space.shape[0], num_outputs)

    def forward(self, obs):
        return self.policy(obs)


class NoModule:
    def __init__(self, *args):
        pass


def custom(model=Normalised, seed=1, **config):
    return make_policy(seed=seed, model={"custom_model": model, "custom_model_config": config}, lr=1e-2)


@pytest.mark.parametrize("model", [Normalised, Separate])
def test_custom_models_learn(model):
    policy = custom(model)
    batch = make_batch(policy, 128)
    batch["value_targets"] = batch["obs"][:, 0].copy()
    first = policy.learn_on_batch(batch)
    for _ in range(10):
        last = policy.learn_on_batch(batch, 4, 32)
    assert last["vf_loss"] < 0.7 * first["vf_loss"]


def test_parameters_are_views_of_the_flat_vector():
    policy = custom()
    flat = policy.learner._weights.flat
    for parameter in policy.model.parameters():
        if parameter.requires_grad:
            assert parameter.untyped_storage().data_ptr() == flat.vector.untyped_storage().data_ptr()
    policy.learn_on_batch(make_batch(policy))
    assert all(
        parameter.grad.untyped_storage().data_ptr() == flat.gradient.untyped_storage().data_ptr()
        for parameter in policy.model.parameters()
        if parameter.requires_grad
    )


def test_buffers_and_frozen_parameters_are_weights_too():
    policy, other = custom(), custom(seed=2)
    weights = policy.get_weights()
    assert "model/body/1/running_mean" in weights
    assert "model/body/1/num_batches_tracked" in weights
    assert "model/frozen/weight" in weights
    batch = make_batch(policy)
    policy.learn_on_batch(batch, 2, 16)
    after = policy.get_weights()
    assert np.array_equal(weights["model/frozen/weight"], after["model/frozen/weight"])
    assert not np.array_equal(weights["model/body/1/running_mean"], after["model/body/1/running_mean"])
    assert after["model/body/1/num_batches_tracked"] == 8
    other.set_weights(after)
    obs = make_obs(VECTOR, 5)
    assert np.array_equal(policy.values(obs), other.values(obs))


def test_acting_is_in_evaluation_mode_and_learning_in_training_mode():
    policy = custom(dropout=0.9)
    obs = make_obs(VECTOR, 5)
    assert not policy.model.training
    assert np.array_equal(policy.values(obs), policy.values(obs))
    policy.learn_on_batch(make_batch(policy), 2, 16)
    assert not policy.model.training
    assert isinstance(policy.acting_network, ActingInTorch)


def test_continues_bit_for_bit_with_dropout_whatever_torch_draws_elsewhere():
    straight, first, second = custom(), custom(), custom(seed=7)
    batch = make_batch(straight)
    for _ in range(2):
        straight.learn_on_batch(batch, 2, 16)
    first.learn_on_batch(batch, 2, 16)
    torch.rand(3)
    second.set_state(copy.deepcopy(first.get_state()))
    second.learn_on_batch(batch, 2, 16)
    assert all(np.array_equal(w, second.get_weights()[name]) for name, w in straight.get_weights().items())


def test_learning_leaves_torchs_own_random_state_alone():
    policy = custom()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    policy.learn_on_batch(make_batch(policy), 2, 16)
    assert torch.equal(torch.rand(2), expected)


def test_a_bad_update_leaves_buffers_alone():
    policy = custom()
    batch = make_batch(policy)
    before = policy.get_weights()
    batch["obs"][:] = 1e30
    batch["value_targets"][:] = np.nan
    policy.learn_on_batch(batch)
    assert policy.num_bad_updates == 1
    assert all(np.array_equal(w, policy.get_weights()[name]) for name, w in before.items())


@pytest.mark.parametrize(("model", "message"), [
    (WrongOutputs, r"WrongOutputs.*\(2, 3\), but have \(2, 2\)"),
    (WrongValues, r"WrongValues.*\(2,\), but have \(1,\)"),
    (OneTensor, r"OneTensor.*one tensor of shape \(2, 3\)"),
    (NoModule, "made a NoModule"),
    ("nobody", "not registered"),
])  # fmt: skip
def test_wrong_models_are_named(model, message):
    with pytest.raises(ConfigError, match=message):
        custom(model)


def test_models_by_name_and_reference():
    ModelCatalog.register_custom_model("normalised", Normalised)
    for model in ("normalised", f"{__name__}:Normalised"):
        policy = custom(model, width=8)
        assert policy.get_weights()["model/policy/weight"].shape == (3, 8)


def test_the_same_seed_gives_the_same_model():
    a, b, c = custom().get_weights(), custom().get_weights(), custom(seed=2).get_weights()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(a["model/policy/weight"], c["model/policy/weight"])


def test_what_custom_models_cannot_do(tmp_path):
    with pytest.raises(ConfigError, match="acting: 'numpy'"):
        make_policy(model={"custom_model": Normalised}, acting="numpy")
    with pytest.raises(ConfigError, match="custom_model"):
        custom().export_model(tmp_path)
    with pytest.raises(CheckpointError, match="model/policy/weight: expected shape"):
        custom(width=8).set_weights(custom().get_weights())


def test_images_reach_a_model_as_bytes():
    seen = []

    class Pixels(Separate):
        def __init__(self, obs_space, *args):
            super().__init__(spaces.Box(-1, 1, (12,)), *args)

        def forward(self, obs):
            seen.append(obs.dtype)
            return super().forward(obs.flatten(1) / 255.0)

    policy = make_policy(spaces.Box(0, 255, (2, 2, 3), np.uint8), model={"custom_model": Pixels})
    policy.learn_on_batch(make_batch(policy), 1, 16)
    assert set(seen) == {torch.uint8}


def test_a_model_that_takes_other_arguments_is_told_which_there_are():
    class Mine(torch.nn.Module):
        def __init__(self, width):
            super().__init__()

    with pytest.raises(ConfigError, match="obs_space, action_space, num_outputs, model_config, name"):
        make_policy(model={"custom_model": Mine})
