"""Which distribution and network spaces and model settings give."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import ModelConfig
from headwater.errors import ConfigError, UnsupportedSpaceError
from headwater.frameworks.numpy import NumpyCategorical, NumpyDiagGaussian, NumpySquashedGaussian
from headwater.frameworks.torch import TorchCategorical, TorchDiagGaussian
from headwater.policy.catalog import ModelCatalog
from headwater.policy.distributions import Categorical, DiagGaussian
from headwater.policy.network_choice import default_filters
from headwater.policy.network_description import Conv, NetworkDescription

MODEL = ModelConfig()


def vector(width=4):
    return spaces.Box(-1, 1, (width,))


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "width", "action_shape"),
    [
        (spaces.Discrete(3, start=1), 3, ()),
        (spaces.MultiDiscrete([2, 3, 4]), 9, (3,)),
        (spaces.MultiDiscrete([[2, 2], [3, 3]]), 10, (2, 2)),
        (spaces.MultiBinary(3), 6, (3,)),
        (spaces.MultiBinary((2, 2)), 8, (2, 2)),
        (spaces.Box(-1, 1, (2,)), 4, (2,)),
        (spaces.Box(-1, 1, (2, 3)), 12, (2, 3)),
        (spaces.Box(-1, 1, ()), 2, ()),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_distribution_of_each_space(space, width, action_shape, framework):
    factory, got = ModelCatalog.get_action_dist(space, MODEL, framework)
    assert got == width
    dist = factory(np.zeros((5, width), np.float32))
    actions = np.asarray(dist.deterministic_sample())
    assert actions.shape == (5, *action_shape)
    assert np.asarray(dist.logp(dist.last_sample)).shape == (5,)


def test_nested_spaces_are_in_key_order():
    space = spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1)])})
    factory, width = ModelCatalog.get_action_dist(space, MODEL)
    assert width == 4 + 2 + 2
    assert ModelCatalog.get_free_columns(space, MODEL) == (2, 3)
    actions = factory(np.zeros((3, width), np.float32)).deterministic_sample()
    assert actions["a"][0].shape == (3, 2)
    assert actions["z"].shape == (3,)


def test_free_log_std_is_for_gaussians_only():
    assert ModelCatalog.get_free_columns(spaces.Box(-1, 1, (3,)), MODEL) == (3, 4, 5)
    assert ModelCatalog.get_free_columns(spaces.Discrete(3), MODEL) == ()
    assert ModelCatalog.get_free_columns(spaces.Box(-1, 1, (3,)), ModelConfig(free_log_std=False)) == ()


def test_unsupported_action_space_is_named():
    with pytest.raises(UnsupportedSpaceError, match="Text"):
        ModelCatalog.get_action_dist(spaces.Text(3), MODEL)


@pytest.mark.parametrize(("normalized", "high"), [(True, 1.0), (False, 7.0)])
def test_squashed_gaussian_by_name_has_the_range_that_the_env_gets(normalized, high):
    model = ModelConfig(custom_action_dist="SquashedGaussian")
    factory, width = ModelCatalog.get_action_dist(spaces.Box(-7, 7, (2,)), model, "numpy", normalized)
    dist = factory(np.full((1, width), 50.0, np.float32))
    assert isinstance(dist, NumpySquashedGaussian)
    assert dist.deterministic_sample() == pytest.approx(np.full((1, 2), high))


def test_squashed_gaussian_needs_bounds():
    model = ModelConfig(custom_action_dist="SquashedGaussian")
    with pytest.raises(UnsupportedSpaceError, match="bounded on both sides"):
        ModelCatalog.get_action_dist(spaces.Box(-np.inf, 1, (2,)), model)


class Tempered(Categorical):
    """A distribution of a user's own, over ops."""

    def __init__(self, inputs, model=None):
        super().__init__(inputs, model, temperature=2.0)


class WideGaussian(DiagGaussian):
    """A Gaussian of a user's own: its log standard deviation is free as well."""


def test_custom_distribution_over_ops_is_bound_to_each_framework():
    model = ModelConfig(custom_action_dist=Tempered)
    for framework, bound in (("numpy", NumpyCategorical), ("torch", TorchCategorical)):
        factory, width = ModelCatalog.get_action_dist(spaces.Discrete(4), model, framework)
        assert width == 4
        assert issubclass(factory, Tempered)
        assert factory.ops is bound.ops


def test_custom_distribution_by_name_and_by_reference():
    ModelCatalog.register_custom_action_dist("tempered", Tempered)
    for given_as in ("tempered", f"{__name__}:Tempered"):
        factory, _ = ModelCatalog.get_action_dist(spaces.Discrete(2), ModelConfig(custom_action_dist=given_as))
        assert issubclass(factory, Tempered)


def test_custom_gaussian_keeps_its_free_log_std():
    assert ModelCatalog.get_free_columns(spaces.Box(-1, 1, (2,)), ModelConfig(custom_action_dist=WideGaussian)) == (
        2,
        3,
    )


def test_custom_distribution_of_another_framework_is_refused():
    class TorchOnly(TorchDiagGaussian):
        pass

    with pytest.raises(ConfigError, match="bound to TorchOps"):
        ModelCatalog.get_action_dist(spaces.Box(-1, 1, (2,)), ModelConfig(custom_action_dist=TorchOnly), "numpy")


def test_bound_custom_distribution_serves_its_own_framework():
    class Mine(NumpyDiagGaussian):
        pass

    factory, _ = ModelCatalog.get_action_dist(spaces.Box(-1, 1, (2,)), ModelConfig(custom_action_dist=Mine), "numpy")
    assert factory is Mine


