from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from headwater.frameworks.numpy import NumpyCategorical, NumpyGenerator
from headwater.frameworks.torch import TorchCategorical
from headwater.policy.distributions import DistributionError

from .families import numpy_of

either = pytest.mark.parametrize("make", [NumpyCategorical, TorchCategorical])


@either
def test_numbers_equal_scipy(make):
    logits = np.random.default_rng(0).normal(size=(50, 6)) * 3
    others = np.random.default_rng(1).normal(size=(50, 6)) * 3
    p, q = scipy.special.softmax(logits, -1), scipy.special.softmax(others, -1)
    actions = np.random.default_rng(2).integers(0, 6, 50)
    dist = make(logits)
    np.testing.assert_allclose(numpy_of(dist.logp(actions)), np.log(p[np.arange(50), actions]), rtol=1e-9)
    np.testing.assert_allclose(numpy_of(dist.entropy()), scipy.stats.entropy(p, axis=-1), rtol=1e-9)
    np.testing.assert_allclose(numpy_of(dist.kl(make(others))), scipy.stats.entropy(p, q, axis=-1), rtol=1e-9)


@either
@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_samples_have_the_probabilities(make, temperature):
    logits = np.array([0.5, -1.0, 2.0, 0.0, -3.0], np.float32)
    dist = make(np.tile(logits, (20_000, 1)), temperature=temperature)
    counts = np.bincount(numpy_of(dist.sample(NumpyGenerator(0))), minlength=5)
    expected = scipy.special.softmax(logits.astype(np.float64) / temperature) * 20_000
    assert scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-3


class Constant:
    def __init__(self, value):
        self.value = value

    def uniform(self, shape):
        return np.full(shape, self.value)


@either
@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (0.49, 1), (0.51, 3), (1.0 - 2.0**-53, 3), (1.0, 3)])
def test_no_number_falls_on_an_impossible_choice(make, uniform, expected):
    logits = np.array([[-np.inf, 0.0, -1e38, 0.0, -np.inf, -1e38]], np.float32)
    assert numpy_of(make(logits).sample(Constant(uniform))).tolist() == [expected]


@either
def test_at_the_largest_uniform_number_every_row_has_a_choice(make):
    logits = np.random.default_rng(0).normal(size=(5000, 18)).astype(np.float32) * 10
    actions = numpy_of(make(logits).sample(Constant(1.0)))
    assert (actions >= 0).all() and (actions < 18).all()


@either
def test_a_million_samples_never_meet_a_masked_choice(make):
    logits = np.tile(np.array([-np.inf, 0.0, -1e38, 0.0, -1e38], np.float32), (1_000_000, 1))
    counts = np.bincount(numpy_of(make(logits).sample(NumpyGenerator(4))), minlength=5)
    assert counts[[0, 2, 4]].sum() == 0 and abs(counts[1] - 500_000) < 3000


@either
@pytest.mark.parametrize("masked", [-np.inf, -1e38, -1e30])
def test_masked_choices_count_for_nothing(make, masked):
    logits = np.array([[masked, 0.0, masked, 0.0, masked]], np.float32)
    dist, other = make(logits), make(np.array([[masked, 1.0, masked, 0.0, masked]], np.float32))
    assert numpy_of(dist.probs).tolist() == [[0.0, 0.5, 0.0, 0.5, 0.0]]
    assert float(dist.entropy()[0]) == pytest.approx(0.693147, abs=1e-6)
    assert float(dist.logp([3])[0]) == pytest.approx(-0.693147, abs=1e-6)
    assert float(dist.logp([0])[0]) <= -1e30
    expected = scipy.stats.entropy([0.5, 0.5], scipy.special.softmax([1.0, 0.0]))
    assert float(dist.kl(other)[0]) == pytest.approx(expected, rel=1e-5)


@either
def test_vanishing_probabilities_give_the_right_numbers(make):
    p, q = make(np.array([[0.0, -5.0, -200.0]], np.float32)), make(np.array([[0.0, -6.0, -210.0]], np.float32))
    assert float(p.kl(q)[0]) == pytest.approx(0.00245319, abs=1e-7)
    assert float(p.entropy()[0]) == pytest.approx(0.0401796, abs=1e-6)
    rng = np.random.default_rng(0)
    p, q = (make((rng.normal(size=(1000, 7)) * 100).astype(np.float32)) for _ in range(2))
    divergence = numpy_of(p.kl(q))
    assert np.isfinite(divergence).all() and (divergence >= 0).all()


@either
def test_an_action_outside_is_an_error_that_names_it(make):
    dist = make(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"action 4 \(row 1\) is outside 0..3"):
        dist.logp(np.array([0, 4, 1]))
    with pytest.raises(ValueError, match=r"action -1 \(row 2\)"):
        dist.logp(np.array([0, 3, -1]))
    with pytest.raises(ValueError, match="action 0.5 is not a whole number"):
        dist.logp(np.array([0.0, 0.5, 1.0]))
    assert numpy_of(dist.logp(np.array([0.0, 3.0, 1.0], np.float32))) == pytest.approx(-np.log(4))


@either
@pytest.mark.parametrize("row", [[0.0, np.nan, 1.0], [-np.inf, -np.inf, -np.inf], [0.0, np.inf, 0.0]])
def test_logits_without_a_choice_are_an_error_that_shows_them(make, row):
    dist = make(np.array([[0.0, 0.0, 0.0], row], np.float32))
    with np.errstate(invalid="ignore"), pytest.raises(DistributionError, match="row 1 has the logits"):
        dist.sample()


@either
@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
def test_a_temperature_must_be_above_zero(make, temperature):
    with pytest.raises(DistributionError, match="temperature must be a number above 0"):
        make(np.zeros((1, 2), np.float32), temperature=temperature)


def test_a_temperature_never_changes_the_callers_array():
    logits = torch.tensor([[1.0, 2.0]])
    assert TorchCategorical(logits, None, 0.5).logits.tolist() == [[2.0, 4.0]]
    assert logits.tolist() == [[1.0, 2.0]]


@either
def test_any_leading_axes_serve(make):
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    dist, flat = make(logits), make(logits.reshape(12, 5))
    actions = numpy_of(dist.sample(NumpyGenerator(0)))
    assert actions.shape == (3, 4)
    np.testing.assert_array_equal(actions.ravel(), numpy_of(flat.sample(NumpyGenerator(0))))
    np.testing.assert_allclose(numpy_of(dist.logp(actions)).ravel(), numpy_of(flat.logp(actions.ravel())), rtol=1e-6)
    assert json.dumps(
        numpy_of(make(logits[0, 0]).sample(NumpyGenerator(0))).tolist()
    )  # a single row without batch axis
