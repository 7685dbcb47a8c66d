"""Acting: NumPy draws from the distributions that torch learns, in either place of computing the network."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from headwater.config import ModelConfig
from headwater.errors import CheckpointError, ConfigError, HeadwaterError
from headwater.frameworks.numpy.networks import NetworkInNumpy, NumpyNetwork
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.numpy.policy import NumpyPolicy
from headwater.frameworks.torch import TorchDiagGaussian
from headwater.frameworks.torch.networks import ActingInTorch
from headwater.policy.distributions import Categorical
from headwater.policy.encoded_space import mask_of
from headwater.policy.network import MASKED_LOGIT
from tests.frameworks.policies import ACTION_SPACES, VECTOR, flat_actions, make_batch, make_obs, make_policy
from tests.policy.networks import NETWORKS, SMALL, observations


def leaves(actions):
    if isinstance(actions, dict):
        return [leaf for key in sorted(actions) for leaf in leaves(actions[key])]
    if isinstance(actions, tuple):
        return [leaf for part in actions for leaf in leaves(part)]
    return [actions]


def trained(name, **settings):
    """A policy that has left its nearly uniform beginning."""
    policy = make_policy(action_space=ACTION_SPACES[name], lr=1e-2, **settings)
    for i in range(3):
        policy.learn_on_batch(make_batch(policy, 64, i), 3, 16)
    return policy


@pytest.mark.parametrize("name", ACTION_SPACES)
@pytest.mark.parametrize("acting", ["numpy", "framework"])
def test_log_probabilities_equal_those_of_the_training_distribution(name, acting):
    policy = trained(name, acting=acting)
    obs = make_obs(VECTOR, 50)
    actions, _, extra = policy.compute_actions(obs)
    with torch.no_grad():
        inputs, values, _ = policy.learner._weights.network.forward(torch.from_numpy(obs))
        dist = policy._train_dist(inputs)
        expected = dist.logp(torch.from_numpy(np.array(flat_actions(actions, 50)))).numpy()
    assert extra["action_dist_inputs"] == pytest.approx(inputs.numpy(), abs=1e-5)
    assert extra["vf_preds"] == pytest.approx(values.numpy(), abs=1e-5)
    assert extra["action_logp"] == pytest.approx(expected, abs=1e-5)
    assert extra["action_prob"] == pytest.approx(np.exp(expected), rel=1e-4)
    assert policy.logp(extra["action_dist_inputs"], flat_actions(actions, 50)) == pytest.approx(expected, abs=1e-5)
    assert policy.compute_log_likelihoods(actions, obs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "box", "nested"])
def test_actions_are_drawn_from_the_training_distribution(name):
    """Against as many samples drawn in torch: chi-squared for choices, Kolmogorov-Smirnov for the rest."""
    policy = trained(name)
    rows = 20_000
    obs = np.repeat(make_obs(VECTOR, 1), rows, axis=0)
    actions, inputs, *_ = policy.act(obs, NUMPY_OPS.generator(11))
    torch.manual_seed(12)
    reference = policy._train_dist(torch.from_numpy(inputs)).sample()
    for ours, theirs in zip(leaves(actions), leaves(reference), strict=True):
        ours, theirs = ours.reshape(rows, -1), np.asarray(theirs).reshape(rows, -1)
        for a, b in zip(ours.T, theirs.T, strict=True):
            if ours.dtype == np.int64:
                table = np.stack([np.bincount(x, minlength=int(max(a.max(), b.max())) + 1) for x in (a, b)])
                p = stats.chi2_contingency(table).pvalue
            else:
                p = stats.ks_2samp(a, b).pvalue
            assert p > 1e-4


@pytest.mark.parametrize("name", ["discrete", "box", "nested"])
def test_the_same_noise_gives_the_same_actions_wherever_the_network_runs(name):
    in_numpy, in_torch = trained(name, acting="numpy"), trained(name, acting="framework")
    in_torch.set_weights(in_numpy.get_weights())
    obs = make_obs(VECTOR, 30)
    for explore in (True, False):
        a = in_numpy.act(obs, NUMPY_OPS.generator(1), explore).actions
        b = in_torch.act(obs, NUMPY_OPS.generator(1), explore).actions
        for x, y in zip(leaves(a), leaves(b), strict=True):
            assert x == pytest.approx(y, abs=1e-4)


def test_act_does_not_touch_what_it_gave_before():
    policy = make_policy()
    rng = NUMPY_OPS.generator(0)
    obs = make_obs(VECTOR, 8)
    actions, inputs, *_ = policy.act(obs, rng)
    kept = actions.copy(), inputs.copy()
    policy.act(obs + 1, rng)
    assert np.array_equal(actions, kept[0])
    assert np.array_equal(inputs, kept[1])


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, NumpyNetwork),
    ({"acting": "framework"}, ActingInTorch),
    ({"acting": "numpy"}, NumpyNetwork),
    ({"model": {"fcnet_hiddens": [2048, 1024]}}, ActingInTorch),
    ({"model": {"fcnet_hiddens": [1024, 1024]}}, NumpyNetwork),
    ({"model": {"memory": "lstm"}}, NetworkInNumpy),
    ({"model": {"memory": "lstm"}, "acting": "framework"}, ActingInTorch),
    ({"model": {"memory": "gru", "memory_size": 1024}}, ActingInTorch),
])  # fmt: skip
def test_who_acts(settings, expected):
    assert isinstance(make_policy(**settings).acting_network, expected)


def test_images_act_in_their_framework_unless_forced():
    space = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    free, forced = make_policy(space), make_policy(space, acting="numpy")
    assert isinstance(free.acting_network, ActingInTorch)
    assert isinstance(forced.acting_network, NetworkInNumpy)
    obs = make_obs(space, 5)
    assert free.values(obs) == pytest.approx(forced.values(obs), abs=1e-5)


def test_read_only_and_strided_observations():
    for acting in ("numpy", "framework"):
        policy = make_policy(acting=acting)
        wide = make_obs(spaces.Box(-1, 1, (8,)), 10)
        odd = wide[::2, ::2]
        odd.flags.writeable = False
        assert policy.values(odd) == pytest.approx(policy.values(np.array(odd)), abs=1e-6)
        assert policy.values(odd.astype(np.float64)) == pytest.approx(policy.values(np.array(odd)), abs=1e-6)


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_single_actions(name):
    policy = trained(name)
    obs = make_obs(VECTOR, 1)
    batch, _, extra = policy.compute_actions(obs, explore=False)
    action, state, single = policy.compute_single_action(obs[0], explore=False)
    assert state == []
    for a, b in zip(leaves(action), leaves(batch), strict=True):
        assert np.array_equal(a, b[0])
    assert single["vf_preds"] == extra["vf_preds"][0]
    assert single["action_logp"].shape == ()


def test_explore_follows_the_config():
    policy = make_policy(explore=False)
    obs = make_obs(VECTOR, 20)
    expected = policy.acting_network.dist_inputs(obs).argmax(1)
    assert np.array_equal(policy.compute_actions(obs)[0], expected)
    assert not np.array_equal(policy.compute_actions(obs, explore=True)[0], expected)


def test_random_timesteps_then_the_policy():
    policy = make_policy(exploration_config={"type": "StochasticSampling", "random_timesteps": 24}, seed=3)
    weights = {name: np.zeros_like(w) for name, w in policy.get_weights().items()}
    weights["policy/out/bias"][:] = [-50, 50, -50]
    policy.set_weights(weights)
    rng, obs = NUMPY_OPS.generator(0), make_obs(VECTOR, 8)
    drawn = [policy.act(obs, rng)[0] for _ in range(4)]
    assert not np.all(np.concatenate(drawn[:3]) == 1)
    assert np.all(drawn[3] == 1)
    policy.on_global_var_update({"timestep": 16})
    assert not np.all(policy.act(obs, rng)[0] == 1)
    assert np.all(policy.act(obs, rng)[0] == 1)


@pytest.mark.parametrize("obs", [np.zeros(4), np.zeros((2, 5)), np.zeros((2, 4, 1))])
def test_observations_of_a_wrong_shape(obs):
    with pytest.raises(ConfigError, match=r"\(B, 4\).*got"):
        make_policy().compute_actions(obs)


def test_state_is_refused_without_memory():
    policy = make_policy()
    assert policy.get_initial_state() == [] and policy.state_size == 0
    with pytest.raises(ConfigError, match="no memory"):
        policy.compute_actions(make_obs(VECTOR, 2), [np.zeros((2, 3))])


@pytest.mark.parametrize(
    ("memory", "shapes"), [("lstm", [(8,), (8,)]), ("gru", [(8,)]), ("attention", [(5, 8), ()])]
)  # fmt: skip
def test_a_state_is_a_list_of_parts(memory, shapes):
    policy = make_policy(model={"memory": memory, "memory_size": 8, "attention_window": 5, "vf_share_layers": True})
    initial, obs = policy.get_initial_state(), make_obs(VECTOR, 3)
    assert [part.shape for part in initial] == shapes and not any(part.any() for part in initial)
    assert policy.state_size == sum(part.size for part in initial)
    zeros = [np.stack([part] * 3) for part in initial]
    _, state, extra = policy.compute_actions(obs, zeros)
    assert [part.shape for part in state] == [(3, *shape) for shape in shapes] and all(part.any() for part in state)
    for nothing in (None, []):
        assert np.array_equal(policy.compute_actions(obs, nothing)[2]["vf_preds"], extra["vf_preds"])
    acted = policy.act(obs, NUMPY_OPS.generator(0), True, np.zeros((3, policy.state_size), np.float32))
    assert acted.values == pytest.approx(extra["vf_preds"], abs=1e-6)
    assert acted.state == pytest.approx(np.concatenate([part.reshape(3, -1) for part in state], 1), abs=1e-6)
    others = obs[::-1]
    later = policy.compute_actions(others, state)[2]["vf_preds"]
    assert policy.values(others, acted.state) == pytest.approx(later, abs=1e-6)
    assert later != pytest.approx(policy.compute_actions(others)[2]["vf_preds"], abs=1e-4)
    for wrong in (zeros[:-1] or [zeros[0][:2]], [*zeros, zeros[0]], [part[:2] for part in zeros]):
        with pytest.raises(ConfigError, match=f"shared/.*{len(wrong)} state parts.*get_initial_state"):
            policy.compute_actions(obs, wrong)
        with pytest.raises(ConfigError, match="state parts"):
            policy.compute_log_likelihoods([0, 0, 0], obs, wrong)


# Distributions of the user's own.


class Tempered(Categorical):
    """Written over ops: acts in NumPy, learns in torch."""

    def __init__(self, inputs, model=None):
        super().__init__(inputs, model, temperature=5.0)


class TorchShifted(TorchDiagGaussian):
    """Written for torch only."""

    def _deterministic_sample(self):
        return super()._deterministic_sample() + 10.0


def test_custom_distribution_over_ops():
    policy = make_policy(model={"custom_action_dist": Tempered})
    actions, _, extra = policy.compute_actions(make_obs(VECTOR, 6))
    assert isinstance(policy.acting_network, NumpyNetwork)
    expected = Categorical.logp(policy.dist_class(extra["action_dist_inputs"]), actions)
    assert extra["action_logp"] == pytest.approx(expected)
    policy.learn_on_batch(make_batch(policy))


def test_custom_distribution_of_torch():
    policy = make_policy(action_space=spaces.Box(-1, 1, (2,)), model={"custom_action_dist": TorchShifted})
    actions, _, extra = policy.compute_actions(make_obs(VECTOR, 6), explore=False)
    assert isinstance(actions, np.ndarray)
    assert actions.mean() == pytest.approx(10, abs=0.5)
    assert isinstance(extra["action_logp"], np.ndarray)
    assert policy.act(make_obs(VECTOR, 6), NUMPY_OPS.generator(0))[0].shape == (6, 2)
    policy.learn_on_batch(make_batch(policy))


# Exports.


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_an_exported_policy_acts_alike(name, tmp_path):
    policy = trained(name)
    loaded = NumpyPolicy.load(policy.export_model(tmp_path / "export"))
    obs = make_obs(VECTOR, 30)
    for explore in (True, False):
        a = policy.act(obs, NUMPY_OPS.generator(1), explore).actions
        b = loaded.act(obs, NUMPY_OPS.generator(1), explore).actions
        assert all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    assert np.array_equal(policy.values(obs), loaded.values(obs))
    assert loaded.compute_actions(obs)[2]["action_logp"].shape == (30,)
    again = NumpyPolicy.load(loaded.export_model(tmp_path / "again"))
    assert np.array_equal(again.values(obs), loaded.values(obs))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "dense"])
def test_every_network_can_be_exported(name, tmp_path):
    """With its memory, its mask and the parts of its rows."""
    space, model, *_ = NETWORKS[name]
    choices = 0 if mask_of(space) is None else mask_of(space).size
    policy = make_policy(space, spaces.Discrete(choices or 5), model={**SMALL, **model})
    loaded = NumpyPolicy.load(policy.export_model(tmp_path))
    assert loaded.description == policy.description and loaded.observation_space == policy.observation_space
    zeros = [np.stack([part] * 4) for part in policy.get_initial_state()]
    assert [part.shape for part in loaded.get_initial_state()] == [part.shape for part in policy.get_initial_state()]
    ours = theirs = zeros
    for step in range(3):
        obs = observations(policy.description, 4, seed=step)
        actions, ours, extra = policy.compute_actions(obs, ours, explore=False)
        again, theirs, same = loaded.compute_actions(obs, theirs, explore=False)
        assert np.array_equal(actions, again)
        assert extra["action_dist_inputs"] == pytest.approx(same["action_dist_inputs"], abs=1e-5)
        assert extra["vf_preds"] == pytest.approx(same["vf_preds"], abs=1e-5)
        for part, other in zip(ours, theirs, strict=True):
            assert part == pytest.approx(other, abs=1e-5)
        if choices:
            mask = obs[:, mask_of(space).columns]
            assert (mask[np.arange(4), actions] == 1).all()
            assert ((extra["action_dist_inputs"] == MASKED_LOGIT) == (mask == 0)).all()


def test_image_and_squashed_exports(tmp_path):
    space = spaces.Box(0, 255, (9, 12), np.uint8)
    policy = make_policy(
        space, spaces.Box(-2, 3, (2,)), normalize_actions=False,
        model={"custom_action_dist": "SquashedGaussian", "post_fcnet_hiddens": [8]},
    )  # fmt: skip
    loaded = NumpyPolicy.load(policy.export_model(tmp_path))
    obs = make_obs(space, 4)
    expected = policy.act(obs, NUMPY_OPS.generator(1))[0]
    assert loaded.act(obs, NUMPY_OPS.generator(1))[0] == pytest.approx(expected, abs=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "weights.safetensors"]


def test_code_cannot_be_exported(tmp_path):
    policy = make_policy(model={"custom_action_dist": Tempered})
    with pytest.raises(ConfigError, match="custom_action_dist"):
        policy.export_model(tmp_path)


@pytest.mark.parametrize("damage", [
    lambda d: (d / "policy.json").unlink(),
    lambda d: (d / "policy.json").write_text("{"),
    lambda d: (d / "policy.json").write_text("[1]"),
    lambda d: (d / "policy.json").write_text((d / "policy.json").read_text().replace('"version": 1', '"version": 9')),
    lambda d: (d / "policy.json").write_text((d / "policy.json").read_text().replace('"tanh"', '"os.system"')),
    lambda d: (d / "policy.json").write_text((d / "policy.json").read_text().replace('": 64', '": 64000000')),
    lambda d: (d / "policy.json").write_text((d / "policy.json").read_text().replace('"n": 3', '"n": 4')),
    lambda d: (d / "weights.safetensors").write_bytes(b"\x80\x04."),
    lambda d: (d / "weights.safetensors").write_bytes((d / "weights.safetensors").read_bytes()[:-9]),
])  # fmt: skip
def test_damaged_exports_are_refused(damage, tmp_path):
    make_policy().export_model(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        NumpyPolicy.load(tmp_path)


def test_a_numpy_policy_only_acts():
    policy = NumpyPolicy(VECTOR, spaces.Discrete(2), dict(make_policy().config.items()) | {"model": ModelConfig()})
    for learn in (policy.learn_on_batch, policy.compute_gradients, policy.apply_gradients):
        with pytest.raises(HeadwaterError, match="only acts"):
            learn({})
    other = NumpyPolicy(VECTOR, spaces.Discrete(2), make_policy(seed=9).config)
    other.set_state(policy.get_state())
    obs = make_obs(VECTOR, 9)
    assert np.array_equal(policy.compute_actions(obs)[0], other.compute_actions(obs)[0])


def test_initial_weights_do_not_depend_on_the_framework():
    policy = make_policy(seed=4)
    acting = NumpyPolicy(VECTOR, spaces.Discrete(3), policy.config)
    assert all(np.array_equal(w, acting.get_weights()[name]) for name, w in policy.get_weights().items())
