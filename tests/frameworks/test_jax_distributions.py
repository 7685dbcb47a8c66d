"""What only JAX has to show: transformations, explicit keys, arrays of 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from headwater.frameworks import jax as jax_side  # noqa: E402
from headwater.frameworks.jax import JAX_OPS, JAXCategorical, JAXDiagGaussian, JaxGenerator  # noqa: E402
from headwater.frameworks.numpy import NumpyGenerator  # noqa: E402
from headwater.frameworks.ops import DistributionError  # noqa: E402
from tests.policy.distributions.families import SIDES, SPECIMENS, inputs_for  # noqa: E402

SIDES["JAX"] = jax_side
every = pytest.mark.parametrize("name", SPECIMENS)


def make(name, inputs, key=0):
    dist = SPECIMENS[name].make("JAX")(inputs)
    dist.rng = JaxGenerator(key)
    return dist


def everything(name, inputs, others, key):
    """Each method of a distribution, at its own sample."""
    dist, other = make(name, inputs, key), make(name, others, key)
    sample = dist.sample()
    return sample, dist.logp(sample), dist.entropy(), dist.kl(other), dist.multi_entropy(), dist.deterministic_sample()


def close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


@every
def test_jit_gives_the_same(name):
    inputs, others = inputs_for(SPECIMENS[name], 5, 0), inputs_for(SPECIMENS[name], 5, 1)
    key = jax.random.key(3)
    close(jax.jit(lambda *a: everything(name, *a))(inputs, others, key), everything(name, inputs, others, key))


@every
def test_vmap_gives_the_same_as_rows(name):
    inputs, others = inputs_for(SPECIMENS[name], 6, 0), inputs_for(SPECIMENS[name], 6, 1)
    grouped, grouped_others = (x.reshape(2, 3, -1) for x in (inputs, others))
    keys = jax.random.split(jax.random.key(3), 2)
    got = jax.vmap(lambda *a: everything(name, *a))(grouped, grouped_others, keys)
    for i in range(2):
        close(jax.tree.map(lambda x, i=i: x[i], got), everything(name, grouped[i], grouped_others[i], keys[i]))


@every
def test_gradients_are_finite_and_the_same_under_jit(name):
    inputs, others = inputs_for(SPECIMENS[name], 5, 0), inputs_for(SPECIMENS[name], 5, 1)
    sample = make(name, others).sample()

    def total(x):
        dist = make(name, x)
        return (dist.logp(sample) + dist.entropy() + 0.5 * dist.kl(make(name, others))).sum()

    eager = jax.grad(total)(inputs)
    assert np.isfinite(eager).all()
    close(jax.jit(jax.grad(total))(inputs), eager)


def test_a_key_serves_as_a_generator():
    dist, key = JAXDiagGaussian(np.zeros((4, 2), np.float32)), jax.random.key(5)
    assert (dist.sample(key) == dist.sample(key)).all()
    assert (dist.sample(key) == dist.sample(JaxGenerator(key))).all()
    assert (dist.sample(jax.random.PRNGKey(5)) != dist.sample(jax.random.key(6))).any()
    assert (dist.sample(NumpyGenerator(1)) == dist.sample(NumpyGenerator(1))).all()
    dist.rng = key
    assert (dist.sample() != dist.sample()).any()


def test_the_parts_of_a_nested_sample_are_independent():
    dist = SPECIMENS["MultiActionDistribution"].make("JAX")(np.zeros((2000, 14), np.float32))
    sample = dist.sample(jax.random.key(0))
    arm, turn, push = np.asarray(sample["arm"][0])[:, 0], np.asarray(sample["turn"]), np.asarray(sample["push"])[:, 0]
    assert np.abs(np.corrcoef([arm, turn, push]) - np.eye(3)).max() < 0.1


def test_without_a_generator_nothing_is_drawn():
    dist = JAXCategorical(np.zeros((2, 4), np.float32))
    with pytest.raises(DistributionError, match="JAX has no global random generator: give rng=JaxGenerator"):
        dist.sample()
    with pytest.raises(DistributionError, match="no global"):
        JAX_OPS.normal(None, (2,))
    assert SPECIMENS["Deterministic"].make("JAX")(np.ones((1, 3))).sample().tolist() == [[1.0, 1.0, 1.0]]


def test_all_bits_of_a_seed_count():
    draws = [JaxGenerator(seed).uniform((4,)).tolist() for seed in (1, 1 + 2**32, 2**63 - 1, 2**64 - 1)]
    assert len({tuple(draw) for draw in draws}) == 4


def test_under_jit_an_action_outside_has_probability_zero():
    logp = jax.jit(lambda x, actions: JAXCategorical(x).logp(actions))
    got = logp(np.zeros((5, 3), np.float32), np.array([0.0, 7.0, -1.0, 0.5, 2.0], np.float32))
    assert np.isneginf(got).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("width", [3, 200])
def test_picking_from_few_and_many_columns(width):
    x, index = np.arange(4 * width, dtype=np.float32).reshape(4, width), np.array([0, 2, 1, width - 1])
    assert JAX_OPS.pick(JAX_OPS.asarray(x), JAX_OPS.asarray(index)).tolist() == x[np.arange(4), index].tolist()
    slopes = jax.grad(lambda x: JAX_OPS.pick(x, JAX_OPS.asarray(index)).sum())(x)
    assert slopes.tolist() == np.eye(width)[index].tolist()


def test_integers_that_32_bits_do_not_hold_stay_outside():
    assert JAX_OPS.asarray(np.array([2**40, -(2**40), 5])).tolist() == [2**31 - 1, -(2**31), 5]
    assert JAX_OPS.asarray(np.array([2**40], np.uint64)).tolist() == [2**32 - 1]
