from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from headwater.frameworks.numpy import NumpyDiagGaussian, NumpyGenerator, NumpySquashedGaussian
from headwater.frameworks.torch import TorchSquashedGaussian
from headwater.policy.distributions import DistributionError

from .families import numpy_of

either = pytest.mark.parametrize("make", [NumpySquashedGaussian, TorchSquashedGaussian])
RANGES = [(-1.0, 1.0), (-2.0, 2.0), (0.0, 10.0), (-5.0, -4.5)]


@either
@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, -0.5)])
def test_the_density_integrates_to_one(make, low, high, mean, log_std):
    def density(y):
        dist = make(np.array([[mean, log_std]]), low=low, high=high)
        return float(np.exp(numpy_of(dist.logp(np.array([[y]])))[0]))

    assert scipy.integrate.quad(density, low, high, epsabs=1e-7, limit=200)[0] == pytest.approx(1.0, abs=1e-4)


@either
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_samples_follow_the_density(make, low, high):
    dist = make(np.tile(np.array([0.3, -0.7]), (10_000, 1)), low=low, high=high)
    samples = numpy_of(dist.sample(NumpyGenerator(0)))[:, 0]
    assert (samples >= low).all() and (samples <= high).all()

    def distribution(y):
        return scipy.stats.norm(0.3, np.exp(-0.7)).cdf(np.arctanh((y - low) / (high - low) * 2 - 1))

    assert scipy.stats.kstest(samples, distribution).pvalue > 1e-3


@either
def test_log_probability_by_the_change_of_variables(make):
    rng = np.random.default_rng(0)
    low, high = np.array([-1.0, 0.0, -5.0], np.float32), np.array([1.0, 10.0, -4.0], np.float32)
    mean, log_std = rng.normal(size=(2, 30, 3))
    u = mean + np.exp(log_std) * rng.normal(size=(30, 3)) * 0.5
    y = low + (np.tanh(u) + 1) * (high - low) / 2
    slope = (1 - np.tanh(u) ** 2) * (high - low) / 2
    expected = (scipy.stats.norm(mean, np.exp(log_std)).logpdf(u) - np.log(slope)).sum(-1)
    dist = make(np.concatenate([mean, log_std], -1), low=low, high=high)
    np.testing.assert_allclose(numpy_of(dist.logp(y)), expected, rtol=1e-5)
    assert dist.action_shape == (3,)


@either
def test_outside_the_bounds_there_is_nothing_and_on_them_something_finite(make):
    dist = make(np.zeros((6, 4), np.float32), low=-2.0, high=2.0)
    actions = np.array([[2.0, 0], [-2.0, 0], [2.001, 0], [0, -2.001], [np.nan, 0], [np.inf, 0]], np.float32)
    logp = numpy_of(dist.logp(actions))
    assert np.isfinite(logp[:2]).all()
    assert (logp[2:] == -np.inf).all()


@either
def test_deterministic_is_the_squashed_mean(make):
    dist = make(np.array([[0.5, -0.5, 0.0, 0.0]]), low=np.float32([0, -1]), high=np.float32([4, 1]))
    np.testing.assert_allclose(
        numpy_of(dist.deterministic_sample()), [[2 + 2 * np.tanh(0.5), -np.tanh(0.5)]], rtol=1e-6
    )


@either
def test_the_divergence_is_that_of_the_gaussians_and_quadrature_agrees(make):
    p, q = np.array([[0.2, -0.5]]), np.array([[-0.4, 0.1]])
    ours = float(make(p, low=-3.0, high=1.0).kl(make(q, low=-3.0, high=1.0))[0])
    assert make.exact_kl
    assert ours == pytest.approx(float(NumpyDiagGaussian(p).kl(NumpyDiagGaussian(q))[0]), rel=1e-6)

    def integrand(y):
        a, b = (float(NumpySquashedGaussian(x, low=-3.0, high=1.0).logp(np.array([[y]]))[0]) for x in (p, q))
        return np.exp(a) * (a - b)

    assert ours == pytest.approx(scipy.integrate.quad(integrand, -3, 1, limit=200)[0], abs=1e-4)
    with pytest.raises(DistributionError, match="differ"):
        make(p, low=-3.0, high=1.0).kl(make(q, low=-3.0, high=2.0))


def exact_entropy(mean: float, log_std: float, half_range: float) -> float:
    u = np.linspace(mean - 12 * np.exp(log_std), mean + 12 * np.exp(log_std), 200_001)
    slope = 2 * (np.log(2) - u - np.logaddexp(0, -2 * u)) + np.log(half_range)
    normal = scipy.stats.norm(mean, np.exp(log_std))
    return float(normal.entropy() + np.trapezoid(normal.pdf(u) * slope, u))


@either
@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.0, -1.0), (-2.0, 1.0)])
def test_the_entropy_estimate_is_unbiased(make, mean, log_std):
    assert not make.exact_entropy
    dist = make(np.tile([mean, log_std], (100_000, 1)), low=0.0, high=3.0)
    dist.rng = NumpyGenerator(0)
    estimates = numpy_of(dist.entropy())
    error = estimates.std() / np.sqrt(len(estimates))
    assert estimates.mean() == pytest.approx(exact_entropy(mean, log_std, 1.5), abs=4 * error + 1e-6)


def test_the_gradient_of_the_entropy_estimate_is_unbiased():
    inputs = torch.tensor([[0.7, -0.3]], dtype=torch.float64, requires_grad=True)
    dist = TorchSquashedGaussian(inputs.expand(200_000, 2), low=-1.0, high=1.0)
    dist.rng = NumpyGenerator(0)
    dist.entropy().mean().backward()
    step = 1e-3
    expected = [
        (exact_entropy(0.7 + dm, -0.3 + ds, 1.0) - exact_entropy(0.7 - dm, -0.3 - ds, 1.0)) / (2 * step)
        for dm, ds in ((step, 0.0), (0.0, step))
    ]
    np.testing.assert_allclose(inputs.grad[0].numpy(), expected, atol=0.01)


@either
def test_standard_deviations_are_kept_within_their_bounds(make):
    dist = make(np.array([[0.0, 0.0, 50.0, -50.0]], np.float32))
    assert numpy_of(dist.log_std).tolist() == [[2.0, -20.0]]


@either
@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (-np.inf, 1.0), (0.0, np.inf), (np.nan, 1.0), (-3e38, 3e38)]
)
def test_bounds_must_be_finite_and_in_order(make, low, high):
    with pytest.raises(DistributionError, match="needs finite bounds with low < high"):
        make(np.zeros((1, 2), np.float32), low=low, high=high)
    with pytest.raises(DistributionError, match="needs finite bounds with low < high"):
        make(np.zeros((1, 4), np.float32), low=np.array([-1.0, low]), high=np.array([1.0, high]))


@either
def test_bounds_of_rank_two_shape_the_action(make):
    low = -np.ones((2, 3), np.float32)
    dist = make(np.zeros((4, 12), np.float32), low=low, high=1.0)
    assert numpy_of(dist.sample()).shape == (4, 2, 3)
    assert dist.logp(np.zeros((4, 2, 3), np.float32)).shape == (4,)
