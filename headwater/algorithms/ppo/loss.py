"""The loss of PPO, written once for every framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headwater.frameworks.ops import Array, Ops
from headwater.policy.distributions import ActionDistribution

# exp of a larger difference of log-probabilities overflows in products; policies this far apart are clipped anyway.
_MAX_LOG_RATIO = 20.0

_MIN_VARIANCE = 1e-8


def ppo_loss(
    ops: Ops,
    dist: ActionDistribution,
    old_dist: ActionDistribution,
    values: Array | None,
    batch: Mapping[str, Array],
    coeffs: Mapping[str, float],
    config: Mapping[str, Any],
    report: bool = True,
) -> tuple[Array, dict[str, Array]]:
    """The loss of proximal policy optimisation over B rows, and what to report of it.

    Schulman et al. 2017 (arXiv:1707.06347). With the ratio r = exp(logp(a) - logp_old(a)), advantage A, old policy
    pi_old and new policy pi:

        surrogate = min(r A, clip(r, 1 - clip_param, 1 + clip_param) A)                       (eq. 7)
        kl        = KL(pi_old || pi)                                                          (eq. 8)
        vf        = max((V - R)^2, (V_old + clip(V - V_old, -vf_clip_param, vf_clip_param) - R)^2)
        loss      = mean(-surrogate + kl_coeff kl + vf_loss_coeff vf - entropy_coeff entropy) (eq. 9)

    The squared error has no factor 1/2, and with `vf_clip_param` None it is the unclipped (V - R)^2. Log ratios
    are kept within +-20. Where the batch has a boolean column "mask", means are over its rows that are True; the
    others reach neither the loss nor a gradient, whatever they hold.

    Args:
        ops: the framework's operations.
        dist: the current policy's distribution for the rows, with gradients.
        old_dist: the distribution that the actions were sampled from, without gradients.
        values: [B], the current value estimates V, with gradients; not read without a critic, may then be None.
        batch: columns `actions` [B, ...], `action_logp` [B] and `advantages` [B]; with a critic also `vf_preds` [B]
            (V_old) and `value_targets` [B] (R); optionally `mask`, bool [B].
        coeffs: `kl_coeff` and `entropy_coeff`. A term whose coefficient is the number 0 is reported, but left out of
            the loss.
        config: `clip_param`, `use_critic`, `vf_clip_param`, `vf_loss_coeff`.
        report: False leaves out whatever is only reported and returns no numbers, for updates whose numbers nobody
            reads: a third of the time, where both coefficients are 0.

    Returns:
        The loss, a scalar with gradients, and scalars in the framework's arrays: total_loss, policy_loss, vf_loss,
        vf_explained_var (at least -1), kl, entropy. Without a critic vf_loss and vf_explained_var are 0.
    """
    mask = batch.get("mask")
    if mask is not None:
        dist, old_dist = dist.masked(mask), old_dist.masked(mask)
        values = None if values is None else ops.where(mask, values, 0.0)
        batch = {name: _select(ops, mask, batch[name]) for name in _columns(config)}
    mean = _mean_over(ops, mask)

    log_ratio = dist.logp(batch["actions"]) - batch["action_logp"]
    rows = {"surrogate": (-1.0, _surrogate(ops, log_ratio, batch["advantages"], config["clip_param"]))}
    if report or not _is_zero(coeffs["kl_coeff"]):
        rows["kl"] = (coeffs["kl_coeff"], old_dist.kl(dist))
    if report or not _is_zero(coeffs["entropy_coeff"]):
        rows["entropy"] = (-coeffs["entropy_coeff"], dist.entropy())
    if config["use_critic"]:
        errors = _value_errors(ops, values, batch["vf_preds"], batch["value_targets"], config["vf_clip_param"])
        rows["vf_loss"] = (config["vf_loss_coeff"], errors)
    loss, means = _weighted_sum(ops, rows, mean)
    if not report:
        return loss, {}

    nothing = ops.zeros((), loss)
    explained = nothing
    if config["use_critic"]:
        explained = _explained_variance(ops, ops.stop_gradient(values), batch["value_targets"], mask)
    return loss, {
        "total_loss": ops.stop_gradient(loss),
        "policy_loss": -means["surrogate"],
        "vf_loss": means.get("vf_loss", nothing),
        "vf_explained_var": explained,
        "kl": means["kl"],
        "entropy": means["entropy"],
    }


def _surrogate(ops: Ops, log_ratio: Array, advantages: Array, clip_param: float) -> Array:
    """[B]: min(r A, clip(r) A), as A exp(clip(log r)).

    The minimum bounds r only on the side where the objective would gain: above for A > 0, below for A < 0. Bounding
    the logarithm there takes half the operations, and guards the exponential on the other side as well.
    """
    gains = advantages > 0
    lowest = max(math.log1p(-clip_param), -_MAX_LOG_RATIO) if clip_param < 1 else -_MAX_LOG_RATIO
    low = ops.where(gains, -_MAX_LOG_RATIO, lowest)
    high = ops.where(gains, math.log1p(clip_param), _MAX_LOG_RATIO)
    return advantages * ops.exp(ops.clip(log_ratio, low, high))


def _value_errors(ops: Ops, values: Array, old_values: Array, targets: Array, clip_param: float | None) -> Array:
    """[B]: the larger of the squared errors of V and of V kept near V_old."""
    if clip_param is not None:
        now = ops.stop_gradient(values)
        moved = now - old_values
        near_old = old_values + ops.clip(moved, -clip_param, clip_param)
        # Where V was clipped and that has the larger error, it is a constant: so one square serves for both.
        worse = (ops.abs(moved) > clip_param) & (ops.abs(near_old - targets) > ops.abs(now - targets))
        values = ops.where(worse, near_old, values)
    return ops.square(values - targets)


def _explained_variance(ops: Ops, values: Array, targets: Array, mask: Array | None) -> Array:
    """1 - Var(R - V) / Var(R): 1 for perfect predictions, 0 for a constant one, less for worse."""
    both = ops.stack([targets - values, targets], 0)
    if mask is None:
        variances = ops.var(both)
    else:
        mean = _mean_over(ops, mask)
        variances = mean(ops.square(both - mean(both)[:, None]))
    return ops.maximum(1.0 - variances[0] / ops.maximum(variances[1], _MIN_VARIANCE), -1.0)


def _weighted_sum(
    ops: Ops, rows: Mapping[str, tuple[Any, Array]], mean: Callable[[Array], Array]
) -> tuple[Array, dict[str, Array]]:
    """The sum of coefficient * mean over columns of rows, and all means without gradients.

    The means are taken in one operation; those with the coefficient 0 stay out of the sum, which 0 * inf would spoil.
    """
    active = {name: pair for name, pair in rows.items() if not _is_zero(pair[0])}
    means = mean(ops.stack([column for _, column in active.values()], 0))
    total = ops.sum(means * ops.asarray([coefficient for coefficient, _ in active.values()], like=means))
    means = ops.stop_gradient(means)
    found = {name: means[i] for i, name in enumerate(active)}
    for name in rows.keys() - active:
        found[name] = mean(ops.stop_gradient(rows[name][1]))
    return total, found


def _columns(config: Mapping[str, Any]) -> tuple[str, ...]:
    columns = ("actions", "action_logp", "advantages")
    return (*columns, "vf_preds", "value_targets") if config["use_critic"] else columns


def _select(ops: Ops, mask: Array, column: Array) -> Array:
    """The column with zeros where `mask` [B] is False."""
    shape = ops.shape(column)
    return ops.where(ops.reshape(mask, (shape[0],) + (1,) * (len(shape) - 1)), column, 0)


def _mean_over(ops: Ops, mask: Array | None) -> Callable[[Array], Array]:
    """The mean along the last axis, [*, B] -> [*], over the rows where `mask` [B] is True; 0 if there is none."""
    if mask is None:
        return lambda x: ops.mean(x, -1)
    count = ops.maximum(ops.to_float(ops.sum(mask)), 1.0)
    return lambda x: ops.sum(ops.where(mask, x, 0.0), -1) / count


def _is_zero(coefficient: Any) -> bool:
    """Whether it is known to be 0 while the loss is built; a framework's scalar that changes between calls is not."""
    return isinstance(coefficient, (int, float)) and coefficient == 0
