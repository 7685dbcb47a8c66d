"""Beta, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import ModelConfig
from headwater.errors import UnsupportedSpaceError
from headwater.frameworks.numpy import NumpyBeta, NumpyGenerator
from headwater.policy.catalog import ModelCatalog
from headwater.policy.distributions import DistributionError

LOW, HIGH = np.float32([-1.0, 300.0]), np.float32([1.0, 500.0])


def scipy_of(dist, low, high):
    return scipy.stats.beta(dist.alpha.astype(float), dist.beta.astype(float), loc=low, scale=np.subtract(high, low))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=4, max_size=4), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_numbers_are_those_of_scipy(inputs, first, second):
    dist = NumpyBeta(np.float32([inputs]), low=LOW, high=HIGH)
    peer = scipy_of(dist, LOW, HIGH)
    y = (LOW + np.float32([[first, second]]) * (HIGH - LOW)).astype(np.float32)
    np.testing.assert_allclose(dist.logp(y), peer.logpdf(y.astype(float)).sum(-1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dist.entropy(), peer.entropy().sum(-1), rtol=1e-4, atol=1e-3)
    assert (dist.alpha >= 1).all() and (dist.beta >= 1).all()


def test_divergence_is_that_of_many_samples():
    p, q = (
        NumpyBeta(np.tile(np.float32([row]), (100_000, 1))) for row in ([0.5, 2.0, -1.0, 1.0], [1.0, 1.0, 0.0, 3.0])
    )
    x = p.sample(NumpyGenerator(0))
    np.testing.assert_allclose(p.kl(q)[0], (p.logp(x) - q.logp(x)).mean(), rtol=0.02)


@pytest.mark.parametrize("inputs", [[-20.0, -20.0], [0.0, 3.0], [5.0, -5.0], [60.0, 60.0]])
def test_samples_are_distributed_as_they_should(inputs):
    dist = NumpyBeta(np.tile(np.float32([inputs]), (20_000, 1)), low=0.0, high=1.0)
    x = dist.sample(NumpyGenerator(1))[:, 0]
    expected = scipy.stats.beta(float(dist.alpha[0, 0]), float(dist.beta[0, 0]))
    assert scipy.stats.kstest(x.astype(float), expected.cdf).pvalue > 1e-3
    assert (x > 0).all() and (x < 1).all() and np.isfinite(dist.logp(x[:, None])).all()


def test_outside_the_bounds_nothing_is_possible_and_on_them_numbers_are_finite():
    dist = NumpyBeta(np.zeros((4, 2), np.float32), low=-2.0, high=2.0)
    logp = dist.logp(np.float32([[-2.0], [2.0], [2.1], [np.nan]]))
    assert np.isfinite(logp[:2]).all() and logp[2] == logp[3] == -math.inf


def test_what_a_row_draws_does_not_depend_on_the_others():
    inputs = np.float32([[0.0, 3.0], [-9.0, 9.0], [4.0, 4.0]])

    class Rows:
        """One stream for each row."""

        def __init__(self, rows):
            self._rngs = [np.random.default_rng(row) for row in rows]

        def uniform(self, shape):
            return np.stack([rng.random(shape[1:]) for rng in self._rngs])

        def normal(self, shape):
            return np.stack([rng.standard_normal(shape[1:]) for rng in self._rngs])

    together = NumpyBeta(inputs).sample(Rows([0, 1, 2]))
    for row in range(3):
        np.testing.assert_array_equal(NumpyBeta(inputs[[row]]).sample(Rows([row]))[0], together[row])


@pytest.mark.parametrize("normalized", [True, False])
def test_the_catalog_makes_it_for_bounded_boxes(normalized):
    model = ModelConfig(custom_action_dist="Beta")
    factory, width = ModelCatalog.get_action_dist(spaces.Box(300, 500, (2, 2)), model, "numpy", normalized)
    actions = factory(np.zeros((5, width), np.float32)).sample(NumpyGenerator(0))
    assert width == 8 and actions.shape == (5, 2, 2)
    low, high = (-1, 1) if normalized else (300, 500)
    assert (actions > low).all() and (actions < high).all()
    with pytest.raises(UnsupportedSpaceError, match="Beta needs an action space bounded on both sides"):
        ModelCatalog.get_action_dist(spaces.Box(0, np.inf, (2,)), model)
    with pytest.raises(UnsupportedSpaceError, match=r"'Beta' is for Box actions.*Discrete\(2\)"):
        ModelCatalog.get_action_dist(spaces.Discrete(2), model)


def test_bounds_and_widths_are_checked():
    with pytest.raises(DistributionError, match="low < high"):
        NumpyBeta(np.zeros((1, 2)), low=1.0, high=1.0)
    with pytest.raises(DistributionError, match="width 3"):
        NumpyBeta(np.zeros((1, 3)))
