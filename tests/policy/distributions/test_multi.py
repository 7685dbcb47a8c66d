from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Tuple

from headwater.frameworks.numpy import (
    NumpyCategorical,
    NumpyDiagGaussian,
    NumpyGenerator,
    NumpyMultiActionDistribution,
    NumpyMultiCategorical,
    NumpySquashedGaussian,
)
from headwater.policy.distributions import DistributionError

from .families import NESTED, SIDES, SPECIMENS, inputs_for, numpy_of

NESTED_SPECIMEN = SPECIMENS["MultiActionDistribution"]
either = pytest.mark.parametrize("side", SIDES)


def make(side, rows=8, seed=0):
    dist = NESTED_SPECIMEN.make(side)(inputs_for(NESTED_SPECIMEN, rows, seed))
    dist.rng = NumpyGenerator(seed)
    return dist


def parts_of(dist):
    """The children, each built alone; leaves in order: arm[0], arm[1], push, turn."""
    inputs = numpy_of(dist.inputs)
    return [
        NumpyDiagGaussian(inputs[:, :4]),
        NumpyMultiCategorical(inputs[:, 4:9], input_lens=[2, 3]),
        NumpySquashedGaussian(inputs[:, 9:11], low=-2.0, high=2.0),
        NumpyCategorical(inputs[:, 11:]),
    ]


@either
def test_samples_are_nested_like_the_space(side):
    dist = make(side)
    for actions in (dist.sample(), dist.deterministic_sample()):
        actions = numpy_of(actions)
        assert list(actions) == ["arm", "push", "turn"] and isinstance(actions["arm"], tuple)
        assert actions["arm"][0].shape == (8, 2) and actions["arm"][1].shape == (8, 2)
        assert actions["push"].shape == (8, 1) and actions["turn"].shape == (8,)
        row = {"arm": tuple(x[3] for x in actions["arm"]), "push": actions["push"][3], "turn": actions["turn"][3]}
        assert NESTED.contains(row) or np.abs(row["arm"][0]).max() > 1  # the Gaussian is not bounded


@either
def test_log_probability_of_nested_and_flat_actions_is_the_sum_over_the_leaves(side):
    dist = make(side)
    actions = numpy_of(dist.sample(NumpyGenerator(0)))
    leaves = [*actions["arm"], actions["push"], actions["turn"]]
    expected = sum(part.logp(leaf) for part, leaf in zip(parts_of(dist), leaves, strict=True))
    flat = np.concatenate([leaf.reshape(8, -1) for leaf in leaves], -1)
    np.testing.assert_allclose(numpy_of(dist.logp(actions)), expected, rtol=1e-4)
    np.testing.assert_allclose(numpy_of(dist.logp(flat.astype(np.float32))), expected, rtol=1e-4)
    assert flat.shape == (8, *dist.action_shape)


@either
def test_entropy_and_divergence_are_sums_over_the_leaves(side):
    dist, other = make(side), make(side, seed=1)
    dist.rng = NumpyGenerator(5)
    parts = parts_of(dist)
    parts[2].rng = NumpyGenerator(5)
    entropies = np.stack([part.entropy() for part in parts], -1)
    divergences = np.stack([part.kl(peer) for part, peer in zip(parts, parts_of(other), strict=True)], -1)
    np.testing.assert_allclose(numpy_of(dist.multi_kl(other)), divergences, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(numpy_of(dist.kl(other)), divergences.sum(-1), rtol=1e-4)
    np.testing.assert_allclose(numpy_of(dist.multi_entropy()), entropies, rtol=1e-4)
    dist.rng = NumpyGenerator(5)
    np.testing.assert_allclose(numpy_of(dist.entropy()), entropies.sum(-1), rtol=1e-4)
    assert not dist.exact_entropy and dist.exact_kl


def test_it_is_exact_where_all_leaves_are():
    dist = NumpyMultiActionDistribution(
        np.zeros((1, 5)), child_distributions=[NumpyCategorical, NumpyCategorical], input_lens=[2, 3],
        action_space=Tuple((Discrete(2), Discrete(3))),
    )  # fmt: skip
    assert dist.exact_entropy and dist.exact_kl
    assert isinstance(dist.sample(), tuple)


@either
def test_actions_of_another_structure_are_refused(side):
    dist = make(side)
    actions = numpy_of(dist.sample())
    del actions["turn"]
    with pytest.raises(DistributionError, match=r"expected the entries \['arm', 'push', 'turn'\]"):
        dist.logp(actions)


def test_leaves_children_and_lengths_must_agree():
    with pytest.raises(DistributionError, match="has 2 leaves, but there are 1 child_distributions"):
        NumpyMultiActionDistribution(
            np.zeros((1, 5)), child_distributions=[NumpyCategorical], input_lens=[5],
            action_space=Dict({"a": Discrete(2), "b": Discrete(3)}),
        )  # fmt: skip
