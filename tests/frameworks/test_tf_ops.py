"""What only TensorFlow has to show of its ops: functions traced with unknown sizes, and its generator inside them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from headwater.frameworks.numpy import NUMPY_OPS, NumpyGenerator  # noqa: E402
from headwater.frameworks.ops import DistributionError  # noqa: E402
from headwater.frameworks.tf import TF_OPS, TFGenerator  # noqa: E402

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def traced(function, *specs):
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def memory_of(kind, inputs=3, width=4):
    gates = {"lstm": 4, "gru": 3}[kind]
    weights = [random(inputs, gates * width), random(width, gates * width), random(gates * width)]
    return weights if kind == "lstm" else [*weights, random(width)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_memory_over_an_unknown_number_of_steps(kind, masked):
    weights = memory_of(kind)
    states = 2 if kind == "lstm" else 1

    def run(x, state, mask):
        state = tf.split(state, states, -1)
        return getattr(TF_OPS, kind)(x, *state, *map(tf.constant, weights), mask=mask if masked else None)

    run_traced = traced(run, ((None, None, 3),), ((None, 4 * states),), ((None, None), tf.bool))
    for rows, steps in ((2, 1), (3, 6), (1, 20)):
        x, state = random(rows, steps, 3), random(rows, 4 * states)
        mask = np.arange(steps) < RNG.integers(1, steps + 1, (rows, 1))
        expected = getattr(NUMPY_OPS, kind)(
            x, *np.split(state, states, -1), *weights, mask=mask if masked else None
        )  # fmt: skip
        for got in (run_traced(x, state, mask), run(tf.constant(x), tf.constant(state), tf.constant(mask))):
            for ours, theirs in zip(got, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert run_traced.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_through_memory_do_not_depend_on_whether_the_steps_are_known(kind):
    weights = memory_of(kind)
    state = random(2, 8 if kind == "lstm" else 4)

    def slope(x):
        kernel = tf.constant(weights[0])
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            parts = tf.split(tf.constant(state), state.shape[1] // 4, -1)
            outputs, *_ = getattr(TF_OPS, kind)(x, *parts, kernel, *map(tf.constant, weights[1:]))
            loss = tf.reduce_sum(tf.square(outputs))
        return tape.gradient(loss, [x, kernel])

    x = random(2, 5, 3)
    for unknown, known in zip(traced(slope, ((None, None, 3),))(x), slope(tf.constant(x)), strict=True):
        np.testing.assert_allclose(unknown, known, rtol=1e-5, atol=1e-5)


def test_shapes_with_unknown_rows_serve_wherever_shapes_are_taken():
    rng = TFGenerator(0)

    def run(x):
        rows, width = TF_OPS.shape(x)
        assert width == 6
        zeros = TF_OPS.zeros((rows, 2), x)
        drawn = TF_OPS.uniform(rng, (rows,), x) + TF_OPS.normal(rng, (rows,), x) + TF_OPS.normal(None, (rows,), x)
        return TF_OPS.reshape(x, (rows, 2, 3)), TF_OPS.reshape(x, (rows, -1)), zeros, drawn

    run = traced(run, ((None, 6),))
    for rows in (1, 5):
        assert [tuple(y.shape) for y in run(random(rows, 6))] == [(rows, 2, 3), (rows, 6), (rows, 2), (rows,)]


def test_traced_pick_gives_minus_infinity_where_it_cannot_raise():
    run = traced(lambda x, i: TF_OPS.pick(x, TF_OPS.to_index(i)), ((None, 3),), ((None,),))
    got = run(np.arange(15, dtype=np.float32).reshape(5, 3), np.float32([0, 7, -1, 0.5, 2])).numpy()
    np.testing.assert_array_equal(got, np.float32([0, -np.inf, -np.inf, -np.inf, 14]))


def test_traced_checks_are_left_out():
    assert traced(lambda ok: TF_OPS.check(ok, lambda: "") or ok, ((None,), tf.bool))([False]).numpy() == [False]


def test_a_generator_draws_anew_in_each_call_of_a_traced_function():
    rng = TFGenerator(3)
    draw = tf.function(lambda: TF_OPS.uniform(rng, (4,)))
    first, second = draw().numpy(), draw().numpy()
    assert (first != second).all()
    again = TFGenerator(3)
    np.testing.assert_array_equal(first, TF_OPS.uniform(again, (4,)))


@pytest.mark.parametrize("rng", [np.random.default_rng(0), NumpyGenerator(0)], ids=["numpy", "headwater"])
def test_numbers_that_tracing_would_freeze_are_refused(rng):
    for draw in (TF_OPS.uniform, TF_OPS.normal):
        with pytest.raises(DistributionError, match="would draw only once.*TFGenerator"):
            tf.function(lambda draw=draw: draw(rng, (2,)), autograph=False)()


def test_a_generator_of_tensorflow_serves_too():
    assert TF_OPS.uniform(tf.random.Generator.from_seed(1), (3,)).dtype == tf.float32


def test_importing_says_nothing_and_keeps_what_others_say():
    code = "import headwater.frameworks.tf, sys; sys.stderr.write('mine\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "mine\n")
