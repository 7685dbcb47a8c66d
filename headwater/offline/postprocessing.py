"""What learning needs of rows from files: the policy's own postprocessing, as if it had just sampled them.

    rows [B, ...] -> runs of steps that follow each other -> Trajectory [B, 1] -> postprocess_trajectory -> SampleBatch

A run that ends without a termination is bootstrapped by the value of its last `new_obs`. What the behaviour's network
computed and the file does not hold, the policy's own computes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.offline.context import OfflineError
from headwater.offline.episodes import done_rows, run_starts
from headwater.policy.policy import Policy
from headwater.sampling.trajectory import Memory, Trajectory

CHUNK = 4096  # rows of one forward pass


class Reacted(NamedTuple):
    """What a policy's network makes of rows."""

    dist_inputs: NDArray[np.float32]  # [B, K]
    values: NDArray[np.float32]  # [B]
    states: NDArray[np.float32] | None = None  # [B, S] before each row; None without memory
    final_states: NDArray[np.float32] | None = None  # [R, S] after each run


def postprocess(policy: Policy, batch: SampleBatch) -> SampleBatch:
    """Rows with all that the policy's loss reads; for a policy with memory folded into sequences.

    Memories begin empty where a run does. Rows whose successor is not known (without `new_obs`, the last of a run) are
    left out. A batch in sequences is returned as it is.

    Args:
        policy: whose rows they are.
        batch: rows [B, ...] with obs, actions, rewards, terminateds and truncateds; neighbours of one episode in order.

    Raises:
        OfflineError: there is no row whose successor is known.
    """
    if batch.in_sequences:
        return batch
    rows = _with_successors(batch)
    starts = run_starts(rows)
    ends = np.append(starts[1:], rows.num_rows) - 1
    columns = {name: np.asarray(column) for name, column in rows.items()}
    for name in (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS):
        columns[name] = columns[name].astype(bool, copy=False)
    columns[SampleBatch.REWARDS] = columns[SampleBatch.REWARDS].astype(np.float32, copy=False)
    own_logp = columns.get(SampleBatch.ACTION_LOGP) if SampleBatch.ACTION_DIST_INPUTS not in columns else None

    memory = None
    if SampleBatch.ACTION_DIST_INPUTS not in columns or policy.state_size:
        reacted = react(policy, columns[SampleBatch.OBS], starts)
        columns.setdefault(SampleBatch.ACTION_DIST_INPUTS, reacted.dist_inputs)
        if reacted.states is not None:
            columns[SampleBatch.VF_PREDS] = reacted.values
            memory = _memory(reacted, starts, rows.num_rows, int(policy.config["model"]["max_seq_len"]))
    new_obs = columns[SampleBatch.NEW_OBS]
    trajectory = Trajectory(
        {name: column[:, None] for name, column in columns.items()},
        last_obs=new_obs[-1:],
        final_rows=np.stack([ends, np.zeros_like(ends)], axis=1),
        final_obs=new_obs[ends],
        memory=memory,
    )
    policy.postprocess_trajectory(trajectory)
    if own_logp is not None:  # the behaviour's, which the policy cannot know better
        trajectory.add(SampleBatch.ACTION_LOGP, own_logp[:, None])
    return trajectory.fold(trajectory.to_batch())


def postprocess_as_needed(policies: dict[str, Policy], batch: Batch, always: bool) -> Batch:
    """`postprocess` for each policy's rows; unless `always`, only for those without advantages."""

    def one(policy_id: str, rows: SampleBatch) -> SampleBatch:
        if policy_id not in policies:
            raise OfflineError(
                f"The input has rows of a policy {policy_id!r}; this run's policies are {', '.join(sorted(policies))}."
            )
        if not always and SampleBatch.ADVANTAGES in rows and (rows.in_sequences or not policies[policy_id].state_size):
            return rows
        return postprocess(policies[policy_id], rows)

    if isinstance(batch, MultiAgentBatch):
        parts = {policy_id: one(policy_id, rows) for policy_id, rows in batch.policy_batches.items()}
        return MultiAgentBatch(parts, batch.count)
    [(policy_id, rows)] = batch.as_multi_agent().policy_batches.items()
    return one(policy_id, rows)


def react(policy: Policy, obs: NDArray[Any], starts: NDArray[np.int64]) -> Reacted:
    """What a policy's network makes of observations.

    Args:
        policy: whose.
        obs: [B, ...] encoded.
        starts: [R] rows at which a run begins, with nothing remembered.
    """
    if not policy.state_size:
        extras = [
            policy.compute_actions(obs[i : i + CHUNK], explore=False)[2] for i in range(0, max(1, len(obs)), CHUNK)
        ]
        return Reacted(
            *(np.concatenate([extra[name] for extra in extras]) for name in ("action_dist_inputs", "vf_preds"))
        )
    lengths = np.diff(starts, append=len(obs))
    by_length = np.argsort(-lengths, kind="stable")  # the runs that are still going on are the first ones
    firsts, lengths = starts[by_length], lengths[by_length]
    state: NDArray[Any] = np.zeros((len(starts), policy.state_size), np.float32)
    states = np.zeros((len(obs), policy.state_size), np.float32)
    dist_inputs: NDArray[np.float32] | None = None
    values: NDArray[Any] = np.zeros(len(obs), np.float32)
    for step in range(int(lengths[0])):
        going = int(np.count_nonzero(lengths > step))
        rows = firsts[:going] + step
        states[rows] = state[:going]
        acted = policy.act(obs[rows], None, explore=False, state=state[:going])
        if dist_inputs is None:
            dist_inputs = np.zeros((len(obs), acted.dist_inputs.shape[1]), np.float32)
        assert acted.values is not None and acted.state is not None
        dist_inputs[rows], values[rows], state[:going] = acted.dist_inputs, acted.values, acted.state
    assert dist_inputs is not None
    final_states = np.empty_like(state)
    final_states[by_length] = state
    return Reacted(dist_inputs, values, states, final_states)


def _memory(reacted: Reacted, starts: NDArray[np.int64], rows: int, every: int) -> Memory:
    states, final_states = reacted.states, reacted.final_states
    assert states is not None and final_states is not None
    run_of_row = np.repeat(starts, np.diff(starts, append=rows))
    grid = ((np.arange(rows) - run_of_row) % every == 0)[:, None]
    return Memory(every, grid, lambda t, n: states[t], final_states, final_states[-1:])


def _with_successors(batch: SampleBatch) -> SampleBatch:
    """The rows whose successor is known, with `new_obs`."""
    if SampleBatch.NEW_OBS in batch:
        return batch
    obs = np.asarray(batch[SampleBatch.OBS])
    ends = np.append(run_starts(batch)[1:], batch.num_rows) - 1
    new_obs = np.roll(obs, -1, axis=0)
    terminal = np.asarray(batch[SampleBatch.TERMINATEDS], bool)
    new_obs[ends] = obs[ends]  # of a terminated row it is never looked at
    kept = np.ones(batch.num_rows, bool)
    kept[ends] = terminal[ends]
    if not kept.any():
        raise OfflineError(
            "The input has no new_obs, and no row of this batch has a successor in it: there is nothing to learn from. "
            "Record new_obs, or read more rows at once."
        )
    rows = SampleBatch({name: np.asarray(column)[kept] for name, column in batch.items()})
    rows[SampleBatch.NEW_OBS] = new_obs[kept]
    if SampleBatch.T not in rows and not done_rows(rows).all():
        rows[SampleBatch.T] = np.flatnonzero(kept)  # so that a row left out still parts its neighbours
    return rows
