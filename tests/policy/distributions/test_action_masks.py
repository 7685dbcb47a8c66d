"""Action masks in Categorical and MultiCategorical, in every framework."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headwater.frameworks.numpy import NumpyCategorical, NumpyGenerator
from headwater.policy.distributions import DistributionError
from tests.frameworks.all_ops import LEARNING, gradient

from .families import SIDES, bind, numpy_of

either = pytest.mark.parametrize("side", SIDES)
MASK = np.array([[1, 0, 0, 1, 0]])
KINDS = {"torch": "Torch", "tf2": "TF", "jax": "JAX"}


@either
def test_two_allowed_of_five(side):
    dist = bind(side, "Categorical", action_mask=MASK)(np.float32([[0.3, 1e6, 7.0, 0.3, np.inf]]))
    np.testing.assert_allclose(numpy_of(dist.entropy()), 0.693147, rtol=1e-5)
    np.testing.assert_allclose(numpy_of(dist.logp(np.array([3]))), -0.693147, rtol=1e-5)
    assert numpy_of(dist.logp(np.array([1]))).tolist() == [-math.inf]
    assert numpy_of(dist.deterministic_sample()).tolist() == [0]
    other = bind(side, "Categorical", action_mask=[[1, 1, 0, 0, 0]])(np.zeros((1, 5), np.float32))
    assert np.isfinite(numpy_of(dist.kl(other))).all() and np.isfinite(numpy_of(other.kl(dist))).all()


def test_a_million_samples_are_all_allowed():
    dist = NumpyCategorical(np.zeros((1_000_000, 5), np.float32), action_mask=np.repeat(MASK, 1_000_000, 0))
    counts = np.bincount(dist.sample(NumpyGenerator(0)), minlength=5)
    assert counts[[1, 2, 4]].sum() == 0 and abs(counts[0] - 500_000) < 3000


@either
def test_a_mask_that_allows_nothing_names_the_row(side):
    for dist in (
        bind(side, "Categorical", action_mask=[[1, 0], [0, 0]])(np.zeros((2, 2), np.float32)),
        bind(side, "Categorical")(np.float32([[0, 0], [-1e38, -1e38]])),
        bind(side, "Categorical")(np.float32([[0, 0], [-np.inf, -np.inf]])),
    ):
        for draw in (lambda dist=dist: dist.sample(NumpyGenerator(0)), dist.deterministic_sample):
            with pytest.raises(DistributionError, match="row 1 .*a mask that allows no action"):
                draw()


@either
def test_padding_rows_that_allow_nothing_stay_finite(side):
    dist = bind(side, "Categorical", action_mask=[[1, 0], [0, 0]])(np.float32([[0, 0], [np.nan, np.nan]]))
    dist = dist.masked(dist.ops.asarray(np.array([True, False])))
    assert np.isfinite(numpy_of(dist.entropy())).all() and np.isfinite(numpy_of(dist.kl(dist))).all()


@either
def test_each_of_several_choices_has_its_part_of_the_mask(side):
    make = bind(side, "MultiCategorical", input_lens=[2, 3], action_mask=[[0, 1, 1, 1, 0]])
    dist = make(np.zeros((1, 5), np.float32))
    np.testing.assert_allclose(numpy_of(dist.multi_entropy()), [[0.0, 0.693147]], atol=1e-6)
    np.testing.assert_allclose(numpy_of(dist.logp(np.array([[1, 0]]))), -0.693147, rtol=1e-5)
    assert numpy_of(dist.logp(np.array([[0, 0]]))).tolist() == [-math.inf]
    assert numpy_of(dist.sample(NumpyGenerator(0)))[0, 0] == 1


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize("forbidden", [0.0, 1e6, np.nan, np.inf])
def test_gradients_of_forbidden_logits_are_zero(framework, forbidden):
    make = bind(KINDS[framework], "Categorical", action_mask=MASK)
    peer = bind(KINDS[framework], "Categorical", action_mask=MASK)(np.float32([[1, 0, 0, 0.5, 0]]))

    def total(logits):
        dist = make(logits)
        numbers = dist.logp(np.array([3])) + dist.entropy() + dist.kl(peer) + peer.kl(dist)
        return dist.ops.sum(numbers)

    found = gradient(framework, total, np.float32([[0.2, forbidden, forbidden, -0.4, forbidden]]))
    assert np.isfinite(found).all()
    assert (found[0, [1, 2, 4]] == 0).all() and (found[0, [0, 3]] != 0).all()


def test_the_callers_array_stays_as_it_is():
    logits = np.float32([[1.0, 2.0, 3.0]])
    dist = NumpyCategorical(logits, temperature=0.5, action_mask=[[1, 1, 0]])
    dist.sample(NumpyGenerator(0)), dist.entropy()
    assert logits.tolist() == [[1.0, 2.0, 3.0]]
    np.testing.assert_allclose(dist.probs, [[0.1192029, 0.8807971, 0.0]], rtol=1e-5)
