"""Advantages and returns: how good each action was, from rewards and value estimates.

The one implementation for all frameworks, in NumPy. Inputs are the `[T, N]` columns of a fragment (T steps, N envs; see
`headwater.data.sample_batch`). The recursion runs backwards over T, vectorised over N, in float64, and each env's
numbers do not depend on how many others share the fragment. Inputs must be finite, results are float32 with the memory
layout of `rewards`.

Two things differ at a row where the recursion is cut, and are given apart: `next_values` says what the successor state
is worth (0 after a termination, V(final observation) after a truncation, V(next observation) at a fragment's end), and
`cuts` that nothing after the row belongs to it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import BatchError, SampleBatch

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

SMALLEST_STD = 1e-4


def gae(
    rewards: NDArray,
    values: NDArray,
    next_values: NDArray,
    cuts: NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> tuple[Float32, Float32]:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + gamma * lambda * A_{t+1}    (A_t = delta_t where cut)

    Args:
        rewards: [T, N] paid for the action of each row.
        values: [T, N] V of the observation acted on.
        next_values: [T, N] V of the successor, 0 where terminated.
        cuts: [T, N] bool: True where the episode ended or the sampler stopped. The last row always counts as cut.
        gamma: discount per step, in [0, 1].
        lambda_: 0 trusts the critic after one step, 1 the sampled return.

    Returns:
        Advantages and value targets (`A_t + V(s_t)`), both [T, N] float32.

    Example:
        >>> r, v = np.ones((3, 1)), np.full((3, 1), 0.5)
        >>> advantages, targets = gae(r, v, np.array([[0.5], [0.5], [2.0]]), np.zeros((3, 1), bool), 0.9, 0.5)
        >>> [round(a, 5) for a in advantages.ravel().tolist()]
        [1.84325, 1.985, 2.3]
    """
    _check_shapes(rewards, values=values, next_values=next_values, cuts=cuts)
    advantages: Float64 = np.empty(rewards.shape)
    np.multiply(next_values, gamma, out=advantages, dtype=np.float64)
    advantages += rewards
    advantages -= values
    _accumulate(advantages, np.multiply(np.logical_not(cuts), gamma * lambda_, order="C"))
    return _like(rewards, advantages), _like(rewards, np.add(advantages, values, order="C"))


def returns(rewards: NDArray, next_values: NDArray, cuts: NDArray[np.bool_], gamma: float) -> Float32:
    """Discounted returns, bootstrapped where the episode goes on unseen.

        R_t = r_t + gamma * R_{t+1}    (R_t = r_t + gamma * V(s_{t+1}) where cut)

    Args:
        rewards: [T, N].
        next_values: [T, N], read only at cuts; 0 where terminated.
        cuts: [T, N] bool, as in `gae`.
        gamma: discount per step.

    Returns:
        [T, N] float32.
    """
    _check_shapes(rewards, next_values=next_values, cuts=cuts)
    cuts = np.array(cuts, dtype=bool)
    cuts[-1:] = True
    result: Float64 = np.multiply(np.where(cuts, next_values, 0.0), gamma, order="C", dtype=np.float64)
    result += rewards
    _accumulate(result, np.multiply(np.logical_not(cuts), gamma, order="C"))
    return _like(rewards, result)


def compute_advantages(
    rollout: SampleBatch,
    last_r: float,
    gamma: float = 0.9,
    lambda_: float = 1.0,
    use_gae: bool = True,
    use_critic: bool = True,
) -> SampleBatch:
    """Add `advantages` and `value_targets` to one trajectory of one env.

    Args:
        rollout: rows of a single episode, or of its last part, in order.
        last_r: value of the observation after the last row; 0 if the episode terminated there.
        gamma: discount per step.
        lambda_: see `gae`.
        use_gae: GAE; else discounted returns (minus the critic's values, where there is one).
        use_critic: whether `vf_preds` are used. Without it value targets are 0.

    Returns:
        `rollout` itself with the two columns, float32.

    Raises:
        BatchError: GAE without a critic, no `vf_preds` with one, rows of several episodes, or sequences.
    """
    if use_gae and not use_critic:
        raise BatchError("GAE needs a critic: set use_critic=True, or use_gae=False for plain returns.")
    if use_critic and SampleBatch.VF_PREDS not in rollout:
        raise BatchError("The batch has no column 'vf_preds', which a critic fills: add it, or set use_critic=False.")
    for flag in (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS):
        if flag in rollout and np.any(rollout[flag][:-1]):
            raise BatchError(f"Column {flag!r} ends an episode before the last row; use split_by_episode() first.")
    if rollout.in_sequences:
        raise BatchError(
            "compute_advantages takes rows, and this batch is in sequences: compute advantages before them."
        )
    rewards = np.asarray(rollout[SampleBatch.REWARDS])
    uncut = np.zeros(rewards.shape, dtype=bool)
    if use_gae:
        values = np.asarray(rollout[SampleBatch.VF_PREDS])
        successors = np.append(values[1:], last_r)[: len(values)]
        rollout[SampleBatch.ADVANTAGES], rollout[SampleBatch.VALUE_TARGETS] = gae(
            rewards, values, successors, uncut, gamma, lambda_
        )
        return rollout
    targets = returns(rewards, np.full(rewards.shape, last_r, np.float32), uncut, gamma)
    if use_critic:
        rollout[SampleBatch.ADVANTAGES] = targets - np.asarray(rollout[SampleBatch.VF_PREDS], np.float32)
        rollout[SampleBatch.VALUE_TARGETS] = targets
    else:
        rollout[SampleBatch.ADVANTAGES] = targets
        rollout[SampleBatch.VALUE_TARGETS] = np.zeros_like(targets)
    return rollout


def standardized(x: NDArray, mask: NDArray | None = None) -> Float32:
    """`(x - mean) / max(1e-4, std)` over the steps where `mask` is true; 0 elsewhere.

    Args:
        x: [B, ...], or of sequences [M, L, ...].
        mask: [B] or [M, L]; None: all are real.
    """
    real = x if mask is None else x[np.asarray(mask) > 0]
    if real.size == 0:
        return np.zeros(x.shape, dtype=np.float32)
    centred = np.subtract(real, real.mean(dtype=np.float64), dtype=np.float64)
    centred /= max(SMALLEST_STD, float(np.sqrt(np.mean(centred * centred))))
    if mask is None:
        return centred.astype(np.float32)
    result = np.zeros(x.shape, dtype=np.float32)
    result[np.asarray(mask) > 0] = centred
    return result


def _accumulate(x: Float64, decay: Float64) -> None:
    """`x[t] += decay[t] * x[t + 1]` from the last row but one down to the first, in place. Both [T, ...]."""
    if x.ndim == 1:
        x, decay = x[:, None], decay[:, None]
    rows, decays = list(x), list(decay)
    if not rows:
        return
    multiply, add = np.multiply, np.add
    carried = np.empty_like(rows[0])
    following = rows.pop()
    decays.pop()
    while rows:
        row = rows.pop()
        multiply(decays.pop(), following, carried)
        add(row, carried, row)
        following = row


def _like(template: NDArray, x: Float64) -> Float32:
    result = np.empty_like(template, dtype=np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite: the learner skips it
        np.copyto(result, x, casting="same_kind")
    return result


def _check_shapes(rewards: NDArray, **others: NDArray) -> None:
    for name, array in others.items():
        if array.shape != rewards.shape:
            raise BatchError(f"{name} has shape {array.shape} where rewards has {rewards.shape}; they must be equal.")
