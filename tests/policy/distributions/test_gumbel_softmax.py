from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from headwater.frameworks.numpy import NumpyCategorical, NumpyGenerator, NumpyGumbelSoftmax
from headwater.frameworks.torch import TorchGumbelSoftmax

from .families import numpy_of

either = pytest.mark.parametrize("make", [NumpyGumbelSoftmax, TorchGumbelSoftmax])
LOGITS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


@either
@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_the_largest_entry_is_distributed_as_the_categorical(make, temperature):
    dist = make(np.tile(LOGITS, (20_000, 1)), temperature=temperature)
    samples = numpy_of(dist.sample(NumpyGenerator(0)))
    np.testing.assert_allclose(samples.sum(-1), 1.0, atol=1e-5)
    assert (samples >= 0).all()
    counts = np.bincount(samples.argmax(-1), minlength=4)
    assert scipy.stats.chisquare(counts, scipy.special.softmax(LOGITS.astype(np.float64)) * 20_000).pvalue > 1e-3


def test_the_relaxed_density_is_the_concrete_one():
    # Two choices: the logit of x_0 is logistic around (a_0 - a_1) / temperature with scale 1 / temperature.
    temperature = 0.8
    samples = NumpyGumbelSoftmax(np.tile([1.0, 0.0], (20_000, 1)), temperature=temperature).sample(NumpyGenerator(3))
    logit = scipy.special.logit(samples[:, 0].astype(np.float64))
    assert scipy.stats.kstest(logit, scipy.stats.logistic(1.0 / temperature, 1.0 / temperature).cdf).pvalue > 1e-3


@either
def test_one_hot_and_integer_actions_have_the_choices_probability(make):
    inputs = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    actions = np.arange(9) % 4
    dist = make(inputs, temperature=0.3)
    expected = NumpyCategorical(inputs).logp(actions)
    np.testing.assert_allclose(numpy_of(dist.logp(actions)), expected, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(dist.logp(np.eye(4, dtype=np.float32)[actions])), expected, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(dist.logp(np.eye(4, dtype=np.int64)[actions])), expected, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(dist.entropy()), NumpyCategorical(inputs).entropy(), rtol=1e-5)
    with pytest.raises(ValueError, match="action 4"):
        dist.logp(actions + 1)


@either
@pytest.mark.parametrize("vector", [[0.5, 0.6, 0.0, 0.0], [1.5, -0.5, 0.0, 0.0], [0.0] * 4, [np.nan, 1.0, 0.0, 0.0]])
def test_a_vector_off_the_simplex_has_no_probability(make, vector):
    assert numpy_of(make(LOGITS[None]).logp(np.array([vector], np.float32))).tolist() == [-np.inf]


@either
def test_deterministic_is_the_softmax(make):
    np.testing.assert_allclose(
        numpy_of(make(LOGITS[None], temperature=0.5).deterministic_sample())[0],
        scipy.special.softmax(LOGITS),
        rtol=1e-6,
    )


class Constant:
    def __init__(self, value):
        self.value = value

    def uniform(self, shape):
        return np.full(shape, self.value)


@either
@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_uniform_numbers_at_their_ends_give_finite_samples(make, uniform):
    assert np.isfinite(numpy_of(make(LOGITS[None], temperature=0.1).sample(Constant(uniform)))).all()


def test_samples_carry_gradients():
    logits = torch.tensor(LOGITS[None], requires_grad=True)
    sample = TorchGumbelSoftmax(logits, temperature=0.5).sample(NumpyGenerator(0))
    sample[0, 2].backward()
    assert torch.isfinite(logits.grad).all() and logits.grad[0, 2] > 0 > logits.grad[0, 0]
