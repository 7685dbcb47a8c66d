"""Who differentiates a loss: all ways train alike."""

import numpy as np
import pytest
from gymnasium import spaces

from headwater.errors import TrainingError
from headwater.frameworks.torch.gradients import by_autograd, compiled
from headwater.policy.policy_template import build_policy
from tests.frameworks.policies import ACTION_SPACES, VECTOR, make_batch, make_policy


def policy_of(loss, **settings):
    cls = build_policy("Mine", loss=loss)
    return cls(VECTOR, spaces.Discrete(3), make_policy(**settings).config)


def trained(policy, batch):
    for _ in range(2):
        policy.learn_on_batch(batch, 2, 16)
    return policy.get_weights()


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_by_hand_and_by_autograd_train_alike(name):
    a, b = (make_policy(action_space=ACTION_SPACES[name], kl_coeff=0.2, entropy_coeff=0.01) for _ in range(2))
    weights = b.learner._weights
    b.learner._differentiate = by_autograd(weights.network, weights.flat, b.loss_of)
    batch = make_batch(a)
    a, b = trained(a, batch), trained(b, batch)
    for name, weight in a.items():
        assert weight == pytest.approx(b[name], abs=1e-4)


def test_statistics_are_left_out_where_they_are_not_kept():
    asked = []

    def loss(ops, dist, old_dist, values, batch, coeffs, config, report):
        asked.append(report)
        loss = -ops.mean(dist.logp(batch["actions"]))
        return loss, {"mine": loss} if report else {}

    policy = policy_of(loss)
    assert "mine" in policy.learn_on_batch(make_batch(policy), 2, 32)
    assert asked == [False, False, True, True]


def test_a_losss_own_error_is_raised():
    def broken(ops, dist, old_dist, values, batch, coeffs, config):
        raise ZeroDivisionError("mine")

    policy = policy_of(broken)
    with pytest.raises(ZeroDivisionError, match="mine"):
        policy.learn_on_batch(make_batch(policy))


@pytest.mark.parametrize("late", [False, True])
def test_no_warnings_of_bad_numbers(late, recwarn):
    policy = make_policy(max_bad_updates_in_a_row=9)
    policy.learner._check_late = late
    batch = make_batch(policy)
    policy.learn_on_batch(batch, 1, 16)
    for name, value in (("value_targets", 1e30), ("advantages", np.inf), ("action_logp", np.nan)):
        policy.learn_on_batch(batch | {name: np.full(64, value, np.float32)})
    with pytest.raises(TrainingError):
        policy.learn_on_batch(batch | {"advantages": np.full(64, np.inf, np.float32)}, 2, 16)
    assert not recwarn.list


@pytest.mark.slow
def test_compiling_trains_the_same_and_only_once():
    from torch._dynamo.utils import counters

    policy, other = make_policy(compile=True, kl_coeff=0.2), make_policy(kl_coeff=0.2)
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
    twin = type(policy)(policy.observation_space, policy.action_space, policy.config)
    weights = twin.learner._weights
    twin.learner._differentiate = compiled(weights.network, weights.flat, twin.loss_of)
    for p in (policy, twin):
        p.learn_on_batch(batch, 1, 32)
    for name, weight in policy.get_weights().items():
        assert weight == pytest.approx(twin.get_weights()[name], abs=1e-3)
