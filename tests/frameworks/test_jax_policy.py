"""What only JAX's policy has to show: nothing compiles twice, pytrees are models, all networks learn as in torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")

from headwater.errors import CheckpointError, ConfigError  # noqa: E402
from headwater.frameworks.jax import JAX_OPS, threads  # noqa: E402
from headwater.frameworks.jax.loop_ops import JAX_LOOP_OPS  # noqa: E402
from headwater.frameworks.jax.networks import ActingInJax  # noqa: E402
from headwater.frameworks.jax.phase import Phase  # noqa: E402
from headwater.frameworks.jax.plan import Filling, Planner  # noqa: E402
from headwater.policy.policy_template import build_policy  # noqa: E402
from tests.algorithms.made_up import awr_loss  # noqa: E402
from tests.frameworks.policies import make_batch, make_obs, make_policy, weights_equal  # noqa: E402

IMAGES = spaces.Box(0, 255, (10, 10, 3), np.uint8)


def assert_close(policy, torchs, atol=1e-5):
    for name, weight in torchs.get_weights().items():
        np.testing.assert_allclose(policy.get_weights()[name], weight, rtol=1e-4, atol=atol, err_msg=name)


# Compilation.


def test_shorter_batches_and_other_coefficients_compile_nothing_new():
    policy = make_policy(framework="jax", kl_coeff=0.2)
    batch = make_batch(policy, 1024)
    for rows, kl_coeff, lr in ((1024, 0.2, 5e-4), (1024, 0.3, 1e-4), (1023, 0.1, 1e-4), (1017, 0.45, 1e-3)):
        policy.coefficients["kl_coeff"] = kl_coeff
        policy.config.lr = lr
        policy.learn_on_batch({name: column[:rows] for name, column in batch.items()}, 2, 256)
    assert policy.learner._phase.run._cache_size() == 2  # with minibatches filled up, and without


def test_a_coefficient_of_zero_is_left_out_of_the_code():
    policy = make_policy(framework="jax", kl_coeff=0.2, entropy_coeff=0.0)
    batch = make_batch(policy)
    for kl_coeff in (0.2, 0.0, 0.1):
        policy.coefficients["kl_coeff"] = kl_coeff
        policy.learn_on_batch(batch, 1, 16)
    assert policy.learner._phase.run._cache_size() == 2


def test_without_compilation_the_numbers_are_the_same():
    policies = [make_policy(framework="jax", compile=choice, kl_coeff=0.2) for choice in ("auto", False)]
    batch = make_batch(policies[0], 9)
    first, second = (policy.learn_on_batch(batch, 1, 4) for policy in policies)
    assert first == pytest.approx(second, abs=1e-5)
    assert_close(*policies, atol=1e-6)


@pytest.mark.parametrize(("rows", "filling"), [(64, Filling.NONE), (63, Filling.SHORTER), (61, Filling.SHORTER)])
def test_losses_that_read_no_mask_get_minibatches_of_their_own_size(rows, filling):
    policies = []
    for framework in ("torch", "jax"):
        cls = build_policy("AWRPolicy", framework=framework, loss=awr_loss, coefficients=["temperature"])
        config = {**make_policy().config, "temperature": 0.7, "framework": framework}
        policies.append(cls(spaces.Box(-1, 1, (4,)), spaces.Discrete(3), config))
    torchs, policy = policies
    batch = make_batch(torchs, 64)
    seen = []
    plan = Planner.plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "plan", lambda *args: seen.append(plan(*args)) or seen[-1])
        for count in (64, rows):
            part = {name: column[:count] for name, column in batch.items()}
            expected, got = torchs.learn_on_batch(part, 2, 16), policy.learn_on_batch(part, 2, 16)
    assert seen[-1].filling is filling
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_close(policy, torchs)


def test_a_plan_has_every_row_once_an_epoch():
    planner, rng = Planner(), np.random.default_rng(0)
    for rows, bounds in ((10, [(0, 5), (5, 10)]), (9, [(0, 5), (5, 9)]), (7, [(0, 4), (4, 7)]), (31, [(0, 31)])):
        orders = np.stack([rng.permutation(rows) for _ in range(3)])
        plan = planner.plan({"obs": np.zeros((rows, 2))}, orders, bounds, lambda: True)
        assert plan.num_updates == 3 * len(bounds)
        taken = [plan.places[i, : plan.sizes[i]] for i in range(plan.num_updates)]
        assert np.array_equal(np.concatenate(taken), orders.ravel())
        assert (plan.filling is Filling.NONE) == (set(plan.sizes[: plan.num_updates]) == {plan.places.shape[1]})
        assert len(plan.columns["obs"]) >= rows and len(plan.places) >= plan.num_updates


# Networks: torch's numbers in each.


def sequences(policy: Any, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Sequences [count, 5, ...] of 1 to 5 real steps."""
    rng = np.random.default_rng(seed)
    mask = np.arange(5) < rng.integers(1, 6, count)[:, None]
    batch = make_batch_of(policy, rng, (count, 5))
    batch["state_in"] = rng.normal(size=(count, policy.state_size)).astype(np.float32) * 0.3
    batch["mask"] = mask
    return batch


