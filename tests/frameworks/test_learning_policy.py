"""What a policy learns, keeps and refuses, whatever framework learns; and that frameworks go on from each other."""

import copy
import functools

import numpy as np
import pytest

from headwater.errors import CheckpointError, ConfigError, TrainingError
from tests.frameworks.policies import (
    ACTION_SPACES,
    BAD_COLUMNS,
    FRAMEWORKS,
    make_batch,
    make_policy,
    same_state,
    spoil,
    weights_equal,
)


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    return request.param


@pytest.fixture
def make(framework):
    return functools.partial(make_policy, framework=framework)


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_learning_makes_good_actions_likelier(make, name):
    policy = make(action_space=ACTION_SPACES[name], lr=3e-3)
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


def test_the_first_ratio_is_one(make):
    policy = make(action_space=ACTION_SPACES["nested"], entropy_coeff=0.0)
    batch = make_batch(policy, 100)
    _, stats = policy.compute_gradients(batch)
    assert stats["kl"] == pytest.approx(0.0, abs=1e-6)
    assert stats["policy_loss"] == pytest.approx(-batch["advantages"].mean(), abs=1e-5)


def test_statistics(make):
    policy = make(kl_coeff=0.3, entropy_coeff=0.01, lr=5e-4)
    stats = policy.learn_on_batch(make_batch(policy), 2, 16)
    expected = {"total_loss", "policy_loss", "vf_loss", "vf_explained_var", "kl", "entropy", "grad_gnorm"}
    assert expected | {"cur_lr", "cur_kl_coeff", "entropy_coeff", "num_bad_updates"} == set(stats)
    assert all(isinstance(value, float | int) for value in stats.values())
    assert stats["cur_lr"] == 5e-4
    assert stats["cur_kl_coeff"] == 0.3


def test_statistics_are_of_the_last_epoch(make):
    policy = make(lr=0.0)
    batch = make_batch(policy)
    stats = policy.learn_on_batch(batch, 3, 16)
    whole = policy.compute_gradients(batch)[1]
    assert stats["policy_loss"] == pytest.approx(whole["policy_loss"], abs=1e-5)
    assert stats["vf_loss"] == pytest.approx(whole["vf_loss"], abs=1e-5)


