"""What holds for every family, in every framework."""

from __future__ import annotations

import doctest
import importlib
import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from headwater.errors import HeadwaterError
from headwater.frameworks.numpy import NUMPY_OPS, NumpyGenerator
from headwater.policy.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    DistributionError,
    GumbelSoftmax,
    MultiCategorical,
    SquashedGaussian,
)

from .families import SIDES, SPECIMENS, inputs_for, numpy_of

every = pytest.mark.parametrize("name", SPECIMENS)
either = pytest.mark.parametrize("side", SIDES)
B = 16


@every
@either
def test_shapes(name, side):
    specimen = SPECIMENS[name]
    make = specimen.make(side)
    dist, other = make(inputs_for(specimen)), make(inputs_for(specimen, seed=1))
    dist.rng = other.rng = NumpyGenerator(0)
    assert dist.action_shape == specimen.action_shape
    for draw in (dist.sample, dist.deterministic_sample):
        actions = draw()
        assert dist.last_sample is actions
        if name != "MultiActionDistribution":
            assert tuple(actions.shape) == (B, *specimen.action_shape)
        assert tuple(dist.logp(actions).shape) == (B,)
        np.testing.assert_allclose(numpy_of(dist.sampled_action_logp()), numpy_of(dist.logp(actions)))
    assert tuple(dist.entropy().shape) == tuple(dist.kl(other).shape) == (B,)
    assert dist.multi_entropy().shape[0] == dist.multi_kl(other).shape[0] == B


@every
@either
def test_nothing_is_sampled_before_sampling(name, side):
    dist = SPECIMENS[name].make(side)(inputs_for(SPECIMENS[name]))
    assert dist.last_sample is None
    with pytest.raises(DistributionError, match=r"sampled_action_logp\(\) was called before"):
        dist.sampled_action_logp()
    assert issubclass(DistributionError, HeadwaterError) and issubclass(DistributionError, ValueError)


@every
@either
def test_the_divergence_from_itself_is_zero_and_from_others_not_negative(name, side):
    specimen = SPECIMENS[name]
    make = specimen.make(side)
    dist = make(inputs_for(specimen, 200, scale=2))
    np.testing.assert_allclose(numpy_of(dist.kl(make(inputs_for(specimen, 200, scale=2)))), 0.0, atol=2e-6)
    divergence = numpy_of(dist.kl(make(inputs_for(specimen, 200, seed=5, scale=2))))
    assert (divergence >= 0).all()
    assert (divergence > 0).all() or name == "Deterministic"


@every
@either
def test_inputs_stay_as_they_are(name, side):
    inputs = inputs_for(SPECIMENS[name])
    inputs.flags.writeable = False
    before = inputs.copy()
    dist = SPECIMENS[name].make(side)(inputs)
    dist.rng = NumpyGenerator(0)
    dist.sample()
    dist.sampled_action_logp(), dist.entropy(), dist.kl(dist)
    np.testing.assert_array_equal(inputs, before)


@every
@either
def test_actions_of_a_wrong_shape_are_refused(name, side):
    dist = SPECIMENS[name].make(side)(inputs_for(SPECIMENS[name]))
    for shape in [(B, 7), (B + 1, *dist.action_shape), (B, *dist.action_shape, 1)]:
        with pytest.raises(DistributionError, match="shape"):
            dist.logp(np.zeros(shape, np.float32))


@every
@either
def test_masked_rows_hold_zeros(name, side):
    specimen = SPECIMENS[name]
    make, inputs = specimen.make(side), inputs_for(specimen)
    mask = np.arange(B) % 3 > 0
    spoilt = np.where(mask[:, None], inputs, np.nan).astype(np.float32)
    dist = make(spoilt)
    masked = dist.masked(dist.ops.asarray(mask))
    clean = make(np.where(mask[:, None], inputs, 0).astype(np.float32))
    masked.rng, clean.rng = NumpyGenerator(3), NumpyGenerator(3)
    np.testing.assert_array_equal(numpy_of(masked.entropy()), numpy_of(clean.entropy()))
    np.testing.assert_array_equal(numpy_of(masked.kl(clean)), np.zeros(B))
    assert type(masked) is type(dist) and masked.last_sample is None
    assert np.isnan(numpy_of(dist.inputs)).any()


