"""Observation filters: running statistics that normalise what a policy sees, mergeable across samplers.

A sampler passes each batch of encoded observations `[N, D]` through its filter before acting. Every copy of a filter
keeps, beside its statistics, a buffer with the rows seen since they were last sent off; `FilterManager.synchronize`
merges the buffers of all workers into the local filter and sends the result round, so that every observed row is
counted exactly once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ConfigError, HeadwaterError

SMALLEST_STD = 1e-8


class FilterError(HeadwaterError, ValueError):
    """Observations, or another filter's statistics, do not fit a filter."""


class RunningStat:
    """Count, mean and variance of rows, without keeping them; two of them merge exactly.

    Batches enter by the parallel update of Chan, Golub and LeVeque (1979), in float64.

    Args:
        shape: of one row.

    Example:
        >>> stat = RunningStat((1,))
        >>> stat.push_batch(np.arange(10.0).reshape(10, 1))
        >>> stat.n, float(stat.mean[0]), round(float(stat.std[0]), 6)
        (10, 4.5, 3.02765)
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.n = 0
        self.mean: NDArray[np.float64] = np.zeros(self.shape)
        self.m2: NDArray[np.float64] = np.zeros(self.shape)  # sum of squared distances from the mean

    @property
    def var(self) -> NDArray[np.float64]:
        """Sample variance (divided by n - 1); 0 while fewer than two rows are known."""
        return self.m2 / max(1, self.n - 1)

    @property
    def std(self) -> NDArray[np.float64]:
        """Square root of `var`."""
        return np.sqrt(self.var)

    def push_batch(self, x: NDArray) -> None:
        """Count the rows of x [B, *shape]. Rows that hold a NaN or an infinity are left out."""
        moments = batch_moments(x)
        if moments is not None:
            self.merge(*moments)

    def merge(self, n: int, mean: NDArray[np.float64], m2: NDArray[np.float64]) -> None:
        """Count `n` rows known by their mean and their sum of squared distances from it, each of `shape`."""
        if n == 0:
            return
        total = self.n + n
        delta = mean - self.mean
        # new arrays, so that copies may share the old ones
        self.m2 = self.m2 + m2 + delta * delta * (self.n * n / total)
        self.mean = self.mean + delta * (n / total)
        self.n = total

    def update(self, other: RunningStat) -> None:
        """Count all rows of another."""
        if other.shape != self.shape:
            raise FilterError(f"Statistics of rows of shape {other.shape} cannot enter those of shape {self.shape}.")
        self.merge(other.n, other.mean, other.m2)

    def copy(self) -> RunningStat:
        """An independent copy."""
        other = RunningStat(self.shape)
        other.n, other.mean, other.m2 = self.n, self.mean, self.m2
        return other

    def get_state(self) -> dict[str, Any]:
        """`n`, `mean`, `m2`."""
        return {"n": self.n, "mean": self.mean.copy(), "m2": self.m2.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        mean = np.array(state["mean"], dtype=np.float64)
        if mean.shape != self.shape:
            raise FilterError(f"Saved statistics are for rows of shape {mean.shape}, this filter's are {self.shape}.")
        self.n, self.mean, self.m2 = int(state["n"]), mean, np.array(state["m2"], dtype=np.float64)


def batch_moments(x: NDArray) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
    """Count, mean and sum of squared distances over the finite rows of x [B, ...]; None if there is none."""
    x = x.astype(np.float64)
    finite = np.isfinite(x)
    if not np.logical_and.reduce(finite, None):
        x = x[finite.reshape(len(x), -1).all(axis=1)]
    n = len(x)
    if n == 0:
        return None
    mean = np.add.reduce(x, 0) / n
    x -= mean
    x *= x
    return n, mean, np.add.reduce(x, 0)


class Filter(ABC):
    """What a sampler and `FilterManager` need of an observation filter."""

    is_identity = False

    @abstractmethod
    def __call__(self, x: NDArray, update: bool = True) -> NDArray:
        """Filter a batch [N, *shape] or one observation [*shape]; with `update` its rows are counted first."""

    @abstractmethod
    def apply_changes(self, other: Any, with_buffer: bool = False) -> None:
        """Count the rows in another copy's buffer; with `with_buffer` they also enter this one's buffer."""

    @abstractmethod
    def sync(self, other: Any) -> None:
        """Take over another copy's statistics; rows in this one's own buffer stay counted."""

    @abstractmethod
    def copy(self) -> Any:
        """An independent copy, buffer included."""

    @abstractmethod
    def clear_buffer(self) -> None:
        """Say that the buffer's rows have been sent off."""

    def as_serializable(self) -> Any:
        """What to send to another process."""
        return self.copy()

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Arrays and JSON values only."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""