def test_same_seed_same_weights_and_another_seed_others(make):
    a, b, c = make(seed=1), make(seed=1), make(seed=2)
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
def test_continues_bit_for_bit(make, settings, optimizer):
    def fresh(seed):
        policy = make(
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


def test_state_before_the_first_update_restores(make):
    policy, other = make(seed=1), make(seed=2)
    other.learn_on_batch(make_batch(other), 1, 16)
    other.set_state(policy.get_state())
    batch = make_batch(policy)
    for p in (policy, other):
        p.learn_on_batch(batch, 2, 16)
    assert weights_equal(policy.get_weights(), other.get_weights())


def test_a_restored_policy_takes_its_learning_rate_from_its_own_config(make):
    policy, other = make(lr=1e-3), make(lr=7e-5)
    policy.learn_on_batch(make_batch(policy))
    other.set_state(policy.get_state())
    assert other.learn_on_batch(make_batch(other))["cur_lr"] == 7e-5


def test_acting_draws_continue(make):
    policy, other = make(), make(seed=5)
    obs = make_batch(policy)["obs"]
    other.set_state(policy.get_state())
    assert np.array_equal(policy.compute_actions(obs)[0], other.compute_actions(obs)[0])


@pytest.mark.parametrize("optimizer", [
    {"name": "sgd", "momentum": 0.9}, {"name": "rmsprop", "alpha": 0.9}, {"name": "adam", "eps": 1e-6, "beta2": 0.99},
])  # fmt: skip
def test_optimizers(make, optimizer):
    policies = [make(optimizer=optimizer) for _ in range(2)]
    before = policies[0].get_weights()
    batch = make_batch(policies[0])
    policies[0].learn_on_batch(batch, 2, 16)
    policies[1].set_state(policies[0].get_state())
    for policy in policies:
        policy.learn_on_batch(batch, 1, 16)
    assert weights_equal(policies[0].get_weights(), policies[1].get_weights())
    assert not weights_equal(before, policies[0].get_weights())


def test_adam_is_adam(make):
    """One update against the formula (Kingma and Ba 2015), in float64."""
    policy = make(lr=0.01, grad_clip=None, optimizer={"name": "adam", "eps": 1e-5})
    batch = make_batch(policy)
    gradients, _ = policy.compute_gradients(batch)
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    for name, after in policy.get_weights().items():
        g = gradients[name].astype(np.float64)
        expected = before[name] - 0.01 * g / (np.abs(g) + 1e-5)  # both moments of one gradient, without their bias
        assert after == pytest.approx(expected, abs=1e-6)


def test_gradient_is_clipped_to_its_norm(make):
    def step(clip):
        policy = make(optimizer={"name": "sgd"}, grad_clip=clip, lr=1.0)
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


def test_gradients_computed_and_applied_equal_learning(make):
    a, b = make(grad_clip=0.1), make(grad_clip=0.1)
    batch = make_batch(a)
    for _ in range(3):
        a.learn_on_batch(batch)
        gradients, stats = b.compute_gradients(batch)
        b.apply_gradients(gradients)
    assert stats["grad_gnorm"] > 0.1
    assert set(gradients) == set(b.get_weights())
    for name, weight in a.get_weights().items():
        assert weight == pytest.approx(b.get_weights()[name], abs=1e-6)


def test_gradients_of_other_weights_are_refused(make):
    policy = make()
    with pytest.raises(ConfigError, match="apply_gradients"):
        policy.apply_gradients({"policy/out/bias": np.zeros(3, np.float32)})


def test_rows_without_weight_in_the_mask_do_not_matter(make):
    policy, other = make(), make()
    batch = make_batch(policy, 40)
    batch["mask"] = np.arange(40) % 3 > 0
    spoiled = {name: column.copy() for name, column in batch.items()}
    for name in ("advantages", "value_targets", "action_logp", "vf_preds"):
        spoiled[name][~batch["mask"]] = np.nan
    policy.learn_on_batch(batch)
    other.learn_on_batch(spoiled)
    assert weights_equal(policy.get_weights(), other.get_weights())


def test_columns_of_other_types_and_layouts(make):
    policy, other = make(), make()
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


def test_without_a_critic(make):
    policy = make(use_critic=False, use_gae=False, batch_mode="complete_episodes")
    batch = make_batch(policy)
    del batch["vf_preds"], batch["value_targets"]
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch, 2, 16)
    after = policy.get_weights()
    assert stats["vf_loss"] == 0
    assert np.array_equal(before["value/out/kernel"], after["value/out/kernel"])
    assert not np.array_equal(before["policy/out/kernel"], after["policy/out/kernel"])


def test_a_missing_column_is_named(make):
    policy = make()
    batch = make_batch(policy)
    del batch["advantages"]
    with pytest.raises(KeyError, match="no column 'advantages'"):
        policy.learn_on_batch(batch)


# Bad updates.


@pytest.mark.parametrize("columns", BAD_COLUMNS, ids=str)
def test_bad_updates_change_nothing_and_are_counted(make, columns):
    policy = make()
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


def test_one_bad_row_spoils_only_its_minibatch(make):
    policy = make()
    batch = make_batch(policy)
    batch["value_targets"][5] = 1e30
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch, 2, 16)
    assert policy.num_bad_updates == 2
    assert all(np.isfinite(value) for value in stats.values())
    assert not weights_equal(before, policy.get_weights())
    assert all(np.isfinite(weight).all() for weight in policy.get_weights().values())


def test_too_many_bad_updates_in_a_row_stop_with_the_last_good_weights(make):
    policy = make(max_bad_updates_in_a_row=3)
    batch = make_batch(policy)
    policy.learn_on_batch(batch)
    before = policy.get_weights()
    bad = spoil(batch, advantages=np.nan)
    policy.learn_on_batch(bad)
    policy.learn_on_batch(bad)
    with pytest.raises(TrainingError, match="3 updates in a row.*last good"):
        policy.learn_on_batch(bad)
    assert weights_equal(before, policy.get_weights())


def test_a_bad_gradient_is_not_applied(make):
    policy = make()
    before = policy.get_weights()
    gradients = {name: np.full_like(weight, np.nan) for name, weight in before.items()}
    policy.apply_gradients(gradients)
    assert policy.num_bad_updates == 1
    assert weights_equal(before, policy.get_weights())


# Weights and state.


