"""The torch networks: against NumPy's, and the hand-written gradient against autograd."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headwater.config import ModelConfig
from headwater.frameworks.numpy.networks import NumpyNetwork, make_network
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.mlp import DenseLayers
from headwater.frameworks.torch.networks import ActingInTorch, TorchNetwork
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import EncodedSpace, ObsPart
from headwater.policy.network import MASKED_LOGIT
from tests.frameworks.policies import VECTOR, make_obs
from tests.policy.networks import NETWORKS as ANY_NETWORKS
from tests.policy.networks import described as described_by_name
from tests.policy.networks import observations, states, weights_of

CPU = torch.device("cpu")
ACTIVATIONS = ("tanh", "relu", "elu", "silu", "linear")


def described(obs_space=VECTOR, width=5, free_columns=(), **model):
    network = ModelCatalog.get_network(obs_space, width, ModelConfig(**model), free_columns)
    rng = np.random.default_rng(0)
    # Outputs of a usual size, and biases that are not all 0.
    weights = {
        name: w + rng.normal(0, 0.3, w.shape).astype(np.float32) for name, w in network.initial_weights(rng).items()
    }
    flat = FlatParameters(weights, CPU)
    return network, flat


NETWORKS = {
    **{activation: {"fcnet_activation": activation} for activation in ACTIVATIONS},
    "shared": {"vf_share_layers": True},
    "one layer": {"fcnet_hiddens": [7]},
    "no hidden layer": {"fcnet_hiddens": []},
    "free": {"free_columns": (3, 4)},
    "free, mixed": {"free_columns": (1, 3), "vf_share_layers": True},
    "shared, no hidden layer": {"vf_share_layers": True, "fcnet_hiddens": []},
}


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
def test_numpy_and_torch_compute_the_same(settings):
    network, flat = described(**settings)
    obs = make_obs(VECTOR, 33)
    in_numpy = NumpyNetwork(network, flat.arrays())
    in_torch = ActingInTorch(TorchNetwork(network, flat.leaves), CPU)
    for a, b in zip(in_numpy.forward(obs)[:2], in_torch.forward(obs)[:2], strict=True):
        assert a.dtype == b.dtype == np.float32
        assert a == pytest.approx(b, abs=1e-5)
    assert in_numpy.dist_inputs(obs) == pytest.approx(in_torch.dist_inputs(obs), abs=1e-5)
    assert in_numpy.values(obs) == pytest.approx(in_torch.values(obs), abs=1e-5)


@pytest.mark.parametrize("shape", [(84, 84, 4), (10, 10, 3), (20, 31), (1, 9, 2)])
@pytest.mark.parametrize("share", [True, False])
def test_numpy_and_torch_see_the_same_images(shape, share):
    space = spaces.Box(0, 255, shape, np.uint8)
    network, flat = described(space, vf_share_layers=share, post_fcnet_hiddens=[16])
    obs = make_obs(space, 3)
    for a, b in zip(
        make_network(network, flat.arrays()).forward(obs)[:2],
        ActingInTorch(TorchNetwork(network, flat.leaves), CPU).forward(obs)[:2],
        strict=True,
    ):
        assert a == pytest.approx(b, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("name", ANY_NETWORKS)
def test_numpy_and_torch_act_alike(name):
    network = described_by_name(name)
    weights = weights_of(network)
    in_numpy = make_network(network, weights)
    in_torch = ActingInTorch(TorchNetwork(network, FlatParameters(weights, CPU).leaves), CPU)
    state = states(network, 5)
    for step in range(3):
        obs = observations(network, 5, seed=step)
        ours, theirs = in_numpy.forward(obs, state), in_torch.forward(obs, state)
        for a, b in zip(ours, theirs, strict=True):
            if b is None:
                assert a is None and not network.has_memory
            else:
                assert a.dtype == b.dtype == np.float32
                assert a == pytest.approx(b, abs=1e-4, rel=1e-4)
        for acting in (in_numpy, in_torch):
            assert acting.values(obs, state) == pytest.approx(ours[1], abs=1e-4, rel=1e-4)
            if state is None:
                assert acting.dist_inputs(obs) == pytest.approx(ours[0], abs=1e-4, rel=1e-4)
        state = ours[2]


def test_many_rows_are_computed_in_blocks(monkeypatch):
    network, flat = described()
    obs = make_obs(VECTOR, 50)
    whole = NumpyNetwork(network, flat.arrays())
    expected = whole.dist_inputs(obs), whole.values(obs)
    monkeypatch.setattr("headwater.frameworks.numpy.networks.BLOCK_ROWS", 16)
    monkeypatch.setattr("headwater.frameworks.torch.networks.BLOCK_ROWS", 16)
    assert whole.dist_inputs(obs) == pytest.approx(expected[0], abs=1e-6)
    assert whole.values(obs) == pytest.approx(expected[1], abs=1e-6)
    assert ActingInTorch(TorchNetwork(network, flat.leaves), CPU).values(obs) == pytest.approx(expected[1], abs=1e-5)


def test_results_are_not_overwritten_by_the_next_call():
    network, flat = described()
    acting = NumpyNetwork(network, flat.arrays())
    first = acting.dist_inputs(make_obs(VECTOR, 8, 0)), acting.values(make_obs(VECTOR, 8, 0))
    copies = [x.copy() for x in first]
    acting.dist_inputs(make_obs(VECTOR, 8, 1)), acting.values(make_obs(VECTOR, 8, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, copies, strict=True))


def test_numpy_reads_the_memory_that_torch_writes():
    network, flat = described()
    acting = NumpyNetwork(network, flat.arrays())
    obs = make_obs(VECTOR, 4)
    before = acting.values(obs)
    with torch.no_grad():
        flat.vector.mul_(2.0)
    assert not np.allclose(acting.values(obs), before)
    assert acting.values(obs) == pytest.approx(NumpyNetwork(network, flat.copies(flat.vector)).values(obs))


@pytest.mark.parametrize("settings", [s for n, s in NETWORKS.items() if n != "silu"], ids=lambda s: str(s))
@pytest.mark.parametrize("critic", [True, False])
def test_hand_written_gradient_equals_autograds(settings, critic):
    network, flat = described(**settings)
    assert DenseLayers.supports(network)
    obs = torch.from_numpy(make_obs(VECTOR, 40))
    target = torch.from_numpy(make_obs(spaces.Box(-1, 1, (6,)), 40))

    def loss_of(dist_inputs, values):
        loss = torch.exp(torch.tanh(dist_inputs) * target[:, :5]).mean()
        return loss + (values - target[:, 5]).square().mean() if critic else loss

    flat.gradient.fill_(7.0)  # what was there before must not matter
    layers = DenseLayers(network, flat.split(flat.vector.detach()), flat.gradients)
    for _ in range(2):  # the second time in used memory
        outputs = layers.forward(obs)
        loss = loss_of(*outputs)
        layers.backward(*torch.autograd.grad(loss, outputs, allow_unused=True))
    by_hand = flat.gradient.clone()

    flat.gradient.zero_()
    reference = loss_of(*TorchNetwork(network, flat.leaves).forward(obs)[:2])
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-6)
    assert by_hand.numpy() == pytest.approx(flat.gradient.numpy(), abs=1e-5)


@pytest.mark.parametrize("columns", [(0, 1, 2, 3, 4), (3, 1)])
def test_hand_written_gradient_of_masked_logits(columns):
    size = 4 + len(columns)
    parts = [ObsPart("vector", 0, (4,)), ObsPart("action_mask", 4, (len(columns),))]
    space = EncodedSpace(-np.ones(size), np.ones(size), parts)
    network = ModelCatalog.get_network(space, 5, ModelConfig(), mask_columns=columns)
    flat = FlatParameters(network.initial_weights(np.random.default_rng(0)), CPU)
    assert DenseLayers.supports(network)
    obs = make_obs(space, 40)
    obs[:, 4:] = obs[:, 4:] > 0
    rows, target = torch.from_numpy(obs), torch.from_numpy(make_obs(spaces.Box(-1, 1, (5,)), 40))

    def loss_of(dist_inputs, values):
        return (torch.tanh(dist_inputs) * target).mean() + values.square().mean()

    layers = DenseLayers(network, flat.split(flat.vector.detach()), flat.gradients)
    outputs = layers.forward(rows)
    layers.backward(*torch.autograd.grad(loss_of(*outputs), outputs))
    by_hand = flat.gradient.clone()
    flat.gradient.zero_()
    reference = TorchNetwork(network, flat.leaves).forward(rows)[:2]
    loss_of(*reference).backward()
    assert torch.equal(outputs[0] == MASKED_LOGIT, reference[0] == MASKED_LOGIT)
    assert (outputs[0] == MASKED_LOGIT).any()
    assert by_hand.numpy() == pytest.approx(flat.gradient.numpy(), abs=1e-6)


def test_bytes_are_left_to_autograd():
    network, _ = described(spaces.Box(0, 255, (6,), np.uint8))
    assert network.is_mlp
    assert not DenseLayers.supports(network)


def test_silu_is_left_to_autograd():
    network, _ = described(fcnet_activation="silu")
    assert not DenseLayers.supports(network)


def test_outputs_survive_the_next_forward():
    network, flat = described()
    layers = DenseLayers(network, flat.split(flat.vector.detach()), flat.gradients)
    first, _ = layers.forward(torch.from_numpy(make_obs(VECTOR, 8, 0)))
    copy = first.detach().clone()
    layers.forward(torch.from_numpy(make_obs(VECTOR, 8, 1)))
    assert torch.equal(first, copy)


def test_gradients_land_in_the_flat_vector():
    _, flat = described(free_columns=(3, 4))
    assert sum(leaf.numel() for leaf in flat.leaves.values()) == flat.vector.numel()
    for name, leaf in flat.leaves.items():
        assert leaf.grad.data_ptr() == flat.gradients[name].data_ptr()
        assert leaf.untyped_storage().data_ptr() == flat.vector.untyped_storage().data_ptr()
    assert flat.vector.grad is flat.gradient
