"""BatchPlan: the one equation that ties fragment, envs, workers and train batch.

train_batch_size = rounds * max(1, num_workers) * num_envs_per_worker * rollout_fragment_length
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of one train batch come about; every row is sampled with the weights that the batch then trains.

    Attributes:
        train_batch_size: rows that one iteration trains on; exact where whole fragments are sampled, else the least.
        num_workers: samplers that each bring a fragment per round; the trainer itself is one where there is no other.
        num_envs: sub-envs of each sampler.
        rollout_fragment_length: steps of one sub-env in one fragment.
        rounds: fragments that each sampler brings for one train batch.
        exact: False in complete_episodes mode, where samplers run each episode to its end.
        updates: what the learner does with the batch, for the printed plan.
    """

    train_batch_size: int
    num_workers: int
    num_envs: int
    rollout_fragment_length: int
    rounds: int
    exact: bool = True
    updates: str = ""

    @property
    def rows_per_fragment(self) -> int:
        """Rows that one `sample()` of one sampler brings."""
        return self.num_envs * self.rollout_fragment_length

    @property
    def text(self) -> str:
        """The equation with this run's numbers, in one line."""
        least = "" if self.exact else "at least "
        parts = [
            counted(self.rounds, "round"), counted(self.num_workers, "sampler"), counted(self.num_envs, "env"),
            counted(self.rollout_fragment_length, "step"),
        ]  # fmt: skip
        line = f"train batch: {least}{self.train_batch_size} rows = {' x '.join(parts)}"
        return f"{line}; {self.updates}" if self.updates else line

    def with_updates(self, updates: str) -> BatchPlan:
        """The same plan with the learner's part of the text."""
        return replace(self, updates=updates)


def counted(number: int, noun: str, plural: str = "s") -> str:
    """`1 round`, `3 rounds`; `plural` is what is appended to `noun`."""
    return f"{number} {noun}{'' if number == 1 else plural}"


def solve(train_batch_size: int, num_workers: int, num_envs: int, fragment: int | str, exact: bool) -> BatchPlan:
    """The plan for these settings; `fragment` may be "auto", which makes one round.

    Raises:
        ValueError: no whole number of rounds gives `train_batch_size`; the message names the nearest numbers that work.
    """
    samplers = max(1, num_workers)
    envs = samplers * num_envs
    if fragment == "auto":
        length = math.ceil(train_batch_size / envs)
    else:
        length = int(fragment)
    rows = envs * length
    rounds = math.ceil(train_batch_size / rows)
    if exact and rounds * rows != train_batch_size:
        raise ValueError(_refusal(train_batch_size, samplers, num_envs, fragment))
    return BatchPlan(train_batch_size, samplers, num_envs, length, rounds, exact)


def _refusal(train_batch_size: int, samplers: int, num_envs: int, fragment: int | str) -> str:
    envs = samplers * num_envs
    unit = envs if fragment == "auto" else envs * int(fragment)
    lower, upper = train_batch_size // unit * unit, -(-train_batch_size // unit) * unit
    sizes = f"{lower} or {upper}" if lower else f"{upper}"
    remedies = [f"train_batch_size {sizes}"]
    if train_batch_size % envs == 0 and fragment != "auto":
        lengths = _nearest_divisors(train_batch_size // envs, int(fragment))
        remedies.append(f"rollout_fragment_length {lengths} (or 'auto')")
    else:
        steps = samplers if fragment == "auto" else samplers * int(fragment)
        if train_batch_size % steps == 0:
            remedies.append(f"num_envs_per_worker {_nearest_divisors(train_batch_size // steps, num_envs)}")
    per_env = "" if fragment == "auto" else f" x {fragment} steps"
    return (
        f"{train_batch_size} rows are not a whole number of rounds of {samplers} sampler(s) x {num_envs} envs{per_env} "
        f"= {unit} rows each. Nearest that work: {', or '.join(remedies)}"
    )


def _nearest_divisors(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    lower = max((d for d in divisors if d <= wanted), default=None)
    upper = min((d for d in divisors if d >= wanted), default=None)
    return " or ".join(str(d) for d in dict.fromkeys((lower, upper)) if d is not None)