def make_batch_of(policy: Any, rng: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    floats = {"action_logp": (), "vf_preds": (), "advantages": (), "value_targets": (), "action_dist_inputs": (3,)}
    batch = {name: rng.normal(size=(*shape, *rest)).astype(np.float32) for name, rest in floats.items()}
    batch["action_logp"] = -np.abs(batch["action_logp"])
    batch["actions"] = rng.integers(0, 3, shape)
    batch["obs"] = rng.normal(size=(*shape, *policy.observation_space.shape)).astype(np.float32)
    return batch


@pytest.mark.parametrize("memory", ["lstm", "gru", "attention"])
def test_networks_with_memory_learn_as_in_torch(memory):
    settings = {"kl_coeff": 0.2, "entropy_coeff": 0.01, "model": {"memory": memory, "memory_size": 8, "max_seq_len": 5}}
    torchs, policy = make_policy(**settings), make_policy(framework="jax", **settings)
    for count in (8, 7):
        batch = sequences(torchs, count, count)
        expected, got = torchs.learn_on_batch(batch, 2, 6), policy.learn_on_batch(batch, 2, 6)
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert_close(policy, torchs, atol=1e-4)


@pytest.mark.parametrize("rows", [32, 31])
def test_convolutions_learn_as_in_torch(rows):
    model = {"conv_filters": [[4, 3, 2], [8, 3, 1]], "post_fcnet_hiddens": [16], "fcnet_activation": "elu"}
    settings = {"obs_space": IMAGES, "model": model, "kl_coeff": 0.2}
    torchs, policy = make_policy(**settings), make_policy(framework="jax", **settings)
    assert isinstance(policy.acting_network, ActingInJax)
    batch = make_batch(torchs, rows)
    expected, got = torchs.learn_on_batch(batch, 2, 16), policy.learn_on_batch(batch, 2, 16)
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert_close(policy, torchs, atol=5e-5)
    assert policy.values(batch["obs"]) == pytest.approx(torchs.values(batch["obs"]), abs=1e-3)


def test_acting_compiles_for_powers_of_two():
    policy = make_policy(framework="jax", acting="framework")
    for rows in (1, 5, 6, 7, 8):
        assert policy.act(make_obs(policy.observation_space, rows), np.random.default_rng(0)).dist_inputs.shape == (
            rows,
            3,
        )
    assert policy.acting_network._dist_inputs._cache_size() == 2
    assert policy.values(make_obs(policy.observation_space, 2500)).shape == (2500,)


def test_acting_with_memory_in_jax_as_in_numpy():
    settings = {"framework": "jax", "model": {"memory": "gru", "memory_size": 8}}
    a, b = (make_policy(acting=acting, **settings) for acting in ("framework", "numpy"))
    obs, state = make_obs(a.observation_space, 3), np.zeros((3, a.state_size), np.float32)
    for _ in range(3):
        x, y = (policy.act(obs, None, explore=False, state=state) for policy in (a, b))
        for name in ("dist_inputs", "state", "values"):
            np.testing.assert_allclose(getattr(x, name), getattr(y, name), rtol=1e-4, atol=1e-5)
        state = x.state


# Models of the user's own.


class Flax(nn.Module):
    obs_space: Any
    action_space: Any
    num_outputs: int
    model_config: Any
    width: int = 16

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(self.width)(obs))
        return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)


