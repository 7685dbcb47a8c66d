"""NumPy's own gradients, against torch's: every op, broadcasting, and the whole of PPO's loss."""

import numpy as np
import pytest
import torch

from headwater.algorithms.ppo.config import PPOConfig
from headwater.algorithms.ppo.loss import ppo_loss
from headwater.config import ModelConfig
from headwater.frameworks.numpy.tape import Taped, gradients, value_of, watch
from headwater.frameworks.numpy.taped_ops import TAPED_OPS
from headwater.frameworks.ops import DistributionError, Ops
from headwater.frameworks.torch import TORCH_OPS
from headwater.policy.catalog import ModelCatalog
from tests.frameworks.policies import ACTION_SPACES

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(5, 4)).astype(np.float32)
INDEX = np.array([0, 3, 1, 1, 2])

# Name -> (function of ops and two [5, 4] arrays, what their entries may be).
REAL, POSITIVE, UNIT = "real", "positive", "unit"
EXPRESSIONS = {
    "exp": (lambda o, x, y: o.exp(x), REAL),
    "log": (lambda o, x, y: o.log(x), POSITIVE),
    "tanh": (lambda o, x, y: o.tanh(x), REAL),
    "atanh": (lambda o, x, y: o.atanh(x), UNIT),
    "sigmoid": (lambda o, x, y: o.sigmoid(x), REAL),
    "softplus": (lambda o, x, y: o.softplus(x), REAL),
    "square": (lambda o, x, y: o.square(x), REAL),
    "sqrt": (lambda o, x, y: o.sqrt(x), POSITIVE),
    "abs": (lambda o, x, y: o.abs(x), REAL),
    "lgamma": (lambda o, x, y: o.lgamma(x), POSITIVE),
    "minimum": (lambda o, x, y: o.minimum(x, y), REAL),
    "minimum of equals": (lambda o, x, y: o.minimum(x, o.stop_gradient(x) + 0.0 * y), REAL),
    "minimum with a number": (lambda o, x, y: o.minimum(x, 0.3), REAL),
    "maximum": (lambda o, x, y: o.maximum(x, y), REAL),
    "maximum with a number": (lambda o, x, y: o.maximum(x, 0.3), REAL),
    "maximum broadcast": (lambda o, x, y: o.maximum(x, o.mean(y, -1)[..., None]), REAL),
    "clip": (lambda o, x, y: o.clip(x, -0.5, 0.5), REAL),
    "clip below": (lambda o, x, y: o.clip(x, -0.5), REAL),
    "clip above": (lambda o, x, y: o.clip(x, None, 0.5), REAL),
    "where": (lambda o, x, y: o.where(x > y, x * y, y), REAL),
    "where with numbers": (lambda o, x, y: o.where(x > 0, x, 0.0) + o.where(y > 0, 1.0, y), REAL),
    "where broadcast": (lambda o, x, y: o.where(x > 0, o.sum(x), y), REAL),
    "sum": (lambda o, x, y: o.sum(x * y), REAL),
    "sum of rows": (lambda o, x, y: o.sum(x, -1), REAL),
    "sum, first axis": (lambda o, x, y: o.sum(x, 0), REAL),
    "sum, kept": (lambda o, x, y: x * o.sum(x, -1, keepdims=True), REAL),
    "mean": (lambda o, x, y: o.mean(x), REAL),
    "mean of rows": (lambda o, x, y: o.mean(x, -1), REAL),
    "var": (lambda o, x, y: o.var(x), REAL),
    "max": (lambda o, x, y: o.max(x, -1), REAL),
    "max, kept": (lambda o, x, y: x - o.max(x, -1, keepdims=True), REAL),
    "cumsum": (lambda o, x, y: o.cumsum(x), REAL),
    "logsumexp": (lambda o, x, y: o.logsumexp(x), REAL),
    "logsumexp, kept": (lambda o, x, y: x - o.logsumexp(x, keepdims=True), REAL),
    "softmax": (lambda o, x, y: o.softmax(x), REAL),
    "log_softmax": (lambda o, x, y: o.log_softmax(x), REAL),
    "pick": (lambda o, x, y: o.pick(x, o.asarray(INDEX, like=x)), REAL),
    "reshape": (lambda o, x, y: o.reshape(x, (2, -1)) * 2.0, REAL),
    "split": (lambda o, x, y: o.split(x, (1, 3))[0] * o.split(y, (3, 1))[1], REAL),
    "concat": (lambda o, x, y: o.concat([x, y, o.stop_gradient(x)]), REAL),
    "concat, first axis": (lambda o, x, y: o.concat([y, x], 0), REAL),
    "stack": (lambda o, x, y: o.stack([x, y]), REAL),
    "stack, first axis": (lambda o, x, y: o.stack([x, y], 0), REAL),
    "stop_gradient": (lambda o, x, y: x * o.stop_gradient(x), REAL),
    "operators": (lambda o, x, y: (2.0 - x) * 3.0 + x / y - 1.0 / y + y**2 + (-x) - 0.5, POSITIVE),
    "where of two numbers": (lambda o, x, y: x * o.where(x > 0, 2.0, -1.0), REAL),
    "array on the left": (lambda o, x, y: o.asarray(WEIGHTS) * x - o.asarray(WEIGHTS) / y, POSITIVE),
    "array less": (lambda o, x, y: o.asarray(WEIGHTS) - y, POSITIVE),
    "rows against columns": (lambda o, x, y: x[:, :1] * y[:1] + x[0] - y[..., 1:2], REAL),
    "slices": (lambda o, x, y: x[1:3, ::2] * y[-2:, 1:3], REAL),
    "used twice": (lambda o, x, y: x * x + o.exp(x) * x, REAL),
    "to_float": (lambda o, x, y: o.to_float(x, like=y) + o.to_float(x > 0, like=y), REAL),
    "zeros": (lambda o, x, y: x + o.zeros((4,), like=x), REAL),
    "one_hot": (lambda o, x, y: x * o.one_hot(o.asarray(INDEX, like=x), 4, like=x), REAL),
}  # fmt: skip


