"""Bounds: the finite range of a distribution over bounded actions."""

from __future__ import annotations

from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError
from headwater.policy.distributions.distribution import ActionDistribution

# Bounds beyond this stand for no bound at all; their difference would overflow float32.
_LARGEST = 1e38

# Actions nearer to a bound than this, as a share of the range, are read as if they were this near.
EDGE = 5e-7


class Bounded(ActionDistribution):
    """What families with a `low` and a `high` share; both are floats, or float32 arrays of the action's shape."""

    low: Any
    high: Any

    def _set_bounds(self, low: Any, high: Any) -> None:
        """Takes two numbers or arrays, before the inputs are bound.

        Raises:
            DistributionError: one is not finite, or low is not below high.
        """
        ops = self.ops
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            if not -_LARGEST < low < high < _LARGEST:
                raise DistributionError(self._bad_bounds(low, high))
            self.low, self.high = float(low), float(high)
            return
        low, high = ops.to_float(ops.asarray(low)), ops.to_float(ops.asarray(high))
        if ops.shape(low) != ops.shape(high):
            low, high = low + ops.zeros(ops.shape(high), high), high + ops.zeros(ops.shape(low), low)
        good = (low > -_LARGEST) & (low < high) & (high < _LARGEST)
        ops.check(good, lambda: self._bad_bounds(ops.to_numpy(low).tolist(), ops.to_numpy(high).tolist()))
        self.low, self.high = low, high

    @property
    def _shape_of_bounds(self) -> tuple[int, ...] | None:
        """None for numbers."""
        return None if isinstance(self.low, float) else tuple(self.ops.shape(self.low)) or None

    def _bind_bounds(self) -> None:
        """Brings them to the inputs' type and place, [A] each."""
        self._low, self._high = (self._as_row(bound) for bound in (self.low, self.high))
        self._range = self._high - self._low

    def _is_within(self, y: Array) -> Array:
        """[B, A] -> bool [B]."""
        return self.ops.all((y >= self._low) & (y <= self._high), -1)

    def _log_range(self, factor: float = 1.0) -> Any:
        """The logarithm of `factor` times the range."""
        wide = self.ops.asarray(self._range * factor, like=self.inputs)
        return self.ops.log(wide)

    def _check_bounds_of(self, other: Self) -> None:
        def message() -> str:
            return (
                f"{type(self).__name__}.kl: the bounds [{self.low}, {self.high}] and [{other.low}, {other.high}] "
                "differ; the divergence is finite only between distributions over the same range"
            )

        same = (self._low == other._low) & (self._high == other._high)
        if not isinstance(same, bool):
            self.ops.check(same, message)
        elif not same:
            raise DistributionError(message())

    def _as_row(self, bound: float | Array) -> Array:
        if isinstance(bound, float):
            return bound
        return self.ops.reshape(self.ops.to_float(self.ops.asarray(bound, like=self.inputs), like=self.inputs), (-1,))

    def _bad_bounds(self, low: Any, high: Any) -> str:
        return (
            f"{type(self).__name__} needs finite bounds with low < high, but got low={low} and high={high}: "
            "for an unbounded space use DiagGaussian"
        )
