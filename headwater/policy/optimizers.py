"""Optimizers as rules over `ops` on one flat vector, with torch's formulas; and the guarded step around them.

    gradient -> norm -> clip -> rule -> weights, unless loss or norm are bad

torch itself steps by its own fused optimizers (`headwater.frameworks.torch.optimizer`), which give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headwater.errors import ConfigError
from headwater.frameworks.ops import Array, Ops
from headwater.settings.networks import OPTIMIZER_DEFAULTS

# Adam squares gradients: a norm whose square float32 cannot hold is as bad as an infinite one.
MAX_GRADIENT_NORM = 1e18

State = dict[str, Array]  # "step", the steps taken as a float scalar, and each moment as a [P] vector


class Optimizer(Protocol):
    """A rule that moves [P] weights along a [P] gradient."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Names, torch's, of the vectors that it keeps from step to step; they start at 0."""

    def update(self, ops: Ops, weights: Array, gradient: Array, state: State, lr: Any) -> tuple[Array, State]:
        """One step: the new weights and the new state, whose "step" counts this one already."""


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba 2015 (arXiv:1412.6980): w -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)."""

    eps: float
    beta1: float
    beta2: float

    @property
    def moments(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(self, ops: Ops, weights: Array, gradient: Array, state: State, lr: Any) -> tuple[Array, State]:
        mean = state["exp_avg"] + (1.0 - self.beta1) * (gradient - state["exp_avg"])
        square = self.beta2 * state["exp_avg_sq"] + (1.0 - self.beta2) * ops.square(gradient)
        step = state["step"]
        size = lr / _one_minus_power(ops, self.beta1, step)
        deviation = ops.sqrt(square) / ops.sqrt(_one_minus_power(ops, self.beta2, step)) + self.eps
        return weights - size * (mean / deviation), {"step": step, "exp_avg": mean, "exp_avg_sq": square}


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum: m = momentum m + g; w -= lr m."""

    momentum: float

    @property
    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def update(self, ops: Ops, weights: Array, gradient: Array, state: State, lr: Any) -> tuple[Array, State]:
        if not self.momentum:
            return weights - lr * gradient, state
        buffer = self.momentum * state["momentum_buffer"] + gradient
        return weights - lr * buffer, {"step": state["step"], "momentum_buffer": buffer}


@dataclass(frozen=True)
class RMSprop:
    """Tieleman and Hinton 2012: v = alpha v + (1 - alpha) g^2; w -= lr g / (sqrt(v) + eps), with momentum as in SGD."""

    alpha: float
    eps: float
    momentum: float

    @property
    def moments(self) -> tuple[str, ...]:
        return ("square_avg", "momentum_buffer") if self.momentum else ("square_avg",)

    def update(self, ops: Ops, weights: Array, gradient: Array, state: State, lr: Any) -> tuple[Array, State]:
        square = self.alpha * state["square_avg"] + (1.0 - self.alpha) * ops.square(gradient)
        change = gradient / (ops.sqrt(square) + self.eps)
        new: State = {"step": state["step"], "square_avg": square}
        if self.momentum:
            change = new["momentum_buffer"] = self.momentum * state["momentum_buffer"] + change
        return weights - lr * change, new


_RULES: dict[str, type[Adam] | type[SGD] | type[RMSprop]] = {"adam": Adam, "sgd": SGD, "rmsprop": RMSprop}


def optimizer_settings(settings: Mapping[str, Any]) -> dict[str, float]:
    """What the chosen optimizer reads, with its defaults in place of None.

    Args:
        settings: `config["optimizer"]`: "name", and settings that may be None or absent.

    Raises:
        ConfigError: an unknown optimizer, or a setting that it does not read.

    Example:
        >>> optimizer_settings({"name": "rmsprop", "alpha": 0.9})
        {'alpha': 0.9, 'eps': 1e-08, 'momentum': 0.0}
    """
    name = settings["name"]
    if name not in OPTIMIZER_DEFAULTS:
        raise ConfigError(f"optimizer.name: must be one of {sorted(OPTIMIZER_DEFAULTS)}, but {name!r} came.")
    given = {key: value for key, value in settings.items() if key != "name" and value is not None}
    unread = sorted(given.keys() - OPTIMIZER_DEFAULTS[name].keys())
    if unread:
        raise ConfigError(f"optimizer.{unread[0]}: is not read by {name!r}. Leave it out, or choose another optimizer.")
    return {**OPTIMIZER_DEFAULTS[name], **given}


def make_optimizer(settings: Mapping[str, Any]) -> Optimizer:
    """The rule that `config["optimizer"]` asks for; see `optimizer_settings`."""
    found = optimizer_settings(settings)
    return _RULES[settings["name"]](**found)


def clip_to_norm(ops: Ops, gradient: Array, norm: Array, limit: float | None) -> Array:
    """The gradient, scaled down to the norm `limit` if its own, `norm`, is larger; None: as it is."""
    if limit is None:
        return gradient
    return gradient * ops.where(norm > limit, limit / norm, 1.0)


class Step(NamedTuple):
    """What a guarded step came to."""

    weights: Array
    state: State
    norm: Array  # of the gradient, before it was clipped
    good: Array  # bool: the step was taken


def guarded_step(
    ops: Ops,
    optimizer: Optimizer,
    weights: Array,
    gradient: Array,
    state: State,
    loss: Array | float,
    lr: Any,
    limit: float | None,
) -> Step:
    """Clip the gradient and step along it; where it or the loss is not finite, everything stays what it was.

    Args:
        ops: The framework's operations; the step may be traced.
        optimizer: The rule.
        weights: [P].
        gradient: [P].
        state: "step" and the rule's moments.
        loss: A scalar.
        lr: Step size.
        limit: Largest norm of the gradient; None: any.
    """
    norm = ops.sqrt(ops.sum(ops.square(gradient)))
    good = (norm < MAX_GRADIENT_NORM) & ops.isfinite(ops.asarray(loss, like=norm))
    new_weights, new_state = optimizer.update(
        ops, weights, clip_to_norm(ops, gradient, norm, limit), {**state, "step": state["step"] + 1.0}, lr
    )
    kept = {name: ops.where(good, value, state[name]) for name, value in new_state.items()}
    return Step(ops.where(good, new_weights, weights), kept, norm, good)


def _one_minus_power(ops: Ops, base: float, exponent: Array) -> Array:
    """1 - base^exponent, exact in float32 also where the power is near 1 (then base itself is not): -expm1(x)."""
    if not base:
        return 1.0
    half = ops.tanh(exponent * (0.5 * math.log(base)))
    return -2.0 * half / (1.0 - half)