class NoFilter(Filter):
    """Observations as they are."""

    is_identity = True

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)

    def __call__(self, x: NDArray, update: bool = True) -> NDArray:
        return np.asarray(x)

    def apply_changes(self, other: NoFilter, with_buffer: bool = False) -> None:
        """Nothing to merge."""

    def sync(self, other: NoFilter) -> None:
        """Nothing to take over."""

    def copy(self) -> NoFilter:
        """Itself: it has no state."""
        return self

    def clear_buffer(self) -> None:
        """There is none."""

    def get_state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to set."""


class MeanStdFilter(Filter):
    """`(x - mean) / std` of all observations seen, per dimension.

    A dimension that has not varied yet is only centred, and nothing is changed before the first row is known. Rows with
    a NaN or an infinity never enter the statistics.

    Args:
        shape: of one observation.
        clip: bound on the magnitude of the result, in standard deviations; None = none.
        num_features: leading columns of a row that are filtered, and that statistics are of; the others (action masks,
            ...) pass as they are. None = all.

    Example:
        >>> f = MeanStdFilter((1,))
        >>> f(np.array([[0.0], [2.0]])).round(3).tolist(), f.rs.n, f.buffer.n
        ([[-0.7070000171661377], [0.7070000171661377]], 2, 2)
    """

    def __init__(self, shape: Sequence[int], clip: float | None = None, num_features: int | None = None) -> None:
        self.shape = tuple(shape)
        self.clip = clip
        self.num_features = None if self.shape == (num_features,) else num_features
        filtered = self.shape if self.num_features is None else (self.num_features,)
        self.rs = RunningStat(filtered)
        self.buffer = RunningStat(filtered)
        self._scale_of: NDArray | None = None  # the m2 for which _scale was computed
        self._scale: NDArray[np.float64] = np.ones(filtered)

    def __call__(self, x: NDArray, update: bool = True) -> NDArray[np.float32]:
        """Filter x [N, *shape] or [*shape]; float32 of the same shape.

        Raises:
            FilterError: neither shape fits.
        """
        x = np.asarray(x)
        if x.shape[1:] != self.shape or x.ndim == len(self.shape):
            if x.shape != self.shape:
                raise FilterError(
                    f"This filter takes observations of shape {self.shape}, or batches of them; got {x.shape}."
                )
            return self(x[None], update)[0]
        if self.num_features is None:
            return self._filtered(x, update)
        out = np.array(x, np.float32)
        out[:, : self.num_features] = self._filtered(x[:, : self.num_features], update)
        return out

    def _filtered(self, x: NDArray, update: bool) -> NDArray[np.float32]:
        if update:
            moments = batch_moments(x)
            if moments is not None:
                self.rs.merge(*moments)
                self.buffer.merge(*moments)
        if self.rs.m2 is not self._scale_of:
            self._rescale()
        y = x - self.rs.mean
        y *= self._scale
        if self.clip is not None:
            np.clip(y, -self.clip, self.clip, out=y)
        return y.astype(np.float32)

    def _rescale(self) -> None:
        std = self.rs.std
        if std.min(initial=math.inf) > SMALLEST_STD:
            self._scale = 1.0 / std
        else:
            self._scale = 1.0 / np.where(std > SMALLEST_STD, std, 1.0)
        self._scale_of = self.rs.m2

    def apply_changes(self, other: MeanStdFilter, with_buffer: bool = False) -> None:
        """See `Filter.apply_changes`."""
        self.rs.update(other.buffer)
        if with_buffer:
            self.buffer.update(other.buffer)

    def sync(self, other: MeanStdFilter) -> None:
        """See `Filter.sync`."""
        if other.rs.shape != self.rs.shape:
            raise FilterError(f"A filter of shape {other.rs.shape} cannot be taken over by one of {self.rs.shape}.")
        self.rs = other.rs.copy()
        self.rs.update(self.buffer)

    def copy(self) -> MeanStdFilter:
        """See `Filter.copy`."""
        other = MeanStdFilter(self.shape, self.clip, self.num_features)
        other.rs, other.buffer = self.rs.copy(), self.buffer.copy()
        return other

    def clear_buffer(self) -> None:
        """See `Filter.clear_buffer`."""
        self.buffer.clear()

    def get_state(self) -> dict[str, Any]:
        """Statistics and buffer, each as `n`, `mean`, `m2`."""
        return {"rs": self.rs.get_state(), "buffer": self.buffer.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave."""
        self.rs.set_state(state["rs"])
        self.buffer.set_state(state["buffer"])


