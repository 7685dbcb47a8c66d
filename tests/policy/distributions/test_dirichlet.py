"""Dirichlet, against scipy."""

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
from headwater.frameworks.numpy import NumpyDirichlet, NumpyGenerator
from headwater.policy.catalog import ModelCatalog
from headwater.sampling.action_adapters import get_action_adapter


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=6), st.integers(0, 1000))
def test_numbers_are_those_of_scipy(inputs, seed):
    dist = NumpyDirichlet(np.float32([inputs]))
    peer = scipy.stats.dirichlet(dist.concentration[0].astype(float))
    x = np.random.default_rng(seed).dirichlet(np.full(len(inputs), 5.0))
    np.testing.assert_allclose(dist.logp(np.float32([x])), peer.logpdf(x), rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(dist.entropy(), peer.entropy(), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(dist.deterministic_sample()[0], peer.mean(), rtol=1e-5)


def test_samples_have_the_right_mean_and_variance_and_sum_to_one():
    dist = NumpyDirichlet(np.tile(np.float32([[1.0, -2.0, 3.0, -5.0]]), (100_000, 1)))
    x = dist.sample(NumpyGenerator(0))
    peer = scipy.stats.dirichlet(dist.concentration[0].astype(float))
    np.testing.assert_allclose(x.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(x.mean(0), peer.mean(), atol=3e-3)
    np.testing.assert_allclose(x.var(0), peer.var(), rtol=0.03)
    np.testing.assert_allclose(-dist.logp(x).mean(), dist.entropy()[0], atol=0.01)
    other = NumpyDirichlet(np.tile(np.float32([[0.0, 0.0, 1.0, 2.0]]), (100_000, 1)))
    np.testing.assert_allclose((dist.logp(x) - other.logp(x)).mean(), dist.kl(other)[0], rtol=0.02)


def test_off_the_simplex_nothing_is_possible():
    dist = NumpyDirichlet(np.zeros((4, 3), np.float32))
    actions = np.float32([[0.2, 0.3, 0.5], [0.2, 0.3, 0.4], [-0.2, 0.7, 0.5], [np.nan, 0.5, 0.5]])
    logp = dist.logp(actions)
    assert np.isfinite(logp[0]) and (logp[1:] == -math.inf).all()


@pytest.mark.parametrize("normalized", [True, False])
def test_the_env_gets_shares(normalized):
    space = spaces.Box(0, 1, (3,))
    factory, width = ModelCatalog.get_action_dist(
        space, ModelConfig(custom_action_dist="Dirichlet"), "numpy", normalized
    )
    actions = factory(np.zeros((50, width), np.float32)).sample(NumpyGenerator(0))
    shares = get_action_adapter(space, normalize_actions=normalized).to_env(actions)
    assert width == 3
    np.testing.assert_allclose(shares.sum(-1), 1.0, atol=1e-5)
    assert (shares >= 0).all() and shares.std() > 0.05


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (3,)), spaces.Box(0, 1, (1,)), spaces.Box(0, 1, (2, 2))])
def test_other_spaces_are_refused(space):
    with pytest.raises(UnsupportedSpaceError, match=r"Box\(0, 1, \(n,\)\)"):
        ModelCatalog.get_action_dist(space, ModelConfig(custom_action_dist="Dirichlet"))
