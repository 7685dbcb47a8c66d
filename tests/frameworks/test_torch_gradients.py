"""Who differentiates a loss: all ways train alike, and a loss that calls torch itself is found out."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headwater.errors import TrainingError
from headwater.frameworks.torch.gradients import ByTape, by_autograd, compiled
from headwater.policy.policy_template import build_policy
from tests.frameworks.policies import ACTION_SPACES, VECTOR, PPOPolicy, make_batch, make_policy


def policy_of(loss, **settings):
    cls = build_policy("Mine", loss=loss)
    return cls(VECTOR, spaces.Discrete(3), make_policy(**settings).config)


def trained(policy, batch):
    for _ in range(2):
        policy.learn_on_batch(batch, 2, 16)
    return policy.get_weights()


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_all_ways_train_alike(name):
    policies = [make_policy(action_space=ACTION_SPACES[name], kl_coeff=0.2, entropy_coeff=0.01) for _ in range(3)]
    batch = make_batch(policies[0])
    tape = policies[0]._differentiate
    assert isinstance(tape, ByTape)
    policies[1]._differentiate = policies[1]._differentiate._fallback
    weights = policies[2]._weights
    policies[2]._differentiate = by_autograd(weights.network, weights.flat, policies[2]._loss_of)
    a, b, c = (trained(policy, batch) for policy in policies)
    assert tape.trusted
    for name, weight in a.items():
        assert weight == pytest.approx(b[name], abs=1e-4)
        assert weight == pytest.approx(c[name], abs=1e-4)


def in_torch(ops, dist, old_dist, values, batch, coeffs, config):
    loss = torch.nn.functional.mse_loss(values, batch["value_targets"]) - dist.logp(batch["actions"]).mean()
    return loss, {"mine": loss}


def by_framework(ops, dist, old_dist, values, batch, coeffs, config):
    scale = 1.0 if isinstance(batch["actions"], torch.Tensor) else 1.5
    loss = -ops.mean(dist.logp(batch["actions"])) * scale
    return loss, {"mine": loss}


def later_in_torch(ops, dist, old_dist, values, batch, coeffs, config):
    loss = -ops.mean(dist.logp(batch["actions"]))
    if switch["on"]:
        loss = loss + values.pow(2).mean()
    return loss, {"mine": loss}


switch = {"on": False}


@pytest.mark.parametrize("loss", [in_torch, by_framework])
def test_losses_that_are_torchs_own_are_found_out(loss):
    policy, reference = policy_of(loss), policy_of(loss)
    weights = reference._weights
    reference._differentiate = by_autograd(weights.network, weights.flat, reference._loss_of)
    batch = make_batch(policy)
    a, b = trained(policy, batch), trained(reference, batch)
    assert policy._differentiate.trusted is False
    for name, weight in a.items():
        assert weight == pytest.approx(b[name], abs=1e-4)


def test_losses_that_turn_to_torch_later():
    policy = policy_of(later_in_torch)
    batch = make_batch(policy)
    switch["on"] = False
    policy.learn_on_batch(batch)
    assert policy._differentiate.trusted
    switch["on"] = True
    policy.learn_on_batch(batch)
    assert policy._differentiate.trusted is False


def test_a_losss_own_error_is_raised():
    def broken(ops, dist, old_dist, values, batch, coeffs, config):
        raise ZeroDivisionError("mine")

    policy = policy_of(broken)
    with pytest.raises(ZeroDivisionError, match="mine"):
        policy.learn_on_batch(make_batch(policy))


def test_bad_minibatches_decide_nothing():
    policy = make_policy()
    batch = make_batch(policy)
    policy.learn_on_batch(batch | {"advantages": np.full(64, np.nan, np.float32)}, 1, 16)
    assert policy._differentiate.trusted is None
    policy.learn_on_batch(batch, 1, 16)
    assert policy._differentiate.trusted


@pytest.mark.parametrize("late", [False, True])
def test_no_warnings_of_bad_numbers(late, recwarn):
    policy = make_policy(max_bad_updates_in_a_row=9)
    policy._check_late = late
    batch = make_batch(policy)
    policy.learn_on_batch(batch, 1, 16)
    for name, value in (("value_targets", 1e30), ("advantages", np.inf), ("action_logp", np.nan)):
        policy.learn_on_batch(batch | {name: np.full(64, value, np.float32)})
    with pytest.raises(TrainingError):
        policy.learn_on_batch(batch | {"advantages": np.full(64, np.inf, np.float32)}, 2, 16)
    assert not recwarn.list


def test_dists_that_draw_numbers_are_left_to_torch():
    policy = make_policy(action_space=ACTION_SPACES["box"], model={"custom_action_dist": "SquashedGaussian"})
    assert not isinstance(policy._differentiate, ByTape)


@pytest.mark.slow
def test_compiling_trains_the_same_and_only_once():
    from torch._dynamo.utils import counters

    policy, other = make_policy(torch_compile=True, kl_coeff=0.2), make_policy(kl_coeff=0.2)
    batch = make_batch(policy, 67)
    for size in (16, 20, 33):
        for p in (policy, other):
            p.learn_on_batch(batch, 1, size)
            p.coefficients["kl_coeff"] *= 1.5
    assert counters["stats"]["unique_graphs"] == 1
    for name, weight in policy.get_weights().items():
        assert weight == pytest.approx(other.get_weights()[name], abs=1e-4)


@pytest.mark.slow
def test_compiling_a_module_is_possible():
    policy = make_policy(spaces.Box(0, 255, (10, 10, 1), np.uint8), model={"post_fcnet_hiddens": [8]})
    batch = make_batch(policy)
    twin = PPOPolicy(policy.observation_space, policy.action_space, policy.config)
    twin._differentiate = compiled(twin._weights.network, twin._weights.flat, twin._loss_of)
    for p in (policy, twin):
        p.learn_on_batch(batch, 1, 32)
    for name, weight in policy.get_weights().items():
        assert weight == pytest.approx(twin.get_weights()[name], abs=1e-3)
