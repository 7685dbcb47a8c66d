"""What only torch has to show: gradients, devices, compilation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwater.frameworks.numpy import NumpyGenerator
from headwater.frameworks.torch import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchDistributionWrapper,
    TorchMultiActionDistribution,
    TorchSquashedGaussian,
)
from tests.policy.distributions.families import SPECIMENS, inputs_for, numpy_of

torch.set_num_threads(1)

SMOOTH = [name for name in SPECIMENS if name != "Deterministic"]
every = pytest.mark.parametrize("name", SMOOTH)


def make(name, inputs):
    dist = SPECIMENS[name].make("Torch")(inputs)
    dist.rng = NumpyGenerator(0)
    return dist


def actions_for(name, rows, dtype):
    actions = numpy_of(make(name, torch.from_numpy(inputs_for(SPECIMENS[name], rows, 7))).sample())
    if isinstance(actions, dict):
        return actions
    return torch.from_numpy(actions).to(dtype) if actions.dtype.kind == "f" else torch.from_numpy(actions)


@every
def test_gradients_equal_finite_differences(name):
    inputs, others = (
        torch.from_numpy(inputs_for(SPECIMENS[name], 3, seed)).double().requires_grad_() for seed in (0, 1)
    )
    actions = actions_for(name, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda x: make(name, x).logp(actions), inputs)
    assert torch.autograd.gradcheck(lambda x: make(name, x).entropy(), inputs)
    # Where a divergence is cut off at 0 it has no derivative; random pairs are far from there.
    assert torch.autograd.gradcheck(lambda x, y: make(name, x).kl(make(name, y)), (inputs, others))


def extremes(width: int, halves: bool) -> torch.Tensor:
    """Rows of the largest inputs a network may come to give, each with some of each sign."""
    rng = np.random.default_rng(0)
    rows = []
    for size in (1e4, 1e3, 20.0, 0.0):
        for _ in range(8):
            row = rng.choice([-size, size], width)
            if halves:  # the second half are logarithms of standard deviations
                row[width // 2 :] = rng.choice([-20.0, 20.0], width - width // 2)
            rows.append(row)
    return torch.tensor(np.array(rows), dtype=torch.float32)


@every
@pytest.mark.parametrize("method", ["logp", "entropy", "kl"])
def test_extreme_inputs_give_finite_numbers_and_gradients(name, method):
    inputs = extremes(SPECIMENS[name].width, "Gaussian" in name)
    if name == "MultiActionDistribution":
        inputs[:, [2, 3, 10]] = inputs[:, [2, 3, 10]].clip(-20, 20)
    inputs.requires_grad_()
    peers = inputs.detach().flip(0).clone().requires_grad_()
    dist, other = make(name, inputs), make(name, peers)
    rows = len(inputs)
    numbers = dist.kl(other) if method == "kl" else (
        dist.entropy() if method == "entropy" else dist.logp(actions_for(name, rows, torch.float32)))  # fmt: skip
    assert torch.isfinite(numbers).all()
    numbers.mean().backward()
    assert torch.isfinite(inputs.grad).all()
    assert peers.grad is None or torch.isfinite(peers.grad).all()


@pytest.mark.parametrize("masked", [-torch.inf, -1e38, -3e38])
def test_masked_logits_have_no_gradient_and_no_nan(masked):
    logits = torch.tensor([[0.3, masked, -0.2, masked]] * 3, requires_grad=True)
    old = TorchCategorical(torch.tensor([[0.1, masked, 0.2, masked]] * 3))
    dist = TorchCategorical(logits)
    total = dist.logp(torch.tensor([0, 2, 0])) + dist.entropy() + old.kl(dist) + dist.kl(old)
    assert torch.isfinite(total).all()
    total.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[:, [1, 3]] == 0).all() and (logits.grad[:, [0, 2]] != 0).any()


@pytest.mark.parametrize("log_std", [-20.0, -2.0, 2.0])
@pytest.mark.parametrize("mean", [-1e4, 0.0, 1e4])
def test_actions_at_the_exact_bounds_have_finite_gradients(log_std, mean):
    low, high = np.float32([-1.0, 0.0]), np.float32([1.0, 7.0])
    inputs = torch.tensor([[mean, mean, log_std, log_std]] * 2, requires_grad=True)
    actions = torch.tensor(np.stack([low, high]), requires_grad=True)
    logp = TorchSquashedGaussian(inputs, low=low, high=high).logp(actions)
    assert torch.isfinite(logp).all()
    logp.sum().backward()
    assert torch.isfinite(inputs.grad).all() and torch.isfinite(actions.grad).all()


def test_samples_of_gaussians_are_reparameterised():
    for make_gaussian in (TorchDiagGaussian, TorchSquashedGaussian):
        inputs = torch.zeros(1, 4, requires_grad=True)
        make_gaussian(inputs).sample(NumpyGenerator(0)).sum().backward()
        assert (inputs.grad != 0).all()


def test_inputs_that_are_no_tensors_become_ones_on_the_models_device():
    model = torch.nn.Linear(2, 3)
    dist = TorchCategorical(np.zeros((2, 3), np.float32), model)
    assert isinstance(dist.inputs, torch.Tensor) and dist.model is model
    assert dist.inputs.device == model.weight.device
    meta = TorchCategorical([[0.0, 1.0]], torch.nn.Linear(2, 3, device="meta"))
    assert meta.inputs.device.type == "meta"
    assert TorchCategorical([[0.0, 1.0]], torch.nn.ReLU()).inputs.dtype == torch.float32


def test_there_are_the_six_and_all_stand_on_the_wrapper():
    import headwater.frameworks.torch as side

    for name in (
        "Categorical",
        "MultiCategorical",
        "GumbelSoftmax",
        "DiagGaussian",
        "SquashedGaussian",
        "Deterministic",
    ):
        assert issubclass(getattr(side, f"Torch{name}"), TorchDistributionWrapper)
    assert issubclass(TorchMultiActionDistribution, TorchDistributionWrapper)


@pytest.mark.parametrize(
    "name",
    [
        "Categorical",
        "MultiCategorical of equal lengths",
        "DiagGaussian",
        "SquashedGaussian",
        "SquashedGaussian by dimension",
    ],
)
def test_compiled_numbers_are_the_eager_ones(name):
    inputs, others = (torch.from_numpy(inputs_for(SPECIMENS[name], 8, seed)) for seed in (0, 1))
    actions = actions_for(name, 8, torch.float32)

    def numbers(x, y):
        dist = SPECIMENS[name].make("Torch")(x)
        return dist.logp(actions), dist.kl(SPECIMENS[name].make("Torch")(y))

    compiled = torch.compile(numbers, backend="eager", fullgraph=True)
    for ours, eager in zip(compiled(inputs, others), numbers(inputs, others), strict=True):
        torch.testing.assert_close(ours, eager)
