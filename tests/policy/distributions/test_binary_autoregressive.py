"""BinaryAutoregressiveDistribution: a joint distribution over four actions, in every framework."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import ModelConfig
from headwater.errors import UnsupportedSpaceError
from headwater.frameworks.numpy import NumpyBinaryAutoregressiveDistribution as Pair
from headwater.frameworks.numpy import NumpyGenerator
from headwater.policy.catalog import ModelCatalog

from .families import SIDES, SPECIMENS, numpy_of

JOINT = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
PAIRS = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=20, deadline=None)
@given(inputs=st.lists(st.floats(-30, 30), min_size=6, max_size=6))
def test_the_four_probabilities_sum_to_one(side, inputs):
    dist = SPECIMENS["BinaryAutoregressive"].make(side)(np.tile(np.float32([inputs]), (4, 1)))
    logp = numpy_of(dist.logp(JOINT)).astype(float)
    assert math.fsum(np.exp(logp)) == pytest.approx(1.0, abs=1e-6)
    first = np.exp(inputs[:2] - np.logaddexp(*inputs[:2]))
    assert np.exp(logp[2:]).sum() == pytest.approx(first[1], abs=1e-5)
    entropy = -sum(math.exp(x) * x for x in logp)
    np.testing.assert_allclose(numpy_of(dist.entropy()), entropy, rtol=1e-4, atol=1e-5)


def test_the_second_choice_may_depend_on_the_first():
    dist = Pair(np.tile(np.float32([[0.0, 0.0, 40.0, 0.0, 0.0, 40.0]]), (10_000, 1)))
    first, second = dist.sample(NumpyGenerator(0)).T
    assert (first == second).all() and 0.48 < first.mean() < 0.52
    np.testing.assert_allclose(dist.entropy()[0], math.log(2), rtol=1e-5)


def test_the_deterministic_action_is_the_most_probable_pair():
    # The first choice alone would be 0, with 0.6; but the pair (1, 1) has 0.4 and (0, .) 0.3 each.
    dist = Pair(np.log(np.float32([[0.6, 0.4, 0.5, 0.5, 1e-9, 1.0]])))
    assert dist.deterministic_sample().tolist() == [[1, 1]]


def test_choices_outside_are_not_plausible():
    dist = Pair(np.zeros((1, 6), np.float32))
    for pair in ([0, 2], [2, 0], [-1, 1]):
        with pytest.raises(ValueError, match="outside 0..3"):
            dist.logp(np.array([pair]))


def test_a_model_of_the_1x_kind_makes_the_logits():
    class Model:
        def action_model(self, context, first):
            second = context[:, :1] + 3.0 * first
            return context, np.concatenate([np.zeros_like(second), second], 1)

    context = np.float32([[0.5, -0.5], [1.0, 2.0]])
    dist = Pair(context, Model())
    six = np.float32([[0.5, -0.5, 0, 0.5, 0, 3.5], [1, 2, 0, 1, 0, 4]])
    for pair in JOINT:
        np.testing.assert_allclose(dist.logp(np.stack([pair, pair])), Pair(six).logp(np.stack([pair, pair])), rtol=1e-6)


@pytest.mark.parametrize("space", [PAIRS, spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)])
def test_actions_are_formed_as_the_space_wants_them(space):
    factory, width = ModelCatalog.get_action_dist(space, ModelConfig(custom_action_dist="BinaryAutoregressive"))
    dist = factory(np.zeros((5, width), np.float32))
    actions = dist.sample(NumpyGenerator(0))
    assert isinstance(actions, tuple) == isinstance(space, spaces.Tuple)
    np.testing.assert_allclose(dist.logp(actions), np.log(0.25), rtol=1e-6)
    flat = np.stack(actions, -1).astype(np.float32) if isinstance(actions, tuple) else actions
    np.testing.assert_allclose(dist.logp(flat), np.log(0.25), rtol=1e-6)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.Tuple([spaces.Discrete(2)])]
)
def test_other_spaces_are_refused(space):
    with pytest.raises(UnsupportedSpaceError, match="two binary choices"):
        ModelCatalog.get_action_dist(space, ModelConfig(custom_action_dist="BinaryAutoregressive"))