@pytest.mark.parametrize(
    ("setting", "call"), [("custom_model", "get_custom_model"), ("custom_action_dist", "get_custom_action_dist")]
)
def test_unregistered_names_say_how_to_register(setting, call):
    with pytest.raises(ConfigError, match=f"register_{setting}\\('nobody'"):
        getattr(ModelCatalog, call)(ModelConfig(**{setting: "nobody"}))


def test_what_is_no_distribution_is_refused():
    with pytest.raises(ConfigError, match="derived from"):
        ModelCatalog.get_custom_action_dist(ModelConfig(custom_action_dist=dict))


def test_mlp_layout():
    network = ModelCatalog.get_network(vector(), 4, ModelConfig(fcnet_hiddens=[8, 6]), free_columns=(2, 3))
    assert network.weight_shapes() == {
        "policy/dense_0/kernel": (4, 8), "policy/dense_0/bias": (8,),
        "policy/dense_1/kernel": (8, 6), "policy/dense_1/bias": (6,),
        "policy/out/kernel": (6, 2), "policy/out/bias": (2,),
        "value/dense_0/kernel": (4, 8), "value/dense_0/bias": (8,),
        "value/dense_1/kernel": (8, 6), "value/dense_1/bias": (6,),
        "value/out/kernel": (6, 1), "value/out/bias": (1,),
        "log_std": (2,),
    }  # fmt: skip


def test_shared_layers():
    network = ModelCatalog.get_network(vector(), 2, ModelConfig(fcnet_hiddens=[8], vf_share_layers=True))
    assert list(network.weight_shapes())[::2] == ["shared/dense_0/kernel", "policy/out/kernel", "value/out/kernel"]


def test_no_hidden_layers():
    network = ModelCatalog.get_network(vector(), 2, ModelConfig(fcnet_hiddens=[]))
    assert network.weight_shapes()["policy/out/kernel"] == (4, 2)


def test_images_share_by_default_and_vectors_do_not():
    assert ModelCatalog.get_network(image(84, 84, 4), 6, MODEL).shared
    assert not ModelCatalog.get_network(vector(), 6, MODEL).shared
    assert not ModelCatalog.get_network(image(84, 84, 4), 6, ModelConfig(vf_share_layers=False)).shared


def test_atari_stack():
    network = ModelCatalog.get_network(image(84, 84, 4), 6, MODEL)
    shapes = network.weight_shapes()
    assert shapes["shared/conv_0/kernel"] == (32, 8, 8, 4)
    assert shapes["shared/conv_2/kernel"] == (64, 3, 3, 64)
    assert shapes["shared/post_0/kernel"] == (7 * 7 * 64, 512)
    assert network.scale == pytest.approx(1 / 255)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 260), width=st.integers(1, 260))
def test_any_image_size_gets_a_network(height, width):
    network = ModelCatalog.get_network(image(height, width, 3), 2, MODEL)
    features = network.weight_shapes()["shared/post_0/kernel"][0]
    assert 1 <= features <= 11 * 11 * 64
    assert all(min(layer.kernel) >= 1 for layer in network.shared if isinstance(layer, Conv))
    assert len(default_filters(height, width)) <= 7


def test_small_images():
    assert default_filters(10, 10) == [[16, 3, 1]]


def test_filters_that_use_up_the_image_are_refused():
    model = ModelConfig(conv_filters=[[16, 8, 4], [32, 4, 2], [32, 4, 2]])
    with pytest.raises(ConfigError, match=r"conv_filters\[2\].*3x3.*42x42"):
        ModelCatalog.get_network(image(42, 42, 1), 2, model)


def test_float_images_are_not_scaled():
    assert ModelCatalog.get_network(spaces.Box(-1, 1, (8, 8, 1)), 2, MODEL).scale == 1.0


@pytest.mark.parametrize("obs", [vector(), image(20, 30, 2)])
def test_initial_weights_are_orthogonal_and_reproducible(obs):
    network = ModelCatalog.get_network(obs, 4, ModelConfig(post_fcnet_hiddens=[32]), free_columns=(2, 3))
    weights = network.initial_weights(np.random.default_rng(3))
    again = network.initial_weights(np.random.default_rng(3))
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert {name: w.shape for name, w in weights.items()} == network.weight_shapes()
    for layer in network.layers():
        kernel = weights[f"{layer.name}/kernel"]
        matrix = kernel.reshape(kernel.shape[0], -1)
        matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        gain = {"policy/out": 0.01, "value/out": 1.0}.get(layer.name, 2**0.5)
        assert matrix @ matrix.T == pytest.approx(gain**2 * np.eye(len(matrix)), abs=1e-5)
        assert not weights[f"{layer.name}/bias"].any()
    assert not weights["log_std"].any()


def test_glorot_initialisation():
    network = ModelCatalog.get_network(vector(100), 2, ModelConfig(orthogonal_init=False, fcnet_hiddens=[200]))
    kernel = network.initial_weights(np.random.default_rng(0))["policy/dense_0/kernel"]
    limit = 2**0.5 * (6 / 300) ** 0.5
    assert 0.95 * limit < abs(kernel).max() <= limit


@pytest.mark.parametrize("obs", [vector(), image(20, 30)])
def test_descriptions_survive_json(obs):
    import json

    network = ModelCatalog.get_network(obs, 4, MODEL, free_columns=(1, 3))
    assert NetworkDescription.from_json(json.loads(json.dumps(network.to_json()))) == network
