"""What a torch policy learns, and what it refuses to learn from."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headwater.errors import CheckpointError, ConfigError, TrainingError
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.optimizer import FlatOptimizer
from headwater.policy.policy_template import build_policy
from tests.frameworks.policies import ACTION_SPACES, VECTOR, PPOPolicy, make_batch, make_policy


def weights_equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def same_state(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_learning_makes_good_actions_likelier(name):
    policy = make_policy(action_space=ACTION_SPACES[name], lr=3e-3)
    batch = make_batch(policy, 256)
    batch["advantages"] = np.where(batch["obs"][:, 0] > 0, 1.0, -1.0).astype(np.float32)
    batch["value_targets"] = batch["obs"][:, 1].copy()
    before = policy.logp(policy.acting_network.dist_inputs(batch["obs"]), batch["actions"])
    first = policy.learn_on_batch(batch, 1, 0)
    for _ in range(5):
        last = policy.learn_on_batch(batch, 4, 64)
    change = policy.logp(policy.acting_network.dist_inputs(batch["obs"]), batch["actions"]) - before
    good = batch["advantages"] > 0
    assert change[good].mean() > change[~good].mean() + 0.01
    assert last["vf_loss"] < 0.5 * first["vf_loss"]
    assert last["policy_loss"] < first["policy_loss"]


def test_the_first_ratio_is_one():
    policy = make_policy(action_space=ACTION_SPACES["nested"], entropy_coeff=0.0)
    batch = make_batch(policy, 100)
    _, stats = policy.compute_gradients(batch)
    assert stats["kl"] == pytest.approx(0.0, abs=1e-6)
    assert stats["policy_loss"] == pytest.approx(-batch["advantages"].mean(), abs=1e-5)


def test_statistics():
    policy = make_policy(kl_coeff=0.3, entropy_coeff=0.01, lr=5e-4)
    stats = policy.learn_on_batch(make_batch(policy), 2, 16)
    expected = {"total_loss", "policy_loss", "vf_loss", "vf_explained_var", "kl", "entropy", "grad_gnorm"}
    assert expected | {"cur_lr", "cur_kl_coeff", "entropy_coeff", "num_bad_updates"} == set(stats)
    assert all(isinstance(value, float | int) for value in stats.values())
    assert stats["cur_lr"] == 5e-4
    assert stats["cur_kl_coeff"] == 0.3


def test_statistics_are_of_the_last_epoch():
    policy = make_policy(lr=0.0)
    batch = make_batch(policy)
    stats = policy.learn_on_batch(batch, 3, 16)
    whole = policy.compute_gradients(batch)[1]
    assert stats["policy_loss"] == pytest.approx(whole["policy_loss"], abs=1e-5)
    assert stats["vf_loss"] == pytest.approx(whole["vf_loss"], abs=1e-5)


def test_same_seed_same_weights_and_another_seed_others():
    a, b, c = make_policy(seed=1), make_policy(seed=1), make_policy(seed=2)
    assert weights_equal(a.get_weights(), b.get_weights())
    assert not weights_equal(a.get_weights(), c.get_weights())
    batch = make_batch(a)
    for policy in (a, b):
        policy.learn_on_batch(batch, 2, 16)
    assert weights_equal(a.get_weights(), b.get_weights())


@pytest.mark.parametrize("settings", [
    {}, {"fcnet_activation": "silu"}, {"vf_share_layers": True}, {"custom_action_dist": "SquashedGaussian"},
])  # fmt: skip
@pytest.mark.parametrize("optimizer", [{"name": "adam", "eps": 1e-5}])
def test_continues_bit_for_bit(settings, optimizer):
    def fresh(seed):
        policy = make_policy(
            action_space=ACTION_SPACES["box"], seed=seed, model=settings, optimizer=optimizer, kl_coeff=0.2,
            entropy_coeff=0.01, lr_schedule=[[0, 1e-3], [1000, 1e-4]],
        )  # fmt: skip
        return policy

    def train(policy, rounds):
        for i in rounds:
            policy.learn_on_batch(batches[i], 2, 16)
            policy.coefficients["kl_coeff"] *= 1.5
            policy.on_global_var_update({"timestep": 100 * (i + 1)})

    batches = [make_batch(fresh(0), 60, i) for i in range(4)]
    straight, first, second = fresh(1), fresh(1), fresh(99)
    train(straight, range(4))
    train(first, range(2))
    state = copy.deepcopy(first.get_state())
    train(first, range(2, 4))  # must not reach into the state
    second.set_state(state)
    train(second, range(2, 4))
    a, b = straight.get_state(), second.get_state()
    # What was drawn for acting before is all that may differ: nothing was.
    assert same_state(a, b), {key: a[key] for key in a if not same_state(a[key], b[key])}
    assert weights_equal(first.get_weights(), second.get_weights())


def test_state_before_the_first_update_restores():
    policy, other = make_policy(seed=1), make_policy(seed=2)
    other.learn_on_batch(make_batch(other), 1, 16)
    other.set_state(policy.get_state())
    batch = make_batch(policy)
    for p in (policy, other):
        p.learn_on_batch(batch, 2, 16)
    assert weights_equal(policy.get_weights(), other.get_weights())


def test_a_restored_policy_takes_its_learning_rate_from_its_own_config():
    policy, other = make_policy(lr=1e-3), make_policy(lr=7e-5)
    policy.learn_on_batch(make_batch(policy))
    other.set_state(policy.get_state())
    assert other.learn_on_batch(make_batch(other))["cur_lr"] == 7e-5


def test_acting_draws_continue():
    policy, other = make_policy(), make_policy(seed=5)
    obs = make_batch(policy)["obs"]
    other.set_state(policy.get_state())
    assert np.array_equal(policy.compute_actions(obs)[0], other.compute_actions(obs)[0])


@pytest.mark.parametrize("optimizer", [
    {"name": "sgd", "momentum": 0.9}, {"name": "rmsprop", "alpha": 0.9}, {"name": "adam", "eps": 1e-6, "beta2": 0.99},
])  # fmt: skip
def test_optimizers(optimizer):
    config = dict(make_policy().config.items()) | {"optimizer": optimizer}
    policies = [PPOPolicy(VECTOR, spaces.Discrete(3), config) for _ in range(2)]
    before = policies[0].get_weights()
    batch = make_batch(policies[0])
    policies[0].learn_on_batch(batch, 2, 16)
    policies[1].set_state(policies[0].get_state())
    for policy in policies:
        policy.learn_on_batch(batch, 1, 16)
    assert weights_equal(policies[0].get_weights(), policies[1].get_weights())
    assert not weights_equal(before, policies[0].get_weights())


@pytest.mark.parametrize(("optimizer", "message"), [({"name": "lion"}, "'lion'"), ({"name": "sgd", "eps": 1.0}, "eps")])
def test_unknown_optimizers_and_settings(optimizer, message):
    config = dict(make_policy().config.items()) | {"optimizer": optimizer}
    with pytest.raises(ConfigError, match=message):
        PPOPolicy(VECTOR, spaces.Discrete(3), config)


def test_adam_is_adam():
    """One update against the formula (Kingma and Ba 2015), in float64."""
    policy = make_policy(lr=0.01, grad_clip=None, optimizer={"name": "adam", "eps": 1e-5})
    batch = make_batch(policy)
    gradients, _ = policy.compute_gradients(batch)
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    for name, after in policy.get_weights().items():
        g = gradients[name].astype(np.float64)
        expected = before[name] - 0.01 * g / (np.abs(g) + 1e-5)  # both moments of one gradient, without their bias
        assert after == pytest.approx(expected, abs=1e-6)


def test_gradient_is_clipped_to_its_norm():
    def step(clip):
        config = dict(make_policy().config.items()) | {"optimizer": {"name": "sgd"}, "grad_clip": clip, "lr": 1.0}
        policy = PPOPolicy(VECTOR, spaces.Discrete(3), config)
        before = policy.get_weights()
        stats = policy.learn_on_batch(make_batch(policy))
        moved = np.concatenate([(policy.get_weights()[name] - before[name]).ravel() for name in before])
        return float(np.linalg.norm(moved)), stats["grad_gnorm"]

    moved, norm = step(0.01)
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert norm > 0.1  # reported before clipping
    moved, norm = step(None)
    assert moved == pytest.approx(norm, rel=1e-3)
    assert step(1e6)[0] == pytest.approx(norm, rel=1e-3)


def test_gradients_computed_and_applied_equal_learning():
    a, b = make_policy(grad_clip=0.1), make_policy(grad_clip=0.1)
    batch = make_batch(a)
    for _ in range(3):
        a.learn_on_batch(batch)
        gradients, stats = b.compute_gradients(batch)
        b.apply_gradients(gradients)
    assert stats["grad_gnorm"] > 0.1
    assert set(gradients) == set(b.get_weights())
    for name, weight in a.get_weights().items():
        assert weight == pytest.approx(b.get_weights()[name], abs=1e-6)


def test_gradients_of_other_weights_are_refused():
    policy = make_policy()
    with pytest.raises(ConfigError, match="apply_gradients"):
        policy.apply_gradients({"policy/out/bias": np.zeros(3, np.float32)})


def test_rows_without_weight_in_the_mask_do_not_matter():
    policy, other = make_policy(), make_policy()
    batch = make_batch(policy, 40)
    batch["mask"] = np.arange(40) % 3 > 0
    spoiled = {name: column.copy() for name, column in batch.items()}
    for name in ("advantages", "value_targets", "action_logp", "vf_preds"):
        spoiled[name][~batch["mask"]] = np.nan
    policy.learn_on_batch(batch)
    other.learn_on_batch(spoiled)
    assert weights_equal(policy.get_weights(), other.get_weights())


def test_columns_of_other_types_and_layouts():
    policy, other = make_policy(), make_policy()
    batch = make_batch(policy, 40)
    odd = {name: np.asfortranarray(np.stack([column, column], 1))[:, 0] for name, column in batch.items()}
    odd = {
        name: column.astype(np.float64) if column.dtype.kind == "f" else column.astype(np.int32)
        for name, column in odd.items()
    }
    for column in odd.values():
        column.flags.writeable = False
    odd["infos"] = np.array([{}] * 40, dtype=object)
    policy.learn_on_batch(batch, 2, 10)
    other.learn_on_batch(odd, 2, 10)
    assert weights_equal(policy.get_weights(), other.get_weights())


def test_without_a_critic():
    policy = make_policy(use_critic=False, use_gae=False, batch_mode="complete_episodes")
    batch = make_batch(policy)
    del batch["vf_preds"], batch["value_targets"]
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch, 2, 16)
    after = policy.get_weights()
    assert stats["vf_loss"] == 0
    assert np.array_equal(before["value/out/kernel"], after["value/out/kernel"])
    assert not np.array_equal(before["policy/out/kernel"], after["policy/out/kernel"])


def test_a_missing_column_is_named():
    policy = make_policy()
    batch = make_batch(policy)
    del batch["advantages"]
    with pytest.raises(KeyError, match="no column 'advantages'"):
        policy.learn_on_batch(batch)


# Bad updates.


def spoil(batch, **columns):
    return batch | {name: np.full_like(batch[name], value) for name, value in columns.items()}


BAD = [
    {"advantages": np.nan},
    {"advantages": np.inf},
    {"value_targets": 1e30},
    {"value_targets": 1e20},
    {"action_logp": np.nan},
]


@pytest.mark.parametrize("columns", BAD, ids=str)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_bad_updates_change_nothing_and_are_counted(columns, late):
    policy = make_policy()
    policy.learner._check_late = late
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


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_one_bad_row_spoils_only_its_minibatch(late):
    policy = make_policy()
    policy.learner._check_late = late
    batch = make_batch(policy)
    batch["value_targets"][5] = 1e30
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch, 2, 16)
    assert policy.num_bad_updates == 2
    assert all(np.isfinite(value) for value in stats.values())
    assert not weights_equal(before, policy.get_weights())
    assert all(np.isfinite(weight).all() for weight in policy.get_weights().values())


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_checking_late_trains_the_same(late):
    policy, other = make_policy(grad_clip=0.1), make_policy(grad_clip=0.1)
    other.learner._check_late = late
    batch = make_batch(policy)
    a, b = policy.learn_on_batch(batch, 2, 16), other.learn_on_batch(batch, 2, 16)
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    for name, weight in policy.get_weights().items():
        assert weight == pytest.approx(other.get_weights()[name], abs=1e-6)


def test_too_many_bad_updates_in_a_row_stop_with_the_last_good_weights():
    policy = make_policy(max_bad_updates_in_a_row=3)
    batch = make_batch(policy)
    policy.learn_on_batch(batch)
    before = policy.get_weights()
    bad = spoil(batch, advantages=np.nan)
    policy.learn_on_batch(bad)
    policy.learn_on_batch(bad)
    with pytest.raises(TrainingError, match="3 updates in a row.*last good"):
        policy.learn_on_batch(bad)
    assert weights_equal(before, policy.get_weights())


def test_a_bad_gradient_is_not_applied():
    policy = make_policy()
    before = policy.get_weights()
    gradients = {name: np.full_like(weight, np.nan) for name, weight in before.items()}
    policy.apply_gradients(gradients)
    assert policy.num_bad_updates == 1
    assert weights_equal(before, policy.get_weights())


# Weights and state.


def test_every_mismatch_of_weights_is_in_one_error_and_nothing_is_taken():
    policy = make_policy()
    before = policy.get_weights()
    weights = {**{n: w + 1 for n, w in before.items()}, "policy/out/kernel": np.zeros((2, 2)), "more": np.zeros(1)}
    del weights["value/out/bias"]
    with pytest.raises(CheckpointError) as error:
        policy.set_weights(weights)
    for part in ("policy/out/kernel: expected shape (64, 3), got (2, 2)", "value/out/bias: missing", "more: not part"):
        assert part in str(error.value)
    assert weights_equal(before, policy.get_weights())


def test_weights_that_fit_are_taken_when_not_strict():
    policy = make_policy()
    before = policy.get_weights()
    kept = policy.set_weights({"policy/out/bias": np.ones(3), "value/out/bias": np.ones(5)}, strict=False)
    assert len(kept) == len(before) - 1
    assert (policy.get_weights()["policy/out/bias"] == 1).all()
    assert np.array_equal(policy.get_weights()["value/out/bias"], before["value/out/bias"])


def test_nan_weights_are_refused():
    policy = make_policy()
    weights = policy.get_weights()
    weights["policy/dense_0/kernel"][0, 0] = np.nan
    with pytest.raises(CheckpointError, match="NaN"):
        policy.set_weights(weights)


def test_weights_are_copies():
    policy = make_policy()
    weights = policy.get_weights()
    weights["policy/out/bias"][:] = 5
    assert not policy.get_weights()["policy/out/bias"].any()
    policy.set_weights(weights)
    weights["policy/out/bias"][:] = 7
    assert (policy.get_weights()["policy/out/bias"] == 5).all()


def test_state_of_another_optimizer_is_refused_whole():
    policy = make_policy()
    policy.learn_on_batch(make_batch(policy))
    state = copy.deepcopy(policy.get_state())
    state["optimizer"]["name"] = "sgd"
    state["weights"] = {name: weight + 1 for name, weight in state["weights"].items()}
    before = policy.get_weights()
    with pytest.raises(CheckpointError, match="optimizer 'sgd'"):
        policy.set_state(state)
    assert weights_equal(before, policy.get_weights())


def test_schedules_move_with_the_timestep():
    policy = make_policy(
        lr_schedule={"type": "linear", "start": 1e-3, "end": 0.0, "timesteps": 100},
        entropy_coeff_schedule=[[0, 0.1], [100, 0.0]], kl_coeff=0.2,
    )  # fmt: skip
    seen = []
    for timestep in (0, 50, 100, 1000):
        policy.on_global_var_update({"timestep": timestep})
        stats = policy.learn_on_batch(make_batch(policy))
        seen.append((stats["cur_lr"], stats["entropy_coeff"], stats["cur_kl_coeff"]))
    assert seen == [pytest.approx(x) for x in [(1e-3, 0.1, 0.2), (5e-4, 0.05, 0.2), (0.0, 0.0, 0.2), (0.0, 0.0, 0.2)]]


# Choices.


def test_unknown_framework():
    with pytest.raises(ConfigError, match="framework: must be one of"):
        build_policy("Nothing", loss=lambda: None, framework="caffe")


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


@pytest.mark.parametrize("num_sgd_iter", [2, 9])  # fewer and more updates than may be bad in a row
def test_a_huge_step_leaves_the_last_good_weights(num_sgd_iter):
    policy = make_policy(lr=1e38)
    before = policy.get_weights()
    with pytest.raises(TrainingError):
        for _ in range(3):
            policy.learn_on_batch(make_batch(policy), num_sgd_iter, 16)
    assert all(np.isfinite(weight).all() for weight in policy.get_weights().values())
    assert before.keys() == policy.get_weights().keys()


def test_threads_are_limited_in_torch_and_in_numpy():
    from threadpoolctl import threadpool_info

    make_policy(num_threads=1)
    assert torch.get_num_threads() == 1
    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