def entries(kind, seed):
    x = np.random.default_rng(seed).normal(size=(5, 4)).astype(np.float32)
    return {REAL: x, POSITIVE: np.abs(x) + 0.2, UNIT: np.tanh(x)}[kind]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_gradients_equal_torchs(name):
    function, kind = EXPRESSIONS[name]
    x, y = entries(kind, 1), entries(kind, 2)

    a, b = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    reference = function(TORCH_OPS, a, b)
    scale = np.random.default_rng(3).normal(size=tuple(reference.shape)).astype(np.float32)
    (reference * torch.from_numpy(np.asarray(scale))).sum().backward()

    watched = watch(x, y)
    result = function(TAPED_OPS, *watched)
    assert result.value == pytest.approx(reference.detach().numpy(), rel=1e-5, abs=1e-6)
    got = gradients(TAPED_OPS.sum(result * scale), watched)
    for ours, theirs in zip(got, (a.grad, b.grad), strict=True):
        if theirs is None:
            assert ours is None or not ours.any()
        else:
            assert ours.shape == (5, 4)
            assert ours == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-5)


def test_every_op_with_a_gradient_is_here():
    without = {
        "asarray", "to_numpy", "to_index", "shape", "check", "isfinite", "all", "argmax", "searchsorted", "digamma",
        "generator", "uniform", "normal",
    }  # fmt: skip
    tested = {word for name in EXPRESSIONS for word in (name.split(",")[0].split()[0],)}
    assert set(Ops.__abstractmethods__) - without <= tested


def test_what_does_not_depend_on_the_watched_is_plain():
    (x,) = watch(WEIGHTS)
    assert isinstance(TAPED_OPS.exp(WEIGHTS), np.ndarray)
    assert isinstance(TAPED_OPS.stop_gradient(x), np.ndarray)
    assert isinstance(TAPED_OPS.exp(x), Taped)
    assert isinstance(x > 0, np.ndarray)
    for answer in (TAPED_OPS.isfinite(x), TAPED_OPS.argmax(x), TAPED_OPS.to_numpy(x)):
        assert isinstance(answer, np.ndarray)
    assert gradients(TAPED_OPS.sum(WEIGHTS), [x]) == [None]


