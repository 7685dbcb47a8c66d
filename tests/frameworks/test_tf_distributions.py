"""What only TensorFlow has to show of its distributions: names of graphs, gradients, functions with unknown rows."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import headwater.frameworks.tf as side  # noqa: E402
from headwater.frameworks.numpy import NumpyGenerator  # noqa: E402
from headwater.frameworks.tf import TF_OPS, Categorical, DiagGaussian, SquashedGaussian, TFGenerator  # noqa: E402
from headwater.policy import distributions as families  # noqa: E402
from headwater.policy.distributions import DistributionError  # noqa: E402

LOGITS = np.float32([[0.3, 1.0, -0.2], [0.0, 0.0, 2.0]])


def test_sample_op_is_drawn_once_and_is_what_sample_gave_last():
    dist = Categorical(LOGITS)
    dist.rng = TFGenerator(0)
    first = dist.sample_op
    assert dist.sample_op is first and dist.last_sample is first
    np.testing.assert_array_equal(dist.sampled_action_logp_op, dist.logp(first))
    second = dist.sample()
    assert dist.sample_op is second
    np.testing.assert_array_equal(dist.sampled_action_logp(), dist.sampled_action_logp_op)
    greedy = dist.deterministic_sample()
    assert dist.sample_op is greedy


def test_a_distribution_of_ones_own_may_say_by_build_sample_op_what_is_sampled():
    class Second(Categorical):
        def _build_sample_op(self):
            return tf.ones_like(self.inputs[:, 0], tf.int64)

    dist = Second(LOGITS)
    assert dist.sample_op.numpy().tolist() == dist.sample().numpy().tolist() == [1, 1]


def test_nothing_sampled_yet_is_said_by_the_method_and_drawn_by_the_op():
    dist = Categorical(LOGITS)
    with pytest.raises(DistributionError, match="before anything was sampled"):
        dist.sampled_action_logp()
    assert dist.sampled_action_logp_op.shape == (2,)


def test_all_families_are_bound():
    bound = {
        name
        for name in families.__all__
        if isinstance(getattr(families, name), type)
        and issubclass(getattr(families, name), families.ActionDistribution)
    }
    for name in bound - {"ActionDistribution"}:
        assert issubclass(getattr(side, name), side.TFActionDistribution)
        assert issubclass(getattr(side, name), getattr(families, name))
        assert name in side.__all__


@pytest.mark.parametrize("masked", [-np.inf, -1e38, -3e38])
def test_masked_logits_have_no_gradient_and_no_nan(masked):
    logits = tf.constant([[0.3, masked, -0.2, masked]] * 3)
    old = Categorical(tf.constant([[0.1, masked, 0.2, masked]] * 3))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        dist = Categorical(logits)
        total = dist.logp(tf.constant([0, 2, 0], tf.int64)) + dist.entropy() + old.kl(dist) + dist.kl(old)
    slope = tape.gradient(total, logits).numpy()
    assert np.isfinite(total).all() and np.isfinite(slope).all()
    assert (slope[:, [1, 3]] == 0).all() and (slope[:, [0, 2]] != 0).any()


def test_samples_of_gaussians_are_reparameterised():
    for make in (DiagGaussian, SquashedGaussian):
        inputs = tf.zeros((1, 4))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            sample = make(inputs).sample(NumpyGenerator(0))
        assert (tape.gradient(sample, inputs).numpy() != 0).all()


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (Categorical, 6),
        (lambda x: side.MultiCategorical(x, input_lens=[2, 2, 2]), 6),
        (lambda x: side.MultiCategorical(x, input_lens=[2, 4]), 6),
        (side.GumbelSoftmax, 6),
        (DiagGaussian, 6),
        (lambda x: DiagGaussian(x, action_shape=(3, 1)), 6),
        (lambda x: SquashedGaussian(x, low=np.float32([-1, 0, 1]), high=np.float32([2, 2, 2])), 6),
        (lambda x: side.Deterministic(x, action_shape=(2, 3)), 6),
    ],
)
def test_functions_of_unknown_rows_give_the_eager_numbers(make, width):
    def numbers(inputs, others):
        dist, other = make(inputs), make(others)
        actions = dist.deterministic_sample()
        return dist.logp(actions), dist.kl(other), dist.multi_kl(other), dist.masked(inputs[:, 0] > 0).logp(actions)

    traced = tf.function(numbers, input_signature=[tf.TensorSpec((None, width))] * 2, autograph=False)
    rng = np.random.default_rng(0)
    for rows in (3, 7):
        inputs, others = (rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))
        for ours, eager in zip(traced(inputs, others), numbers(tf.constant(inputs), tf.constant(others)), strict=True):
            np.testing.assert_allclose(ours, eager, rtol=1e-5, atol=1e-6)
    assert traced.experimental_get_tracing_count() == 1


def test_inputs_and_actions_that_are_no_tensors_become_ones():
    dist = Categorical([[0.0, 1.0]])
    assert isinstance(dist.inputs, tf.Tensor) and dist.inputs.dtype == tf.float32
    assert isinstance(dist.logp([1]), tf.Tensor)
    assert dist.ops is TF_OPS