FILTERS: dict[str, Callable[[Sequence[int], int | None], Filter]] = {
    "NoFilter": lambda shape, num_features: NoFilter(shape),
    "MeanStdFilter": lambda shape, num_features: MeanStdFilter(shape, 10.0, num_features),
}


def get_filter(
    name: str | Callable[[Sequence[int]], Filter], shape: Sequence[int], num_features: int | None = None
) -> Filter:
    """A new filter for observations of `shape`, by the name that `observation_filter` takes, or from a callable.

    Args:
        name: or what makes the filter of a shape, which then filters all columns.
        shape: of one observation.
        num_features: leading columns that the env's observation makes up, see `MeanStdFilter`; None = all.

    Raises:
        ConfigError: no filter of that name.
    """
    if callable(name):
        return name(shape)
    if name not in FILTERS:
        raise ConfigError(f"observation_filter={name!r} is unknown; choose one of {sorted(FILTERS)}.")
    return FILTERS[name](shape, num_features)


def gather_in_process(workers: Sequence[Any], method: str, *args: Any) -> list[Any]:
    """Call a method of each worker in turn; an engine's `gather` does the same across processes."""
    return [getattr(worker, method)(*args) for worker in workers]


class FilterManager:
    """Keeps the filters of a local worker and its remote twins equal."""

    @staticmethod
    def synchronize(
        local_filters: Mapping[str, Filter],
        remotes: Sequence[Any],
        update_remote: bool = True,
        gather: Callable[..., list[Any]] = gather_in_process,
    ) -> None:
        """Count what the remote workers have seen in the local filters, then send these to all.

        Workers merge in the order given, whichever answers first, so that the result is the same bit for bit.

        Args:
            local_filters: policy id -> filter of the local worker.
            remotes: workers with `get_filters(flush_after)` and `sync_filters(filters)`.
            update_remote: whether the merged filters are sent back.
            gather: calls a method on all remotes, as `Engine.gather` does.
        """
        for remote_filters in gather(remotes, "get_filters", True):
            for policy_id, local in local_filters.items():
                local.apply_changes(remote_filters[policy_id])
        for local in local_filters.values():
            local.clear_buffer()  # it holds no row that `rs` lacks, and must not be counted again elsewhere
        if update_remote:
            gather(remotes, "sync_filters", {pid: local.as_serializable() for pid, local in local_filters.items()})
