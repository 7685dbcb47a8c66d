"""What is torch's own in its policies; the rest is in test_learning_policy.py."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headwater.errors import ConfigError
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.optimizer import FlatOptimizer
from headwater.policy.policy_template import build_policy
from tests.frameworks.policies import BAD_COLUMNS, VECTOR, make_batch, make_policy, same_state, spoil, weights_equal


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_checking_late_trains_the_same(late):
    policy, other = make_policy(grad_clip=0.1), make_policy(grad_clip=0.1)
    other.learner._check_late = late
    batch = make_batch(policy)
    a, b = policy.learn_on_batch(batch, 2, 16), other.learn_on_batch(batch, 2, 16)
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    for name, weight in policy.get_weights().items():
        assert weight == pytest.approx(other.get_weights()[name], abs=1e-6)


def test_postprocess_stats_and_mixins():
    class Mixin:
        def hello(self):
            return "hello"

    def postprocess(policy, trajectory):
        trajectory.append(policy.framework)

    def loss(ops, dist, old_dist, values, batch, coeffs, config):
        return -ops.mean(dist.logp(batch["actions"])), {}

    cls = build_policy(
        "Mine", loss=loss, postprocess=postprocess, stats=lambda policy: {"answer": 42.0}, mixins=[Mixin]
    )
    policy = cls(VECTOR, spaces.Discrete(3), make_policy().config)
    trajectory = []
    policy.postprocess_trajectory(trajectory)
    assert trajectory == ["torch"]
    assert policy.hello() == "hello"
    assert policy.learn_on_batch({"obs": np.zeros((8, 4), np.float32), "actions": np.zeros(8, int)})["answer"] == 42.0
    assert cls.__name__ == "Mine"


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="device: 'cuda:3' is not there"):
        make_policy(device="cuda:3")


def test_auto_device_without_a_gpu():
    assert make_policy(device="auto").learner.device.type == "cpu"


def test_images_learn_on_bytes():
    space = spaces.Box(0, 255, (10, 10, 2), np.uint8)
    policy = make_policy(space, model={"post_fcnet_hiddens": [32]}, lr=1e-3)
    batch = make_batch(policy, 64)
    batch["value_targets"] = (batch["obs"][:, 0, 0, 0] / 255.0).astype(np.float32)
    first = policy.learn_on_batch(batch, 1, 0)
    for _ in range(10):
        last = policy.learn_on_batch(batch, 4, 16)
    assert last["vf_loss"] < 0.5 * first["vf_loss"]
    assert policy.learner._columns.gather("obs", np.arange(64)).dtype == torch.uint8


@pytest.mark.parametrize(("settings", "reference"), [
    ({"name": "adam", "eps": 1e-5, "beta1": 0.8}, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-5, betas=(0.8, 0.999))),
    ({"name": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.01)),
    ({"name": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    ({"name": "rmsprop"}, lambda p: torch.optim.RMSprop(p, lr=0.01)),
    ({"name": "rmsprop", "alpha": 0.9, "momentum": 0.5}, lambda p: torch.optim.RMSprop(p, 0.01, 0.9, momentum=0.5)),
])  # fmt: skip
def test_optimizers_are_torchs(settings, reference):
    rng = np.random.default_rng(0)
    parameters = FlatParameters({"w": rng.normal(size=(5, 3)).astype(np.float32)}, torch.device("cpu"))
    twin = parameters.vector.detach().clone().requires_grad_()
    ours, theirs = FlatOptimizer(parameters, settings), reference([twin])
    ours.set_lr(0.01)
    for _ in range(20):
        gradient = torch.from_numpy(rng.normal(size=15).astype(np.float32))
        parameters.gradient.copy_(gradient)
        twin.grad = gradient.clone()
        ours.step()
        theirs.step()
    assert parameters.vector.detach().numpy() == pytest.approx(twin.detach().numpy(), abs=1e-6)


def test_threads_are_limited_in_torch_and_in_numpy():
    from threadpoolctl import threadpool_info

    make_policy(num_threads=1)
    assert torch.get_num_threads() == 1
    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}


@pytest.mark.parametrize("columns", BAD_COLUMNS, ids=str)
def test_bad_updates_found_late_change_nothing_and_are_counted(columns):
    policy = make_policy()
    policy.learner._check_late = True
    batch = make_batch(policy)
    policy.learn_on_batch(batch, 1, 16)
    before = copy.deepcopy(policy.get_state())
    stats = policy.learn_on_batch(spoil(batch, **columns), 2, 16)
    after = policy.get_state()
    assert after["num_bad_updates"] == stats["num_bad_updates"] == 8
    assert np.isnan(stats["kl"])
    assert weights_equal(before["weights"], after["weights"])
    assert same_state(before["optimizer"], after["optimizer"])
    assert np.isfinite(policy.learn_on_batch(batch, 1, 16)["total_loss"])
    assert policy.get_state()["bad_updates_in_a_row"] == 0


def test_one_bad_row_found_late_spoils_only_its_minibatch():
    policy = make_policy()
    policy.learner._check_late = True
    batch = make_batch(policy)
    batch["value_targets"][5] = 1e30
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch, 2, 16)
    assert policy.num_bad_updates == 2
    assert all(np.isfinite(value) for value in stats.values())
    assert not weights_equal(before, policy.get_weights())
    assert all(np.isfinite(weight).all() for weight in policy.get_weights().values())