def test_every_mismatch_of_weights_is_in_one_error_and_nothing_is_taken(make):
    policy = make()
    before = policy.get_weights()
    weights = {**{n: w + 1 for n, w in before.items()}, "policy/out/kernel": np.zeros((2, 2)), "more": np.zeros(1)}
    del weights["value/out/bias"]
    with pytest.raises(CheckpointError) as error:
        policy.set_weights(weights)
    for part in ("policy/out/kernel: expected shape (64, 3), got (2, 2)", "value/out/bias: missing", "more: not part"):
        assert part in str(error.value)
    assert weights_equal(before, policy.get_weights())


def test_weights_that_fit_are_taken_when_not_strict(make):
    policy = make()
    before = policy.get_weights()
    kept = policy.set_weights({"policy/out/bias": np.ones(3), "value/out/bias": np.ones(5)}, strict=False)
    assert len(kept) == len(before) - 1
    assert (policy.get_weights()["policy/out/bias"] == 1).all()
    assert np.array_equal(policy.get_weights()["value/out/bias"], before["value/out/bias"])


def test_nan_weights_are_refused(make):
    policy = make()
    weights = policy.get_weights()
    weights["policy/dense_0/kernel"][0, 0] = np.nan
    with pytest.raises(CheckpointError, match="NaN"):
        policy.set_weights(weights)


def test_weights_are_copies(make):
    policy = make()
    weights = policy.get_weights()
    weights["policy/out/bias"][:] = 5
    assert not policy.get_weights()["policy/out/bias"].any()
    policy.set_weights(weights)
    weights["policy/out/bias"][:] = 7
    assert (policy.get_weights()["policy/out/bias"] == 5).all()


def test_state_of_another_optimizer_is_refused_whole(make):
    policy = make()
    policy.learn_on_batch(make_batch(policy))
    state = copy.deepcopy(policy.get_state())
    state["optimizer"]["name"] = "sgd"
    state["weights"] = {name: weight + 1 for name, weight in state["weights"].items()}
    before = policy.get_weights()
    with pytest.raises(CheckpointError, match="optimizer 'sgd'"):
        policy.set_state(state)
    assert weights_equal(before, policy.get_weights())


def test_schedules_follow_the_timestep(make):
    """Case S3: the same numbers in every framework, the last one beyond the end."""
    points = [[0, 1.0], [100, 0.1]]
    policy = make(lr_schedule=points, entropy_coeff_schedule=points, kl_coeff=0.2, optimizer={"name": "sgd"})
    batch = make_batch(policy)
    for timestep, value in ((0, 1.0), (50, 0.55), (100, 0.1), (1000, 0.1)):
        policy.on_global_var_update({"timestep": timestep})
        before = policy.get_weights()
        gradients, stats = policy.compute_gradients(batch)
        assert (stats["cur_lr"], stats["entropy_coeff"], stats["cur_kl_coeff"]) == pytest.approx((value, value, 0.2))
        parts = stats["policy_loss"] + 0.5 * stats["vf_loss"] + 0.2 * stats["kl"] - value * stats["entropy"]
        assert stats["total_loss"] == pytest.approx(parts, abs=1e-5)
        scale = min(1.0, 0.5 / stats["grad_gnorm"])
        stats = policy.learn_on_batch(batch)
        assert stats["cur_lr"] == pytest.approx(value)
        name = "policy/out/kernel"
        moved = policy.get_weights()[name] - before[name]
        assert moved == pytest.approx(-value * scale * gradients[name], abs=1e-6)


@pytest.mark.parametrize(("schedule", "expected"), [
    ([[0, 1.0], [100, 0.0]], [1.0, 0.75, 0.5, 0.0, 0.0]),
    ({"type": "linear", "start": 1.0, "end": 0.2, "timesteps": 100}, [1.0, 0.8, 0.6, 0.2, 0.2]),
    ({"type": "cosine", "start": 1.0, "end": 0.0, "timesteps": 100}, [1.0, 0.853553, 0.5, 0.0, 0.0]),
])  # fmt: skip
def test_forms_of_schedules(make, schedule, expected):
    policy = make(entropy_coeff_schedule=schedule, lr=0.0)
    batch = make_batch(policy)
    losses = []
    for timestep in (0, 25, 50, 100, 10_000):
        policy.on_global_var_update({"timestep": timestep})
        stats = policy.learn_on_batch(batch)
        losses.append(stats["policy_loss"] + 0.5 * stats["vf_loss"] - stats["total_loss"])
    assert losses == pytest.approx([x * stats["entropy"] for x in expected], abs=1e-5)


# Choices.