def test_comparisons():
    (x,) = watch(WEIGHTS)
    for answer, expected in (
        (x < 0, WEIGHTS < 0), (x <= x, WEIGHTS <= WEIGHTS), (x >= 0, WEIGHTS >= 0), (x == x, WEIGHTS == WEIGHTS),
        (x != 0, WEIGHTS != 0),
    ):  # fmt: skip
        assert np.array_equal(answer, expected)


def test_digamma_has_no_gradient():
    with pytest.raises(DistributionError, match="digamma"):
        TAPED_OPS.digamma(watch(np.abs(WEIGHTS))[0])


def test_memory_is_freed_without_a_garbage_collection():
    import gc
    import weakref

    class Watched(np.ndarray):
        pass

    (x,) = watch(WEIGHTS)
    middle = TAPED_OPS.exp(x)
    middle.value = middle.value.view(Watched)
    gone = weakref.ref(middle.value)
    gc.disable()
    try:
        gradients(TAPED_OPS.sum(middle * 2.0), [x])
        del middle
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ACTION_SPACES)
@pytest.mark.parametrize("settings", [
    {}, {"kl_coeff": 0.3, "entropy_coeff": 0.02}, {"vf_clip_param": 0.3},
    {"use_critic": False, "use_gae": False, "batch_mode": "complete_episodes"},
])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_ppo_loss_equals_torchs(name, settings, masked):
    space, config = ACTION_SPACES[name], PPOConfig(**settings)
    rng = np.random.default_rng(5)
    rows = 64
    sources = {
        framework: ModelCatalog.get_action_dist(space, ModelConfig(), framework)
        for framework in ("taped", "torch", "numpy")
    }
    width = sources["torch"][1]
    old, inputs = (rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))
    old_dist = sources["torch"][0](torch.from_numpy(old))
    from tests.frameworks.policies import flat_actions

    sampled = sources["numpy"][0](old).sample()
    actions = flat_actions(sampled, rows)
    values = rng.normal(size=rows).astype(np.float32)
    batch = {
        "actions": actions,
        "action_logp": old_dist.logp(torch.from_numpy(actions)).numpy() + rng.normal(0, 0.1, rows).astype(np.float32),
        **{column: rng.normal(size=rows).astype(np.float32) for column in ("advantages", "vf_preds", "value_targets")},
    }
    if masked:
        batch["mask"] = rng.random(rows) > 0.4
    coeffs = {"kl_coeff": config.kl_coeff, "entropy_coeff": config.entropy_coeff}

    a, b = torch.tensor(inputs, requires_grad=True), torch.tensor(values, requires_grad=True)
    tensors = {column: torch.from_numpy(array) for column, array in batch.items()}
    reference, their_stats = ppo_loss(TORCH_OPS, sources["torch"][0](a), old_dist, b, tensors, coeffs, config)
    theirs = torch.autograd.grad(reference, (a, b), allow_unused=True)

    watched = watch(inputs, values)
    taped = sources["taped"][0]
    loss, stats = ppo_loss(TAPED_OPS, taped(watched[0]), taped(old), watched[1], batch, coeffs, config)
    assert float(value_of(loss)) == pytest.approx(reference.item(), rel=1e-5, abs=1e-6)
    assert {key: float(value_of(v)) for key, v in stats.items()} == pytest.approx(
        {key: float(v) for key, v in their_stats.items()}, rel=1e-4, abs=1e-5
    )
    for ours, their in zip(gradients(loss, watched), theirs, strict=True):
        if their is None:
            assert ours is None
        else:
            assert ours.dtype == np.float32
            assert ours == pytest.approx(their.numpy(), rel=1e-4, abs=1e-6)
