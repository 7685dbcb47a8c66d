"""Phase: all updates of an SGD phase, compiled.

    begin -> advance, once for each update -> finish

It is one call, a compiled loop, but for convolutions in models of the user's own on the CPU: inside a loop XLA computes
them some forty times slower than outside. There the host calls each update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from headwater.data.sample_batch import SampleBatch
from headwater.frameworks.jax.plan import Filling
from headwater.policy.optimizers import State, Step

Columns = Mapping[str, Any]
Numbers = Mapping[str, Any]


class Inputs(NamedTuple):
    """What may differ from phase to phase without being compiled again; see `headwater.frameworks.jax.plan.Plan`."""

    columns: Columns
    places: Any
    sizes: Any
    num_updates: Any
    per_epoch: Any
    lr: Any
    numbers: Numbers  # the loss's coefficients but for those that are 0


class Variant(NamedTuple):
    """What code is compiled for."""

    zeros: tuple[str, ...]  # coefficients that are 0, which losses leave out
    filling: Filling


class Progress(NamedTuple):
    """How far a phase has come."""

    vector: jax.Array  # [P]
    state: State
    good: jax.Array  # bool [updates]
    counted: jax.Array  # good updates of the last epoch
    sums: Numbers  # their statistics


class Result(NamedTuple):
    """What a phase came to."""

    vector: jax.Array
    state: State
    key: jax.Array
    means: Numbers
    good: jax.Array
    finite: jax.Array


# (weights, optimizer state, key, rows, lr, numbers, zeros) -> the step and the statistics
Update = Callable[..., tuple[Step, Numbers]]


class Phase:
    """Updates by compiled code.

    Args:
        update: One update.
        in_one_call: Whether the loop over the updates is compiled too.
    """

    def __init__(self, update: Update, in_one_call: bool) -> None:
        self._update = jax.jit(update, static_argnames="zeros")
        self.run: Callable[..., Result] = self._run_by_updates
        if in_one_call:
            self.run = jax.jit(self._run, static_argnames="variant", donate_argnames=("vector", "state"))
        else:
            self._begin_alone = jax.jit(self._begin, static_argnames="variant")
            self._advance_alone = jax.jit(self._advance, static_argnames="variant", donate_argnames="progress")
            self._finish_alone = jax.jit(self._finish)

    def _run(self, vector: jax.Array, state: State, key: jax.Array, inputs: Inputs, *, variant: Variant) -> Result:
        key, own, progress = self._begin(vector, state, key, inputs, variant=variant)

        def advance(i: jax.Array, progress: Progress) -> Progress:
            return self._advance(i, progress, own, inputs, variant=variant)

        progress = lax.fori_loop(0, inputs.num_updates, advance, progress)
        return self._finish(vector, key, progress)

    def _run_by_updates(
        self, vector: jax.Array, state: State, key: jax.Array, inputs: Inputs, *, variant: Variant
    ) -> Result:
        inputs = jax.device_put(inputs, vector.sharding)
        key, own, progress = self._begin_alone(vector, state, key, inputs, variant=variant)
        for i in range(int(inputs.num_updates)):
            progress = self._advance_alone(np.int32(i), progress, own, inputs, variant=variant)
        return self._finish_alone(vector, key, progress)

    def _begin(
        self, vector: jax.Array, state: State, key: jax.Array, inputs: Inputs, *, variant: Variant
    ) -> tuple[jax.Array, jax.Array, Progress]:
        key, own = jax.random.split(key)
        _, stats = jax.eval_shape(lambda: self._update_at(0, vector, state, own, inputs, variant))
        sums = {name: jnp.zeros(value.shape, value.dtype) for name, value in stats.items()}
        good = jnp.zeros(len(inputs.places), bool)
        return key, own, Progress(vector, state, good, jnp.int32(0), sums)

    def _advance(self, i: Any, progress: Progress, own: jax.Array, inputs: Inputs, *, variant: Variant) -> Progress:
        step, stats = self._update_at(i, progress.vector, progress.state, jax.random.fold_in(own, i), inputs, variant)
        counts = step.good & (i >= inputs.num_updates - inputs.per_epoch)
        sums = {name: progress.sums[name] + jnp.where(counts, value, 0.0) for name, value in stats.items()}
        return Progress(step.weights, step.state, progress.good.at[i].set(step.good), progress.counted + counts, sums)

    def _finish(self, before: jax.Array, key: jax.Array, progress: Progress) -> Result:
        finite = jnp.isfinite(progress.vector).all()  # a finite gradient times a huge step may not be
        means = {name: value / progress.counted for name, value in progress.sums.items()}
        return Result(
            jnp.where(finite, progress.vector, before), progress.state, key, means, progress.good, finite
        )  # fmt: skip

    def _update_at(
        self, i: Any, vector: jax.Array, state: State, key: jax.Array, inputs: Inputs, variant: Variant
    ) -> tuple[Step, Numbers]:
        columns, places, sizes = inputs.columns, inputs.places, inputs.sizes

        def update(rows: Columns) -> tuple[Step, Numbers]:
            return self._update(vector, state, key, rows, inputs.lr, inputs.numbers, zeros=variant.zeros)

        if variant.filling is Filling.SHORTER:
            return lax.cond(
                sizes[i] == places.shape[1],
                lambda: update(rows_of(columns, places[i])),
                lambda: update(rows_of(columns, places[i, :-1])),
            )
        return update(rows_of(columns, places[i], sizes[i] if variant.filling is Filling.MASKED else None))


def rows_of(columns: Columns, places: jax.Array | None, size: Any = None) -> Columns:
    """The rows at `places` (None: all), of which those from `size` on (None: none) are not to count."""
    rows = dict(columns)
    if places is not None:
        rows = {name: column.at[places].get(mode="promise_in_bounds") for name, column in columns.items()}
    if size is not None:
        obs, mask = rows[SampleBatch.OBS], rows.get(SampleBatch.MASK)
        real = jnp.arange(len(obs)) < size
        rows[SampleBatch.MASK] = real if mask is None else mask & real.reshape(-1, *(1,) * (mask.ndim - 1))
    return rows
