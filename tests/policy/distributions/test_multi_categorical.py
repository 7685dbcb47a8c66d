from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from headwater.frameworks.numpy import NumpyCategorical, NumpyGenerator, NumpyMultiCategorical
from headwater.frameworks.torch import TorchMultiCategorical
from headwater.policy.distributions import DistributionError

from .families import numpy_of

either = pytest.mark.parametrize("make", [NumpyMultiCategorical, TorchMultiCategorical])
LOGITS = np.array([0.0, 1.0, 0.0, 1.0, 2.0], np.float32)


@either
def test_golden_numbers(make):
    dist = make(np.tile(LOGITS, (128, 1)), input_lens=[2, 3])
    uniform = make(np.zeros((128, 5), np.float32), input_lens=[2, 3])
    for numbers, expected in [
        (dist.logp(np.tile([1, 2], (128, 1))), -0.720868),
        (dist.entropy(), 1.414599),
        (dist.kl(uniform), 0.377161),
    ]:
        assert numbers.shape == (128,)
        np.testing.assert_allclose(numpy_of(numbers), expected, atol=1e-6)


@either
@pytest.mark.parametrize("lens", [[2, 3, 4], [3, 3, 3]])
def test_everything_is_the_sum_over_the_parts(make, lens):
    rng = np.random.default_rng(0)
    inputs, others = rng.normal(size=(2, 9, sum(lens))).astype(np.float32)
    dist, other = make(inputs, input_lens=lens), make(others, input_lens=lens)
    actions = numpy_of(dist.sample(NumpyGenerator(0)))
    cuts = np.cumsum(lens)[:-1]
    parts = [NumpyCategorical(part) for part in np.split(inputs, cuts, -1)]
    peers = [NumpyCategorical(part) for part in np.split(others, cuts, -1)]
    columns = [part.logp(actions[:, i]) for i, part in enumerate(parts)]
    np.testing.assert_allclose(numpy_of(dist.logp(actions)), sum(columns), rtol=1e-5)
    np.testing.assert_allclose(numpy_of(dist.logp([actions[:, i] for i in range(3)])), sum(columns), rtol=1e-5)
    entropies = np.stack([part.entropy() for part in parts], -1)
    divergences = np.stack([part.kl(peer) for part, peer in zip(parts, peers, strict=True)], -1)
    np.testing.assert_allclose(numpy_of(dist.multi_entropy()), entropies, rtol=1e-5)
    np.testing.assert_allclose(numpy_of(dist.multi_kl(other)), divergences, rtol=1e-4)
    np.testing.assert_allclose(numpy_of(dist.entropy()), entropies.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(numpy_of(dist.kl(other)), divergences.sum(-1), rtol=1e-4)


@either
def test_samples_have_the_joint_probabilities(make):
    dist = make(np.tile(LOGITS, (20_000, 1)), input_lens=[2, 3])
    actions = numpy_of(dist.sample(NumpyGenerator(1)))
    counts = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6)
    grid = np.array([[i, j] for i in range(2) for j in range(3)])
    joint = np.exp(numpy_of(make(np.tile(LOGITS, (6, 1)), input_lens=[2, 3]).logp(grid)).astype(np.float64))
    assert joint.sum() == pytest.approx(1.0, abs=1e-6)
    assert scipy.stats.chisquare(counts, joint / joint.sum() * 20_000).pvalue > 1e-3


@either
@pytest.mark.parametrize("lens", [[2, 3, 4, 5], [4, 4, 4, 4]])
def test_an_action_of_rank_two(make, lens):
    inputs = np.random.default_rng(0).normal(size=(7, sum(lens))).astype(np.float32)
    dist = make(inputs, input_lens=lens, action_shape=(2, 2))
    actions = numpy_of(dist.sample(NumpyGenerator(0)))
    assert actions.shape == (7, 2, 2) and actions.dtype == np.int64
    assert dist.logp(actions).shape == (7,)
    np.testing.assert_array_equal(numpy_of(dist.logp(actions)), numpy_of(dist.logp(actions.reshape(7, 4))))
    flat = make(inputs, input_lens=lens)
    np.testing.assert_array_equal(numpy_of(flat.sample(NumpyGenerator(0))).reshape(7, 2, 2), actions)
    np.testing.assert_array_equal(
        numpy_of(flat.deterministic_sample()).reshape(7, 2, 2), numpy_of(dist.deterministic_sample())
    )


@either
@pytest.mark.parametrize("lens", [[2, 3], [3, 3]])
def test_an_action_outside_is_an_error(make, lens):
    with pytest.raises(DistributionError, match="action 3"):
        make(np.zeros((2, sum(lens)), np.float32), input_lens=lens).logp(np.array([[0, 0], [1, 3]]))


@either
def test_lengths_and_shape_must_agree(make):
    with pytest.raises(DistributionError, match="input_lens has 2 entries"):
        make(np.zeros((1, 5), np.float32), input_lens=[2, 3], action_shape=(3,))
    with pytest.raises(DistributionError, match="input_lens has 0 entries"):
        make(np.zeros((1, 5), np.float32))
