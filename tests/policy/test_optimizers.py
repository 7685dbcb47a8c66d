"""Optimizers over ops: torch's numbers, bad updates skipped, settings that nobody reads refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headwater.errors import ConfigError
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy.optimizers import (
    MAX_GRADIENT_NORM,
    clip_to_norm,
    guarded_step,
    make_optimizer,
    optimizer_settings,
)

LR = 0.01
# Of many magnitudes, and zeros.
NUMBERS = st.builds(lambda digits, power: float(digits) * 10.0**power, st.integers(-999, 999), st.integers(-8, -2)).map(
    np.float32
)
TORCHS = {
    "adam": ({"name": "adam"}, lambda p: torch.optim.Adam(p, lr=LR, eps=1e-5)),
    "adam, others": (
        {"name": "adam", "eps": 1e-8, "beta1": 0.5, "beta2": 0.9},
        lambda p: torch.optim.Adam(p, lr=LR, eps=1e-8, betas=(0.5, 0.9)),
    ),
    "adam without means": (
        {"name": "adam", "beta1": 0.0, "beta2": 0.99},
        lambda p: torch.optim.Adam(p, lr=LR, eps=1e-5, betas=(0.0, 0.99)),
    ),
    "sgd": ({"name": "sgd"}, lambda p: torch.optim.SGD(p, lr=LR)),
    "momentum": ({"name": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9)),
    "rmsprop": ({"name": "rmsprop"}, lambda p: torch.optim.RMSprop(p, lr=LR)),
    "rmsprop, others": (
        {"name": "rmsprop", "alpha": 0.9, "eps": 1e-5, "momentum": 0.5},
        lambda p: torch.optim.RMSprop(p, lr=LR, alpha=0.9, eps=1e-5, momentum=0.5),
    ),
}


def fresh_state(optimizer, size):
    zeros = {name: np.zeros(size, np.float32) for name in optimizer.moments}
    return {"step": np.float32(0), **zeros}


@pytest.mark.parametrize("name", TORCHS)
@settings(max_examples=20, deadline=None)
@given(gradients=arrays(np.float32, (20, 6), elements=NUMBERS))
def test_twenty_steps_are_torchs(name, gradients):
    given_settings, reference = TORCHS[name]
    optimizer = make_optimizer(given_settings)
    weights = np.linspace(-1, 1, 6, dtype=np.float32)
    twin = torch.from_numpy(weights.copy()).requires_grad_()
    theirs = reference([twin])
    state = fresh_state(optimizer, 6)
    for gradient in gradients:
        taken = guarded_step(NUMPY_OPS, optimizer, weights, gradient, state, 0.0, np.float32(LR), None)
        weights, state = taken.weights, taken.state
        assert taken.good
        twin.grad = torch.from_numpy(gradient)
        theirs.step()
    assert weights.dtype == np.float32
    assert weights == pytest.approx(twin.detach().numpy(), abs=1e-6, rel=1e-6)
    assert set(state) == {"step", *optimizer.moments}


def test_the_adam_step_is_exact_after_many_steps():
    optimizer = make_optimizer({"name": "adam"})
    state = fresh_state(optimizer, 1)
    for t in (1.0, 1000.0, 1e6):
        after, _ = optimizer.update(
            NUMPY_OPS, np.zeros(1, np.float32), np.ones(1, np.float32), state | {"step": np.float32(t)}, 1.0
        )
        mean, square = 0.1 / (1 - 0.9**t), 0.001 / (1 - 0.999**t)
        assert after[0] == pytest.approx(-mean / (math.sqrt(square) + 1e-5), rel=1e-5)


@pytest.mark.parametrize(("gradient", "loss"), [
    ([1.0, np.nan], 0.0), ([1.0, np.inf], 0.0), ([MAX_GRADIENT_NORM, 1.0], 0.0), ([1.0, 2.0], np.nan),
    ([1.0, 2.0], np.inf),
])  # fmt: skip
@pytest.mark.parametrize("name", TORCHS)
def test_a_bad_step_changes_nothing(name, gradient, loss):
    optimizer = make_optimizer(TORCHS[name][0])
    weights, state = np.ones(2, np.float32), fresh_state(optimizer, 2)
    with np.errstate(all="ignore"):
        taken = guarded_step(
            NUMPY_OPS, optimizer, weights, np.array(gradient, np.float32), state, np.float32(loss), LR, 0.5
        )
    assert not taken.good
    assert np.array_equal(taken.weights, weights)
    assert all(np.array_equal(taken.state[key], state[key]) for key in state)


@given(arrays(np.float32, 5, elements=st.floats(-100, 100, width=32)), st.floats(0.01, 1000))
def test_clipping_keeps_the_direction_and_bounds_the_norm(gradient, limit):
    norm = np.linalg.norm(gradient)
    with np.errstate(all="ignore"):
        clipped = clip_to_norm(NUMPY_OPS, gradient, norm, limit)
    assert clipped == pytest.approx(gradient * min(1.0, limit / max(norm, 1e-30)), rel=1e-5, abs=1e-30)
    assert clip_to_norm(NUMPY_OPS, gradient, norm, None) is gradient


def test_the_norm_is_that_before_clipping():
    optimizer = make_optimizer({"name": "sgd"})
    gradient = np.array([3.0, 4.0], np.float32)
    taken = guarded_step(
        NUMPY_OPS, optimizer, np.zeros(2, np.float32), gradient, {"step": np.float32(0)}, 0.0, 1.0, 0.5
    )
    assert taken.norm == pytest.approx(5.0)
    assert taken.weights == pytest.approx([-0.3, -0.4])


def test_defaults_are_each_optimizers_own():
    assert optimizer_settings({"name": "adam", "eps": None}) == {"eps": 1e-5, "beta1": 0.9, "beta2": 0.999}
    assert optimizer_settings({"name": "rmsprop"})["eps"] == 1e-8
    assert optimizer_settings({"name": "sgd", "momentum": 0.5}) == {"momentum": 0.5}


@pytest.mark.parametrize(("given_settings", "message"), [
    ({"name": "lion"}, r"optimizer.name: must be one of \['adam', 'rmsprop', 'sgd'\], but 'lion'"),
    ({"name": "sgd", "eps": 1.0}, "optimizer.eps: is not read by 'sgd'"),
    ({"name": "adam", "momentum": 0.9}, "optimizer.momentum: is not read by 'adam'"),
])  # fmt: skip
def test_unknown_optimizers_and_settings(given_settings, message):
    with pytest.raises(ConfigError, match=message):
        make_optimizer(given_settings)