class Plain:
    """Parameters are a pytree of lists and dicts."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name, width=16):
        self.shapes = [(obs_space.shape[0], width), (width, num_outputs + 1)]

    def init(self, key, obs):
        keys = jax.random.split(key, 2)
        return [{"w": jax.random.normal(k, s) * 0.3} for k, s in zip(keys, self.shapes, strict=True)]

    def apply(self, parameters, obs):
        outputs = jax.numpy.tanh(obs @ parameters[0]["w"]) @ parameters[1]["w"]
        return outputs[:, :-1], outputs[:, -1]


class WrongOutputs(Plain):
    def apply(self, parameters, obs):
        dist_inputs, values = super().apply(parameters, obs)
        return dist_inputs[:, 1:], values


class WrongValues(Plain):
    def apply(self, parameters, obs):
        dist_inputs, values = super().apply(parameters, obs)
        return dist_inputs, values[1:]


class OneArray(Plain):
    def apply(self, parameters, obs):
        return super().apply(parameters, obs)[0]


class Integers(Plain):
    def init(self, key, obs):
        return {"count": jax.numpy.zeros(3, int)}


class Empty(Plain):
    def init(self, key, obs):
        return {}


class NoModel:
    def __init__(self, *args, **kwargs):
        pass


class OtherArguments:
    def __init__(self, width):
        pass


def custom(model, seed=1, **config):
    return make_policy(
        framework="jax", seed=seed, lr=1e-2, model={"custom_model": model, "custom_model_config": config}
    )


@pytest.mark.parametrize(("model", "weight"), [(Flax, "model/params/Dense_0/kernel"), (Plain, "model/0/w")])
def test_custom_models_learn_and_restore(model, weight):
    policy, other = custom(model, width=12), custom(model, seed=2, width=12)
    assert policy.get_weights()[weight].shape == (4, 12)
    assert not weights_equal(policy.get_weights(), other.get_weights())
    assert weights_equal(policy.get_weights(), custom(model, width=12).get_weights())
    batch = make_batch(policy, 128)
    batch["value_targets"] = batch["obs"][:, 0].copy()
    first = policy.learn_on_batch(batch)
    for _ in range(5):
        last = policy.learn_on_batch(batch, 4, 32)
    assert last["vf_loss"] < 0.7 * first["vf_loss"]
    other.set_state(policy.get_state())
    for p in (policy, other):
        p.learn_on_batch(batch, 1, 32)
    assert weights_equal(policy.get_weights(), other.get_weights())
    with pytest.raises(CheckpointError, match="expected shape"):
        custom(model, width=8).set_weights(policy.get_weights())


@pytest.mark.parametrize(("model", "message"), [
    (WrongOutputs, r"WrongOutputs.*\(2, 3\), but have \(2, 2\)"),
    (WrongValues, r"WrongValues.*\(2,\), but have \(1,\)"),
    (OneArray, r"OneArray.*one tensor of shape \(2, 3\)"),
    (Integers, "Integers: parameters must be floating arrays, but model/count"),
    (Empty, "Empty has no parameters"),
    (NoModel, "NoModel: a model for jax has the methods init"),
    (OtherArguments, "obs_space, action_space, num_outputs, model_config, name"),
])  # fmt: skip
def test_wrong_models_are_named(model, message):
    with pytest.raises(ConfigError, match=message):
        custom(model)


def test_a_custom_model_with_memory_is_refused():
    with pytest.raises(ConfigError, match="custom_model has no memory in jax"):
        make_policy(framework="jax", model={"custom_model": Plain, "memory": "lstm"})


# The machine.


def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match="device: 'cuda:7' is not there; JAX sees 0 GPUs"):
        make_policy(framework="jax", device="cuda:7")


def test_threads_are_limited_while_jax_starts_unless_the_user_has_said_how_many(monkeypatch):
    seen = []
    monkeypatch.setattr(jax, "devices", lambda: seen.append(os.environ.get("PJRT_NPROC")))
    for name in ("PJRT_NPROC", "NPROC"):
        monkeypatch.delenv(name, raising=False)
    threads.limit_threads(3)
    assert seen == ["3"] and "PJRT_NPROC" not in os.environ
    monkeypatch.setenv("NPROC", "2")
    threads.limit_threads(3)
    assert seen == ["3"]


@pytest.mark.parametrize(("size", "kernel", "stride"), [
    ((9, 9), (3, 3), (1, 1)), ((10, 11), (4, 3), (2, 1)), ((11, 10), (5, 4), (2, 3)), ((8, 8), (8, 8), (4, 4)),
    ((7, 9), (2, 2), (3, 4)),
])  # fmt: skip
def test_convolutions_as_products_give_the_same_with_their_gradients(size, kernel, stride):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((3, *size, 2), (5, *kernel, 2), (5,))]
    results = []
    for ops in (JAX_OPS, JAX_LOOP_OPS):
        value, pull = jax.vjp(lambda *a, ops=ops: ops.conv(*a, stride), *arrays)
        results.append([value, *pull(jax.numpy.cos(value))])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


class FlaxConvolutions(Flax):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Conv(4, (3, 3), (2, 2))(obs / 255.0)).reshape(len(obs), -1)
        return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)


def test_a_custom_model_with_convolutions_is_updated_from_the_host_with_the_same_numbers():
    def make():
        return make_policy(IMAGES, framework="jax", kl_coeff=0.2, model={"custom_model": FlaxConvolutions})

    by_updates, in_one_call = make(), make()
    in_one_call.learner._phase = Phase(in_one_call.learner._update, in_one_call=True)
    assert not hasattr(by_updates.learner._phase.run, "_cache_size")
    batch = make_batch(by_updates, 31)
    expected, got = (policy.learn_on_batch(batch, 2, 8) for policy in (in_one_call, by_updates))
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_close(by_updates, in_one_call)
