"""Models of the user's own in torch."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from headwater import PPOTrainer
from headwater.errors import CheckpointError, ConfigError
from headwater.frameworks.torch.networks import ActingInTorch, TorchModel
from headwater.policy.catalog import ModelCatalog
from tests.frameworks.policies import VECTOR, make_batch, make_obs, make_policy, weights_equal


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


class Remembers(nn.Module):
    """A GRU of torch's, and beside it how many steps it has seen."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name, width=16):
        super().__init__()
        self.width = width
        self.gru = nn.GRU(obs_space.shape[0], width, batch_first=True)
        self.out = nn.Linear(width, num_outputs + 1)

    def initial_state(self):
        return [np.zeros(self.width), np.zeros(())]

    def forward(self, obs, state):
        hidden, last = self.gru(obs, state[0][None])
        outputs = self.out(hidden)
        return outputs[..., :-1], outputs[..., -1:], [last[0], state[1] + obs.shape[1]]


class FlatOutputs(Remembers):
    def forward(self, obs, state):
        dist_inputs, values, state = super().forward(obs, state)
        return dist_inputs.flatten(0, 1), values, state


class LastValues(Remembers):
    def forward(self, obs, state):
        dist_inputs, values, state = super().forward(obs, state)
        return dist_inputs, values[:, -1], state


class ForgetsItsState(Remembers):
    def forward(self, obs, state):
        return super().forward(obs, state)[:2]


class WideState(Remembers):
    def forward(self, obs, state):
        dist_inputs, values, (hidden, count) = super().forward(obs, state)
        return dist_inputs, values, [hidden[:, :-1], count]


class OnePart(Remembers):
    def forward(self, obs, state):
        dist_inputs, values, state = super().forward(obs, state)
        return dist_inputs, values, state[:1]


class BeginsWithOnes(Remembers):
    def initial_state(self):
        return [np.ones(self.width)]


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
    (FlatOutputs, r"FlatOutputs: for 2 sequences of 3 observations.*\(2, 3, 3\), but have \(6, 3\)"),
    (LastValues, r"LastValues.*values must have the shape \(2, 3\), but have \(2, 1\)"),
    (ForgetsItsState, r"ForgetsItsState.*\(dist_inputs, values, \[the state's parts\]\), but returned 2 things"),
    (WideState, r"WideState.*\[\(2, 16\), \(2,\)\].*but are \[\(2, 15\), \(2,\)\]"),
    (OnePart, r"OnePart.*\[\(2, 16\), \(2,\)\].*but are \[\(2, 16\)\]"),
    (BeginsWithOnes, r"BeginsWithOnes: initial_state\(\) must return a list of arrays of zeros"),
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


# Memory.


def sequences(policy, mask):
    """A batch in sequences [M, L] that continue an episode, padded where the mask says."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=(*mask.shape, *shape)).astype(np.float32)

    return {
        "obs": normal(4), "actions": rng.integers(0, 3, mask.shape), "action_dist_inputs": normal(3),
        "action_logp": -np.abs(normal()), "vf_preds": normal(), "advantages": normal(), "value_targets": normal(),
        "state_in": rng.uniform(-0.5, 0.5, (len(mask), policy.state_size)).astype(np.float32), "mask": mask,
    }  # fmt: skip


def test_a_model_with_memory_acts_step_by_step():
    policy = custom(Remembers)
    assert [part.shape for part in policy.get_initial_state()] == [(16,), ()]
    assert policy.state_shapes == {"model/state_0": (16,), "model/state_1": ()} and policy.state_size == 17
    obs = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    with torch.no_grad():
        zeros = [torch.zeros(3, 16), torch.zeros(3)]
        dist_inputs, values, _ = policy.model(torch.from_numpy(obs), zeros)
    state = None
    for t in range(5):
        _, state, extra = policy.compute_actions(obs[:, t], state)
        assert extra["action_dist_inputs"] == pytest.approx(dist_inputs[:, t].numpy(), abs=1e-5)
        assert extra["vf_preds"] == pytest.approx(values[:, t, 0].numpy(), abs=1e-5)
        assert state[1].tolist() == [t + 1] * 3
    joined = np.concatenate([state[0], state[1][:, None]], 1)
    assert policy.values(obs[:, 0], joined) == pytest.approx(policy.compute_actions(obs[:, 0], state)[2]["vf_preds"])


@pytest.mark.parametrize("padding", [1e9, np.nan])
def test_padding_reaches_nothing_of_a_model_with_memory(padding):
    policy = custom(Remembers)
    mask = np.arange(5) < np.array([[2], [5]])
    batch = sequences(policy, mask)
    spoiled = {name: column.copy() for name, column in batch.items()}
    for name, column in spoiled.items():
        if column.dtype == np.float32 and name != "state_in":
            column[~mask] = padding
    gradients, stats = policy.compute_gradients(batch)
    others, same = policy.compute_gradients(spoiled)
    assert stats == same and stats["grad_gnorm"] > 0
    assert all(np.array_equal(gradient, others[name]) for name, gradient in gradients.items())


def test_a_model_with_memory_learns_what_must_be_remembered():
    policy = custom(Remembers)
    mask = np.ones((32, 6), bool)
    batch = sequences(policy, mask) | {"state_in": np.zeros((32, policy.state_size), np.float32)}
    batch["advantages"][:] = 0
    batch["value_targets"] = np.repeat(np.sign(batch["obs"][:, :1, 0]), 6, 1)
    losses = [policy.learn_on_batch(batch, 5, 48)["vf_loss"] for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def test_a_trainer_of_a_model_with_memory_goes_on_where_it_was(made):
    config = {
        "model": {"custom_model": Remembers, "max_seq_len": 8}, "num_envs_per_worker": 2, "train_batch_size": 64,
        "sgd_minibatch_size": 32, "num_sgd_iter": 2, "seed": 1,
    }  # fmt: skip
    first, second = (PPOTrainer(config, env="CartPole-v1", logger_creator=False) for _ in range(2))
    made += [first, second]
    assert np.isfinite(first.train()["info"]["learner"]["default_policy"]["total_loss"])
    action, state, _ = first.compute_action(np.zeros(4, np.float32), state=first.get_policy().get_initial_state())
    assert action in (0, 1) and [part.shape for part in state] == [(16,), ()] and state[1] == 1
    second.load_checkpoint(first.save_checkpoint("saved"))
    for _ in range(2):
        first.train(), second.train()
    assert weights_equal(first.get_policy().get_weights(), second.get_policy().get_weights())
