from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from headwater.frameworks.numpy import NumpyDiagGaussian, NumpyGenerator
from headwater.frameworks.torch import TorchDiagGaussian

from .families import numpy_of

either = pytest.mark.parametrize("make", [NumpyDiagGaussian, TorchDiagGaussian])


@either
def test_log_probability_and_entropy_equal_scipy(make):
    rng = np.random.default_rng(0)
    mean, log_std, x = rng.normal(size=(3, 40, 3)) * 2
    dist = make(np.concatenate([mean, log_std], -1))
    expected = scipy.stats.norm(mean, np.exp(log_std))
    np.testing.assert_allclose(numpy_of(dist.logp(x)), expected.logpdf(x).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(numpy_of(dist.entropy()), expected.entropy().sum(-1), rtol=1e-9)


@either
def test_golden_numbers(make):
    standard = make(np.zeros((5, 4), np.float32))
    wide = make(np.array([[1.0, 1.0, np.log(2), np.log(2)]] * 5, np.float32))
    np.testing.assert_allclose(numpy_of(standard.entropy()), [2.837877] * 5, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(standard.kl(wide)), [2 * 0.443147] * 5, rtol=1e-5)


@either
def test_divergence_equals_quadrature(make):
    x = np.linspace(-40, 40, 400_001)
    for mean1, std1, mean2, std2 in [(0.0, 1.0, 1.0, 2.0), (-2.0, 0.5, 1.0, 1.5), (3.0, 2.0, 0.0, 1.0)]:
        p, q = scipy.stats.norm(mean1, std1), scipy.stats.norm(mean2, std2)
        expected = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
        ours = make(np.array([[mean1, np.log(std1)]])).kl(make(np.array([[mean2, np.log(std2)]])))
        assert float(ours[0]) == pytest.approx(expected, rel=1e-6)


@either
def test_samples_are_normal(make):
    inputs = np.tile(np.array([1.0, -3.0, 0.0, 1.0], np.float32), (10_000, 1))
    samples = numpy_of(make(inputs).sample(NumpyGenerator(2)))
    assert scipy.stats.kstest(samples[:, 0], scipy.stats.norm(1.0, 1.0).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(samples[:, 1], scipy.stats.norm(-3.0, np.e).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.05


@either
def test_an_action_of_rank_two(make):
    inputs = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    shaped, flat = make(inputs, action_shape=(2, 3)), make(inputs)
    actions = numpy_of(shaped.sample(NumpyGenerator(0)))
    assert actions.shape == (5, 2, 3)
    np.testing.assert_array_equal(actions.reshape(5, 6), numpy_of(flat.sample(NumpyGenerator(0))))
    np.testing.assert_allclose(numpy_of(shaped.logp(actions)), numpy_of(flat.logp(actions.reshape(5, 6))), rtol=1e-6)
    np.testing.assert_allclose(numpy_of(shaped.logp(actions.reshape(5, 6))), numpy_of(shaped.logp(actions)), rtol=1e-6)


@either
def test_what_is_no_number_has_no_plausible_probability(make):
    dist = make(np.zeros((2, 2), np.float32))
    logp = numpy_of(dist.logp(np.array([[np.inf], [np.nan]], np.float32)))
    assert logp[0] == -np.inf and np.isnan(logp[1])