@pytest.mark.parametrize("num_sgd_iter", [2, 9])  # fewer and more updates than may be bad in a row
def test_a_huge_step_leaves_the_last_good_weights(make, num_sgd_iter):
    policy = make(lr=1e38)
    before = policy.get_weights()
    with pytest.raises(TrainingError):
        for _ in range(3):
            policy.learn_on_batch(make_batch(policy), num_sgd_iter, 16)
    assert all(np.isfinite(weight).all() for weight in policy.get_weights().values())
    assert before.keys() == policy.get_weights().keys()


# One framework and another.


@pytest.mark.parametrize("space", ["discrete", "box"])
@pytest.mark.parametrize(
    "optimizer", [{"name": "adam"}, {"name": "sgd", "momentum": 0.9}, {"name": "rmsprop"}], ids=str
)
def test_one_phase_gives_torchs_weights(make, space, optimizer):
    settings = {"optimizer": optimizer, "kl_coeff": 0.2, "entropy_coeff": 0.01, "grad_clip": 0.3, "lr": 1e-3}
    torchs, policy = (
        make_policy(action_space=ACTION_SPACES[space], **settings),
        make(action_space=ACTION_SPACES[space], **settings),
    )
    assert weights_equal(torchs.get_weights(), policy.get_weights())
    batch = make_batch(torchs, 61)
    expected, stats = torchs.learn_on_batch(batch, 2, 16), policy.learn_on_batch(batch, 2, 16)
    assert stats == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name, weight in torchs.get_weights().items():
        assert policy.get_weights()[name] == pytest.approx(weight, abs=1e-5), name


@pytest.mark.parametrize(
    "optimizer", [{"name": "adam"}, {"name": "sgd", "momentum": 0.9}, {"name": "rmsprop"}], ids=str
)
@pytest.mark.parametrize("source", FRAMEWORKS)
def test_a_state_of_one_framework_goes_on_in_another(make, source, optimizer):
    settings = {"optimizer": optimizer, "kl_coeff": 0.2, "lr": 1e-3}
    first, second = make_policy(framework=source, **settings), make(seed=9, **settings)
    batch = make_batch(first, 64)
    first.learn_on_batch(batch, 2, 16)
    first.coefficients["kl_coeff"] = 0.3
    state = copy.deepcopy(first.get_state())
    second.set_state(state)
    assert same_state({**second.get_state(), "rng": None}, {**state, "rng": None})
    a, b = first.learn_on_batch(batch, 2, 16), second.learn_on_batch(batch, 2, 16)
    assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    for name, weight in first.get_weights().items():
        assert second.get_weights()[name] == pytest.approx(weight, abs=1e-5), name
    assert np.array_equal(first.compute_actions(batch["obs"])[0], second.compute_actions(batch["obs"])[0])


def test_a_moment_that_was_not_kept_starts_at_zero(make):
    plain, heavy = make(optimizer={"name": "sgd"}), make(optimizer={"name": "sgd", "momentum": 0.9})
    batch = make_batch(plain)
    plain.learn_on_batch(batch)
    heavy.set_state(plain.get_state())
    for policy in (plain, heavy):
        policy.learn_on_batch(batch)
    for name, weight in plain.get_weights().items():
        assert weight == pytest.approx(heavy.get_weights()[name], abs=1e-7)


def test_acting_sees_what_was_learned(make):
    for acting in ("numpy", "framework"):
        policy = make(acting=acting, lr=1e-2)
        batch = make_batch(policy)
        before = policy.values(batch["obs"])
        policy.learn_on_batch(batch, 2, 16)
        after = policy.values(batch["obs"])
        assert np.abs(after - before).max() > 1e-3
        policy.apply_gradients(policy.compute_gradients(batch)[0])
        assert not np.array_equal(policy.values(batch["obs"]), after)
        other = make(seed=5, acting=acting)
        other.set_weights(policy.get_weights())
        assert other.values(batch["obs"]) == pytest.approx(policy.values(batch["obs"]), abs=1e-6)


class Remembering:
    """A model of one's own that asks for a state."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        pass

    def initial_state(self):
        return [np.zeros(3, np.float32)]


@pytest.mark.parametrize("framework", ["tf2", "jax"])
def test_a_memory_of_ones_own_is_refused_where_there_is_none(framework):
    with pytest.raises(ConfigError, match=rf"Remembering: it has initial_state.*no memory in {framework}"):
        make_policy(framework=framework, model={"custom_model": Remembering})
