"""TensorFlow's policy: functions traced once, eager runs, torch's numbers in all networks."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("tensorflow")

from headwater.algorithms.ppo import PPOTrainer  # noqa: E402
from headwater.algorithms.ppo import ppo as ppo_module  # noqa: E402
from headwater.errors import ConfigError  # noqa: E402
from headwater.frameworks.tf import device  # noqa: E402
from headwater.frameworks.tf.networks import ActingInTF  # noqa: E402
from headwater.frameworks.tf.policy import TFPolicy  # noqa: E402
from headwater.frameworks.tf.tracing import Traced  # noqa: E402
from tests.frameworks.policies import make_batch, make_obs, make_policy, weights_equal  # noqa: E402

IMAGES = spaces.Box(0, 255, (10, 10, 3), np.uint8)
# Name -> observation space and settings of a network.
NETWORKS = {
    "mlp": (None, {}),
    "shared": (None, {"vf_share_layers": True, "fcnet_activation": "relu"}),
    "cnn": (IMAGES, {}),
    "lstm": (None, {"memory": "lstm", "memory_size": 8}),
    "gru": (None, {"memory": "gru", "memory_size": 8}),
    "attention": (None, {"memory": "attention", "memory_size": 8, "attention_heads": 2, "attention_window": 3}),
}


def tf_policy(**settings):
    return make_policy(framework="tf2", **settings)


def policy_and_batch(network, framework, rows, **settings):
    space, model = NETWORKS[network]
    settings = {"model": model, "framework": framework, "kl_coeff": 0.2, "entropy_coeff": 0.01, "lr": 1e-3, **settings}
    policy = make_policy(**settings) if space is None else make_policy(space, **settings)
    return policy, sequences(policy, rows // 5) if policy.state_size else make_batch(policy, rows)


def sequences(policy, count, steps=5, seed=0):
    """Sequences with padding at their ends."""
    rng = np.random.default_rng(seed)
    mask = np.arange(steps) < rng.integers(1, steps + 1, (count, 1))
    batch = {
        name: rng.normal(size=(count, steps, *shape)).astype(np.float32)
        for name, shape in {
            "obs": (4,), "action_dist_inputs": (3,), "vf_preds": (), "advantages": (), "value_targets": (),
        }.items()
    }  # fmt: skip
    batch["actions"] = rng.integers(0, 3, (count, steps))
    batch["action_logp"] = -np.abs(rng.normal(size=(count, steps))).astype(np.float32)
    state = rng.uniform(-0.5, 0.5, (count, policy.state_size)).astype(np.float32)
    if "attention" in next(iter(policy.state_shapes)):
        state[:] = 0  # its state counts what it remembers
    return {**batch, "state_in": state, "mask": mask}


@pytest.mark.parametrize("network", NETWORKS)
def test_one_phase_gives_torchs_weights_and_each_goes_on_from_the_other(network):
    torchs, batch = policy_and_batch(network, "torch", 60)
    ours, _ = policy_and_batch(network, "tf2", 60)
    assert weights_equal(torchs.get_weights(), ours.get_weights())
    for _ in range(2):
        expected, stats = torchs.learn_on_batch(batch, 2, 16), ours.learn_on_batch(batch, 2, 16)
        assert stats == pytest.approx(expected, rel=1e-4, abs=1e-5)
        for name, weight in torchs.get_weights().items():
            assert ours.get_weights()[name] == pytest.approx(weight, abs=1e-5), name
        torchs_state, our_state = copy.deepcopy(torchs.get_state()), copy.deepcopy(ours.get_state())
        torchs.set_state(our_state)
        ours.set_state(torchs_state)


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_neither_rows_nor_coefficients_nor_lr_trace_again(network):
    policy, batch = policy_and_batch(network, "tf2", 60, lr_schedule=[[0, 1e-3], [100, 1e-4]])
    for round_, rows in enumerate((12, 11, 10, 12) if policy.state_size else (60, 59, 64, 33)):
        part = {name: np.resize(column, (rows, *column.shape[1:])) for name, column in batch.items()}
        policy.coefficients["kl_coeff"] *= 1.5
        policy.on_global_var_update({"timestep": 20 * round_})
        stats = policy.learn_on_batch(part, 1 + round_, 16)
    assert stats["cur_lr"] < 1e-3
    assert policy.learner.phase.count == 1


def test_a_coefficient_that_comes_to_0_leaves_its_term_out():
    policy, batch = policy_and_batch("mlp", "tf2", 32)
    policy.learn_on_batch(batch, 1, 16)
    policy.coefficients["kl_coeff"] = 0.0
    policy.learn_on_batch(batch, 1, 16)
    policy.coefficients["kl_coeff"] = 0.1
    policy.learn_on_batch(batch, 1, 16)
    assert policy.learner.phase.count == 2


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_step_by_step_gives_the_same_numbers(network):
    traced, batch = policy_and_batch(network, "tf2", 40)
    eager, _ = policy_and_batch(network, "tf2", 40, compile=False)
    expected, stats = traced.learn_on_batch(batch, 2, 16), eager.learn_on_batch(batch, 2, 16)
    assert stats == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name, weight in traced.get_weights().items():
        assert eager.get_weights()[name] == pytest.approx(weight, abs=1e-5), name
    assert eager.learner.phase.count == 0


@pytest.mark.parametrize("network", NETWORKS)
def test_acting_in_tensorflow_equals_acting_in_numpy(network):
    in_tf, batch = policy_and_batch(network, "tf2", 40, acting="framework")
    in_numpy, _ = policy_and_batch(network, "tf2", 40, acting="numpy")
    assert isinstance(in_tf.acting_network, ActingInTF)
    in_tf.learn_on_batch(batch, 1, 16)
    in_numpy.set_weights(in_tf.get_weights())
    for rows in (1, 7):
        obs = make_obs(in_tf.observation_space, rows)
        state = np.zeros((rows, in_tf.state_size), np.float32) if in_tf.state_size else None
        for ours, theirs in zip(
            in_tf.acting_network.forward(obs, state), in_numpy.acting_network.forward(obs, state), strict=True
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert ours == pytest.approx(theirs, abs=1e-5)
        assert in_tf.values(obs, state) == pytest.approx(in_numpy.values(obs, state), abs=1e-5)
        if state is None:
            inputs = in_tf.acting_network.dist_inputs(obs)
            assert inputs == pytest.approx(in_numpy.acting_network.dist_inputs(obs), abs=1e-5)


def test_values_of_many_observations_are_computed_in_blocks():
    policy = tf_policy(acting="framework")
    obs = make_obs(policy.observation_space, 2100)
    values = policy.values(obs)
    assert values.shape == (2100,)
    assert values[-5:] == pytest.approx(policy.values(obs[-5:]), abs=1e-6)


def test_what_a_distribution_estimates_is_drawn_anew_in_each_update_and_continues():
    def fresh(seed):
        return tf_policy(
            seed=seed, action_space=spaces.Box(-1, 1, (2,)), model={"custom_action_dist": "SquashedGaussian"},
            entropy_coeff=0.01, lr=0.0,
        )  # fmt: skip

    policy, other = fresh(1), fresh(2)
    batch = make_batch(policy)
    entropies = [policy.learn_on_batch(batch)["entropy"] for _ in range(3)]
    assert len(set(entropies)) == 3
    other.set_state(copy.deepcopy(policy.get_state()))
    assert policy.learn_on_batch(batch)["entropy"] == other.learn_on_batch(batch)["entropy"]


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="device: 'cuda:7' is not there; TensorFlow sees"):
        tf_policy(device="cuda:7")


def test_threads_that_can_no_longer_be_set_are_warned_of_once(caplog):
    tf_policy()  # TensorFlow has computed
    device.prepare.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            device.prepare(17)
    assert caplog.text.count("num_threads: TensorFlow computed in this process before") == 1


def test_traced_functions_tell_apart_types_and_widths_but_not_rows():
    import tensorflow as tf

    total = Traced(lambda columns, static: {name: tf.reduce_sum(x) for name, x in columns.items() if name != static})
    for rows in (2, 3):
        assert total({"a": tf.ones((rows, 2))}, "b")["a"].numpy() == 2 * rows
    assert total.count == 1
    total({"a": tf.ones((2, 3))}, "b")
    total({"a": tf.ones((2, 3), tf.int64)}, "b")
    total({"c": tf.ones((2, 3))}, "b")
    total({"c": tf.ones((2, 3))}, "a")
    assert total.count == 5


def test_the_policy_of_ppo_has_its_name():
    assert ppo_module.PPOTFPolicy.__name__ == "PPOTFPolicy"
    assert issubclass(ppo_module.PPOTFPolicy, TFPolicy)


@pytest.mark.parametrize("framework", ["tf2", "tf"])
def test_a_trainer_trains_saves_and_goes_on(framework, tmp_path):
    config = {
        "env": "CartPole-v1", "framework": framework, "num_envs_per_worker": 4, "train_batch_size": 256,
        "sgd_minibatch_size": 64, "num_sgd_iter": 2, "seed": 1, "local_dir": str(tmp_path),
    }  # fmt: skip
    with PPOTrainer(config) as trainer:
        for _ in range(2):
            result = trainer.train()
        stats = result["info"]["learner"]["default_policy"]
        assert all(np.isfinite(value) for value in stats.values())
        path = trainer.save()
        weights = trainer.get_policy().get_weights()
    with PPOTrainer({**config, "seed": 5}) as other:
        other.restore(path)
        assert weights_equal(other.get_policy().get_weights(), weights)
        other.train()
