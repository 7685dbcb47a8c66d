"""Every operation of the contract: equal values in all frameworks, and the edges that its docstring promises."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import warnings

import numpy as np
import pytest
import scipy.special
import torch

from headwater.frameworks.numpy import NUMPY_OPS, NumpyGenerator
from headwater.frameworks.ops import DistributionError, Ops
from headwater.frameworks.torch import TORCH_OPS, TorchGenerator
from tests.frameworks.all_ops import ALL, LEARNING, gradient, held_as, load_ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
Y = RNG.normal(size=(5, 3)).astype(np.float32)
MANY = RNG.normal(size=(400, 7)).astype(np.float32) * 3
CUBE = RNG.normal(size=(30, 4, 5)).astype(np.float32)
POSITIVE = np.array([1e-6, 0.1, 0.5, 1.0, 1.5, 2.0, 7.3, 100.0, 1e5], np.float32)
EXTREME = np.array([-1e4, -100.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 100.0, 1e4], np.float32)
MASKED = np.array([[0.0, -np.inf, 1.0], [-1e38, 5.0, -1e4]], np.float32)
INDEX = np.array([2, 0, 1, 1, 0])
BOOL = X > 0
SUMS = np.cumsum(np.abs(X), -1)
IMAGES = RNG.normal(size=(3, 9, 10, 2)).astype(np.float32)
REAL = np.array([[True, True, True, True], [True, True, False, False], [False] * 4])


def weights(*shapes, seed=1):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=shape) * 0.5).astype(np.float32) for shape in shapes]


LSTM = weights((3, 4, 5), (3, 6), (3, 6), (5, 24), (6, 24), (24,))  # x, h, c, kernel, recurrent, bias
GRU = weights((3, 4, 5), (3, 6), (5, 18), (6, 18), (18,), (6,))  # x, h, kernel, recurrent, bias, recurrent_bias


def recurrent(name, arrays, results):
    """Each of the results, of several steps and of one, with and without a mask."""

    def case(ops, steps, mask, result):
        x, *others = arrays
        real = None if mask is None else ops.asarray(mask[:, :steps])
        return getattr(ops, name)(ops.asarray(x[:, :steps]), *(ops.asarray(a) for a in others), real)[result]

    return [
        functools.partial(case, steps=steps, mask=mask, result=result)
        for steps, mask, result in itertools.product((4, 1), (None, REAL), range(results))
    ]


def elementwise(name, *arrays):
    return [lambda ops, a=a: getattr(ops, name)(ops.asarray(a)) for a in arrays]


# For each operation calls that must give the same in all frameworks.
CASES = {
    "asarray": [
        lambda ops: ops.asarray(X),
        lambda ops: ops.asarray([1.5, 2.5]),
        lambda ops: ops.asarray([1, 2]),
        lambda ops: ops.asarray(0.25),
        lambda ops: ops.asarray(X.astype(np.float64)),
        lambda ops: ops.asarray(np.float64(0.5)),
        lambda ops: ops.asarray([1.0, ops.asarray(2.0)], like=ops.asarray(X)),
        lambda ops: ops.asarray(ops.asarray(X), like=ops.asarray(Y)),
    ],
    "to_numpy": [lambda ops: ops.to_numpy(ops.asarray(X))],
    "to_float": [
        lambda ops: ops.to_float(ops.asarray(BOOL)),
        lambda ops: ops.to_float(ops.asarray(INDEX)),
        lambda ops: ops.to_float(ops.asarray(INDEX), like=ops.asarray(X.astype(np.float64))),
    ],
    "to_index": [
        lambda ops: ops.to_index(ops.asarray(INDEX.astype(np.float32))),
        lambda ops: ops.to_index(ops.asarray(INDEX.astype(np.int32))),
        lambda ops: ops.to_index(ops.asarray(INDEX.astype(np.uint8))),
    ],
    "stop_gradient": elementwise("stop_gradient", X),
    "shape": [lambda ops: np.array(ops.shape(ops.asarray(CUBE)))],
    "zeros": [
        lambda ops: ops.zeros((2, 3), ops.asarray(X)),
        lambda ops: ops.zeros((), ops.asarray(X.astype(np.float64))),
    ],
    "check": [lambda ops: np.array(ops.check(ops.asarray(np.array([True, True])), lambda: "") is None)],
    "exp": elementwise("exp", X, EXTREME[:7]),
    "log": elementwise("log", POSITIVE),
    "tanh": elementwise("tanh", X, EXTREME),
    "atanh": elementwise("atanh", np.tanh(X), np.array([1 - 1e-6, -1 + 1e-6], np.float32)),
    "sigmoid": elementwise("sigmoid", X, EXTREME),
    "softplus": elementwise("softplus", X, EXTREME),
    "square": elementwise("square", X),
    "sqrt": elementwise("sqrt", POSITIVE),
    "abs": elementwise("abs", X),
    "lgamma": elementwise("lgamma", POSITIVE),
    "digamma": elementwise("digamma", POSITIVE, np.abs(X) + 0.01),
    "isfinite": elementwise("isfinite", np.array([0.0, np.nan, np.inf, -np.inf], np.float32)),
    "minimum": [
        lambda ops: ops.minimum(ops.asarray(X), ops.asarray(Y)),
        lambda ops: ops.minimum(ops.asarray(X), 0.1),
        lambda ops: ops.minimum(ops.asarray(np.float32([np.nan, 1.0])), 0.5),
    ],
    "maximum": [
        lambda ops: ops.maximum(ops.asarray(X), ops.asarray(Y)),
        lambda ops: ops.maximum(ops.asarray(X), 0.1),
        lambda ops: ops.maximum(ops.asarray(np.float32([np.nan, 1.0])), 0.5),
    ],
    "clip": [
        lambda ops: ops.clip(ops.asarray(X), -0.5, 0.5),
        lambda ops: ops.clip(ops.asarray(X), low=0.0),
        lambda ops: ops.clip(ops.asarray(X), high=0.0),
        lambda ops: ops.clip(ops.asarray(X), -9.0, 9.0),
        lambda ops: ops.clip(ops.asarray(X), ops.asarray(Y - 0.1), ops.asarray(Y + 0.1)),
        lambda ops: ops.clip(ops.asarray(np.float32([np.nan, 3.0])), -1.0, 1.0),
    ],
    "where": [
        lambda ops: ops.where(ops.asarray(BOOL), ops.asarray(X), ops.asarray(Y)),
        lambda ops: ops.where(ops.asarray(BOOL), ops.asarray(X), 0.0),
        lambda ops: ops.where(ops.asarray(INDEX > 0), ops.asarray(INDEX), 0),
    ],
    "sum": [
        lambda ops: ops.sum(ops.asarray(X)),
        lambda ops: ops.sum(ops.asarray(X), -1),
        lambda ops: ops.sum(ops.asarray(X), 0, keepdims=True),
        lambda ops: ops.sum(ops.asarray(MANY), -1),
        lambda ops: ops.sum(ops.asarray(CUBE), -1, keepdims=True),
        lambda ops: ops.sum(ops.asarray(BOOL)),
        lambda ops: ops.sum(ops.asarray(BOOL), -1),
    ],
    "mean": [
        lambda ops: ops.mean(ops.asarray(X)),
        lambda ops: ops.mean(ops.asarray(X), -1),
        lambda ops: ops.mean(ops.asarray(X), 0),
    ],
    "var": [
        lambda ops: ops.var(ops.asarray(MANY)),
        lambda ops: ops.var(ops.asarray(X + 1000)),
        lambda ops: ops.var(ops.asarray(X[0])),
    ],
    "max": [
        lambda ops: ops.max(ops.asarray(X), -1),
        lambda ops: ops.max(ops.asarray(X), 0, keepdims=True),
        lambda ops: ops.max(ops.asarray(MANY), -1, keepdims=True),
        lambda ops: ops.max(ops.asarray(MANY), -1),
        lambda ops: ops.max(ops.asarray(CUBE), -1),
        lambda ops: ops.max(ops.asarray(CUBE), -1, keepdims=True),
    ],
    "all": [lambda ops: ops.all(ops.asarray(BOOL)), lambda ops: ops.all(ops.asarray(BOOL), -1)],
    "argmax": elementwise("argmax", X, MANY, CUBE, MASKED, np.zeros((2, 3), np.float32)),
    "cumsum": elementwise("cumsum", X, CUBE),
    "logsumexp": [
        lambda ops: ops.logsumexp(ops.asarray(MANY)),
        lambda ops: ops.logsumexp(ops.asarray(CUBE), keepdims=True),
        lambda ops: ops.logsumexp(ops.asarray(MASKED)),
        lambda ops: ops.logsumexp(ops.asarray(EXTREME)),
    ],
    "softmax": elementwise("softmax", X, MANY, CUBE, MASKED, EXTREME),
    "log_softmax": elementwise("log_softmax", X, MANY, CUBE, MASKED, EXTREME),
    "pick": [
        lambda ops: ops.pick(ops.asarray(X), ops.asarray(INDEX)),
        lambda ops: ops.pick(ops.asarray(CUBE), ops.asarray(np.arange(120).reshape(30, 4) % 5)),
        lambda ops: ops.pick(ops.asarray(X[0]), ops.asarray(np.int64(2))),
        lambda ops: ops.pick(ops.asarray(X[:0]), ops.asarray(INDEX[:0])),
    ],
    "searchsorted": [
        lambda ops: ops.searchsorted(ops.asarray(SUMS), ops.asarray(SUMS[:, 1])),
        lambda ops: ops.searchsorted(ops.asarray(SUMS), ops.asarray(SUMS[:, 0] * 0)),
        lambda ops: ops.searchsorted(ops.asarray(SUMS), ops.asarray(SUMS[:, -1] + 1)),
        lambda ops: ops.searchsorted(ops.asarray(SUMS * np.nan), ops.asarray(SUMS[:, 0])),
        lambda ops: ops.searchsorted(ops.asarray(np.cumsum(np.abs(CUBE), -1)), ops.asarray(np.abs(CUBE[..., 0]) * 2)),
    ],
    "one_hot": [lambda ops: ops.one_hot(ops.asarray(INDEX - 1), 2, ops.asarray(X))],
    "reshape": [lambda ops: ops.reshape(ops.asarray(X), (3, 5)), lambda ops: ops.reshape(ops.asarray(CUBE), (30, -1))],
    "split": [lambda ops, i=i: ops.split(ops.asarray(CUBE), (1, 4))[i] for i in (0, 1)],
    "concat": [
        lambda ops: ops.concat([ops.asarray(X), ops.asarray(Y)]),
        lambda ops: ops.concat([ops.asarray(X), ops.asarray(Y)], 0),
    ],
    "stack": [
        lambda ops: ops.stack([ops.asarray(X), ops.asarray(Y)]),
        lambda ops: ops.stack([ops.asarray(X), ops.asarray(Y)], 0),
    ],
    "transpose": [lambda ops: ops.transpose(ops.asarray(CUBE), (2, 0, 1))],
    "take_rows": [lambda ops: ops.take_rows(ops.asarray(CUBE), ops.asarray(np.array([3, 3, 0, 29])))],
    "relu": elementwise("relu", X, EXTREME),
    "elu": elementwise("elu", X, EXTREME),
    "silu": elementwise("silu", X, EXTREME),
    "matmul": [
        lambda ops: ops.matmul(ops.asarray(X), ops.asarray(Y.T)),
        lambda ops: ops.matmul(ops.asarray(CUBE[:6]), ops.asarray(CUBE[6:12].transpose(0, 2, 1))),
        lambda ops: ops.matmul(ops.asarray(CUBE), ops.asarray(CUBE[0].T)),
    ],
    "dense": [
        lambda ops: ops.dense(ops.asarray(X), ops.asarray(Y.T), ops.asarray(X[:, 0])),
        lambda ops: ops.dense(ops.asarray(CUBE), ops.asarray(CUBE[0].T), ops.asarray(CUBE[0, :, 0])),
    ],
    "conv": [
        lambda ops, kernel=kernel, stride=stride: ops.conv(
            ops.asarray(IMAGES), *(ops.asarray(w) for w in weights((4, *kernel, 2), (4,))), stride
        )
        for kernel, stride in (((3, 3), (1, 1)), ((4, 2), (2, 3)), ((9, 10), (1, 1)))
    ],
    "lstm": recurrent("lstm", LSTM, 3),
    "gru": recurrent("gru", GRU, 2),
    # Frameworks draw different numbers; equal are the moments (the tests below) and the state's behaviour.
    "generator": [lambda ops: ops.asarray(np.array(list(ops.generator(3).get_state()) != []))],
    "uniform": [
        lambda ops: ops.uniform(NumpyGenerator(1), (4, 2)),
        lambda ops: ops.uniform(np.random.default_rng(1), (4, 2)),
    ],
    "normal": [
        lambda ops: ops.normal(NumpyGenerator(1), (4, 2)),
        lambda ops: ops.normal(np.random.default_rng(1), (4, 2)),
    ],
}


@pytest.fixture(params=ALL)
def framework(request):
    return request.param


@pytest.fixture
def ops(framework):
    return load_ops(framework)


def test_every_operation_of_the_contract_has_cases():
    public = {name for name, _ in inspect.getmembers(Ops, inspect.isfunction) if not name.startswith("_")}
    assert public == Ops.__abstractmethods__
    assert set(CASES) == public
    assert all(CASES.values())


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_framework_equals_numpy(name, framework, ops):
    for number, case in enumerate(CASES[name]):
        expected, got = np.asarray(case(NUMPY_OPS)), case(ops)
        got = got if isinstance(got, np.ndarray) else ops.to_numpy(got)
        assert expected.shape == got.shape, number
        assert held_as(framework, expected.dtype) == held_as(framework, got.dtype), number
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6, err_msg=f"case {number}")


def test_special_functions_equal_scipy():
    x = np.concatenate([np.logspace(-8, 8, 200), np.linspace(0.5, 20, 100)])
    np.testing.assert_allclose(NUMPY_OPS.lgamma(x), scipy.special.gammaln(x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(NUMPY_OPS.digamma(x), scipy.special.digamma(x), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(NUMPY_OPS.log_softmax(MANY), scipy.special.log_softmax(MANY, -1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(NUMPY_OPS.softplus(EXTREME), np.logaddexp(0, EXTREME), rtol=1e-6)


def test_softmax_gives_a_masked_logit_exactly_nothing(ops):
    probs = ops.to_numpy(ops.softmax(ops.asarray(MASKED)))
    assert probs[0, 1] == 0.0 and probs[1, 0] == 0.0
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
def test_pick_names_an_index_outside(framework, ops, bad):
    shown = min(bad, np.iinfo(held_as(framework, np.int64)).max)
    with pytest.raises(DistributionError, match=rf"action {shown} \(row 3\) is outside 0..2"):
        ops.pick(ops.asarray(X), ops.asarray(np.array([0, 1, 2, bad, 0])), "action")


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, 1e20])
def test_to_index_names_a_number_that_is_not_whole(ops, bad):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DistributionError, match="action .* is not a whole number"):
            ops.to_index(ops.asarray(np.array([1.0, bad], np.float32)), "action")


def test_compiled_torch_gives_minus_infinity_where_it_cannot_raise():
    pick = torch.compile(lambda x, i: TORCH_OPS.pick(x, TORCH_OPS.to_index(i)), backend="eager", fullgraph=True)
    got = pick(torch.from_numpy(X), torch.tensor([0.0, 7.0, -1.0, 0.5, 2.0]))
    np.testing.assert_array_equal(got.isinf().numpy(), [False, True, True, True, False])
    assert got[0] == X[0, 0] and got[4] == X[4, 2]


def test_check_raises_its_message(ops):
    with pytest.raises(DistributionError, match="here"):
        ops.check(ops.asarray(np.array([True, False])), lambda: "here")


def test_networks_operations_equal_torchs_modules():
    x, h, c, kernel, matrix, bias = LSTM
    module = torch.nn.LSTM(5, 6, batch_first=True)
    own = {"weight_ih_l0": kernel.T, "weight_hh_l0": matrix.T, "bias_ih_l0": bias, "bias_hh_l0": bias * 0}
    module.load_state_dict({name: torch.tensor(value) for name, value in own.items()})
    with torch.no_grad():
        expected, (last_h, last_c) = module(torch.tensor(x), (torch.tensor(h)[None], torch.tensor(c)[None]))
    for got, wanted in zip(NUMPY_OPS.lstm(*LSTM), (expected, last_h[0], last_c[0]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)

    x, h, kernel, matrix, bias, candidate = GRU
    module = torch.nn.GRU(5, 6, batch_first=True)
    second = np.concatenate([np.zeros(12, np.float32), candidate])
    own = {"weight_ih_l0": kernel.T, "weight_hh_l0": matrix.T, "bias_ih_l0": bias, "bias_hh_l0": second}
    module.load_state_dict({name: torch.tensor(value) for name, value in own.items()})
    with torch.no_grad():
        expected, last_h = module(torch.tensor(x), torch.tensor(h)[None])
    for got, wanted in zip(NUMPY_OPS.gru(*GRU), (expected, last_h[0]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


# For each operation of networks: a function of arrays, and the arrays; gradients flow to each of them.
GRADIENTS = {
    "relu": [(lambda ops, x: ops.relu(x), [X])],
    "elu": [(lambda ops, x: ops.elu(x), [X])],
    "silu": [(lambda ops, x: ops.silu(x), [X]), (lambda ops, x: ops.silu(x), [EXTREME])],
    "matmul": [
        (lambda ops, x, y: ops.matmul(x, y), [X, Y.T]),
        (lambda ops, x, y: ops.matmul(x, y), [CUBE, CUBE[0].T]),
    ],
    "dense": [(lambda ops, x, kernel, bias: ops.dense(x, kernel, bias), [CUBE, CUBE[0].T, CUBE[0, :, 0]])],
    "conv": [
        (lambda ops, x, kernel, bias: ops.conv(x, kernel, bias, (1, 1)), [IMAGES, *weights((4, 3, 3, 2), (4,))]),
        (lambda ops, x, kernel, bias: ops.conv(x, kernel, bias, (2, 3)), [IMAGES, *weights((4, 4, 2, 2), (4,))]),
    ],
    "transpose": [(lambda ops, x: ops.transpose(x, (2, 0, 1)), [CUBE])],
    "take_rows": [(lambda ops, x: ops.take_rows(x, ops.asarray(np.array([3, 3, 0, 29]))), [CUBE])],
}
for name, arrays in (("lstm", LSTM), ("gru", GRU)):
    GRADIENTS[name] = [
        (lambda ops, *arrays, name=name, mask=mask: ops.concat([ops.reshape(part, (-1,)) for part in getattr(ops, name)(
            *arrays, None if mask is None else ops.asarray(mask))]), arrays) for mask in (None, REAL)
    ]  # fmt: skip


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_networks_operations_are_differences_in_float64(name, framework, ops):
    """Of a weighted sum of what comes out, by each of the arrays, along random directions."""
    for function, arrays in GRADIENTS[name]:
        rng = np.random.default_rng(2)
        shape = function(NUMPY_OPS, *arrays).shape
        shares = rng.normal(size=shape) / np.sqrt(np.prod(shape))
        for i, x in enumerate(arrays):

            def value(x, ops=ops, i=i, function=function, arrays=arrays, shares=shares, dtype=np.float32):
                others = [ops.asarray(array.astype(dtype)) for array in arrays]
                y = function(ops, *others[:i], x, *others[i + 1 :])
                return ops.sum(y * ops.asarray(shares.astype(dtype)))

            slopes = gradient(framework, value, x)
            direction = rng.normal(size=x.shape)
            after, before = (
                value(x.astype(np.float64) + step * direction, ops=NUMPY_OPS, dtype=np.float64)
                for step in (1e-6, -1e-6)
            )
            assert (slopes * direction).sum() == pytest.approx((after - before) / 2e-6, rel=1e-4, abs=1e-5), i


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("framework", LEARNING)
def test_what_is_not_real_reaches_no_gradient_of_a_memory(framework, ops, name):
    x, *others = LSTM if name == "lstm" else GRU
    others = [ops.asarray(other) for other in others]
    slopes = gradient(framework, lambda x: ops.sum(getattr(ops, name)(x, *others, ops.asarray(REAL))[0]), x)
    assert not slopes[~REAL].any() and (slopes[REAL] != 0).all()


@pytest.mark.parametrize("framework", LEARNING)
def test_where_lets_no_gradient_through_what_it_did_not_take(framework, ops):
    taken = ops.asarray(np.array([True, False]))
    slopes = gradient(framework, lambda x: ops.sum(ops.square(ops.where(taken, x, 0.0))), np.float32([1.0, np.nan]))
    assert slopes.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-1.0, None), (None, 1.0), (-9.0, 9.0), (-2.0, 2.0)])
def test_clip_has_gradients_inside_only(framework, ops, low, high):
    x, weights = np.float32([-2.0, 0.0, 2.0]), np.float32([3.0, 4.0, 5.0])
    slopes = gradient(framework, lambda x: ops.sum(ops.clip(x, low, high) * ops.asarray(weights)), x)
    inside = [(low is None or low <= value) and (high is None or value <= high) for value in x]
    assert slopes.tolist() == (weights * inside).tolist()


def test_asarray_takes_read_only_memory_without_a_warning():
    frozen = X.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = TORCH_OPS.asarray(frozen)
    tensor.zero_()
    assert frozen.any()


def test_generators_are_seeded_and_continue_from_their_state(ops):
    first, second, other = ops.generator(5), ops.generator(5), ops.generator(6)
    drawn = [ops.to_numpy(ops.uniform(rng, (6,))) for rng in (first, second, other)]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()
    state = first.get_state()
    ahead = ops.to_numpy(ops.normal(first, (7,)))
    fresh = ops.generator(99)
    fresh.set_state(state)
    np.testing.assert_array_equal(ops.to_numpy(ops.normal(fresh, (7,))), ahead)
    json.dumps({key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()})


@pytest.mark.parametrize("rng", ["own", None])
def test_random_numbers_have_the_right_moments(framework, ops, rng):
    if framework == "jax" and rng is None:
        pytest.skip("JAX has no global generator")
    torch.manual_seed(0)
    rng = ops.generator(0) if rng == "own" else None
    uniform = ops.to_numpy(ops.uniform(rng, (50_000,)))
    normal = ops.to_numpy(ops.normal(rng, (50_000,), like=ops.asarray(X)))
    assert uniform.dtype == normal.dtype == np.float32
    assert uniform.min() >= 0 and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(uniform.var() - 1 / 12) < 0.005
    assert abs(normal.mean()) < 0.03 and abs(normal.var() - 1) < 0.03


class Float64Stream:
    """A source like the sampler's: NumPy arrays of float64, whatever the framework."""

    def uniform(self, shape):
        return np.full(shape, 1.0 - 2.0**-53)

    def normal(self, shape):
        return np.full(shape, 0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_source_of_numbers_serves(framework, ops, dtype):
    like = ops.asarray(X.astype(dtype))
    for x in (ops.uniform(Float64Stream(), (2, 3), like), ops.normal(Float64Stream(), (2, 3), like)):
        assert ops.to_numpy(x).dtype == held_as(framework, dtype) and ops.shape(x) == (2, 3)


def test_torch_state_of_another_device_is_refused():
    state = TorchGenerator(0).get_state()
    state["device"] = "cuda"
    with pytest.raises(DistributionError, match="'cuda'"):
        TorchGenerator(0).set_state(state)