@every
def test_the_same_numbers_give_the_same_actions_in_all_frameworks(name):
    specimen = SPECIMENS[name]
    inputs = inputs_for(specimen, 300)
    dists = [specimen.make(side)(inputs) for side in SIDES]
    for draw in ("sample", "deterministic_sample"):
        arguments = (lambda: (NumpyGenerator(11),)) if draw == "sample" else tuple
        ours, *others = [flatten(numpy_of(getattr(dist, draw)(*arguments()))) for dist in dists]
        for theirs in others:
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.dtype.kind == other.dtype.kind
                np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@every
def test_all_frameworks_give_the_same_numbers(name):
    specimen = SPECIMENS[name]
    entries = math.prod(specimen.action_shape)
    for scale in (1.0, 5.0):
        inputs, others = inputs_for(specimen, 64, 2, scale), inputs_for(specimen, 64, 3, scale)
        numbers = []
        for side in SIDES:
            make = specimen.make(side)
            dist, other = make(inputs), make(others)
            dist.rng = NumpyGenerator(2)
            # Not at the edge of a range, where one rounding of the action is many of what it was squashed from.
            actions = specimen.make("Numpy")(inputs_for(specimen, 64, 3, 0.5)).sample(NumpyGenerator(1))
            numbers.append(
                [dist.logp(actions), dist.entropy(), dist.multi_entropy(), dist.kl(other), dist.multi_kl(other)]
            )
        ours, *others = numbers
        for theirs in others:
            for mine, other in zip(ours, theirs, strict=True):
                # In sums over an action's entries, terms of the inputs' scale cancel.
                np.testing.assert_allclose(mine, numpy_of(other), rtol=1e-5, atol=1e-5 * scale * entries)


def test_widths():
    assert Categorical.required_model_output_shape(Discrete(7), {}) == 7
    assert GumbelSoftmax.required_model_output_shape(Discrete(7), {}) == 7
    assert MultiCategorical.required_model_output_shape(MultiDiscrete([2, 3]), {}) == 5
    assert MultiCategorical.required_model_output_shape(MultiDiscrete([[2, 3], [4, 5]]), {}) == 14
    assert MultiCategorical.required_model_output_shape(MultiBinary((2, 3)), {}) == 12
    assert DiagGaussian.required_model_output_shape(Box(-1, 1, (2, 3)), {}) == 12
    assert SquashedGaussian.required_model_output_shape(Box(-1, 1, (3,)), {}) == 6
    assert Deterministic.required_model_output_shape(Box(-1, 1, (3,)), {}) == 3
    nested = SPECIMENS["MultiActionDistribution"]
    assert nested.make("Numpy")(inputs_for(nested)).required_model_output_shape() == 14


@pytest.mark.parametrize(
    ("name", "width"),
    [("DiagGaussian", 5), ("DiagGaussian of rank 2", 6), ("MultiCategorical", 6), ("MultiActionDistribution", 13)],
)
@either
def test_inputs_of_a_wrong_width_are_refused(name, width, side):
    with pytest.raises(DistributionError, match=rf"width.*{width}.*required_model_output_shape"):
        SPECIMENS[name].make(side)(np.zeros((2, width), np.float32))


@pytest.mark.parametrize(
    "module",
    [
        *(f"headwater.policy.distributions.{name}" for name in
          ("categorical", "multi_categorical", "gumbel_softmax", "gaussian", "squashed", "deterministic", "multi",
           "beta", "dirichlet", "binary_autoregressive")),
        "headwater.frameworks.numpy.ops", "headwater.frameworks.torch.ops", "headwater.frameworks.torch.distributions",
    ],
)  # fmt: skip
def test_the_examples_in_the_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted and not result.failed


def flatten(actions: object) -> list[np.ndarray]:
    if isinstance(actions, dict):
        return [leaf for value in actions.values() for leaf in flatten(value)]
    if isinstance(actions, tuple):
        return [leaf for value in actions for leaf in flatten(value)]
    return [actions]  # type: ignore[list-item]


def test_lists_serve_as_inputs():
    dist = SPECIMENS["Categorical"].make("Numpy")([[0.0, 1.0]])
    assert dist.inputs.dtype == np.float32 and dist.ops is NUMPY_OPS
