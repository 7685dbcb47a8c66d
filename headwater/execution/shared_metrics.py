"""SharedMetrics: the counters, timers and notes that all operators of a plan share."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from headwater.errors import HeadwaterError

# counters
STEPS_SAMPLED_COUNTER = "num_steps_sampled"
STEPS_TRAINED_COUNTER = "num_steps_trained"
AGENT_STEPS_SAMPLED_COUNTER = "num_agent_steps_sampled"  # of multi-agent batches only
AGENT_STEPS_TRAINED_COUNTER = "num_agent_steps_trained"
LAST_TARGET_UPDATE_TS = "last_target_update_ts"
NUM_TARGET_UPDATES = "num_target_updates"

# timers
SAMPLE_TIMER = "sample"
LEARN_TIMER = "learn"
WORKER_UPDATE_TIMER = "update"
COMPUTE_GRADS_TIMER = "compute_grads"
APPLY_GRADS_TIMER = "apply_grad"

LEARNER_INFO = "learner"  # in `info`: {policy id: statistics of the last update}


class PlanError(HeadwaterError, ValueError):
    """A plan's operators are put together, or used, in a way that cannot work."""


class PlanTypeError(HeadwaterError, TypeError):
    """An operator was put behind one that gives what it cannot take."""


class TimerStat:
    """Durations of the last calls of something, and how many units it got through. As a context it times its body.

    Args:
        window_size: calls remembered.

    Example:
        >>> timer = TimerStat()
        >>> for seconds in (1.0, 3.0):
        ...     timer.push(seconds)
        ...     timer.push_units_processed(100)
        >>> timer.mean, timer.mean_throughput, timer.count
        (2.0, 50.0, 2)
    """

    def __init__(self, window_size: int = 10) -> None:
        self.count = 0
        self._durations: deque[float] = deque(maxlen=window_size)
        self._units: deque[float] = deque(maxlen=window_size)
        self._started: float | None = None

    def __enter__(self) -> TimerStat:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._started is not None:
            self.push(time.perf_counter() - self._started)
            self._started = None

    def push(self, duration_s: float) -> None:
        """Remember a call."""
        self._durations.append(duration_s)
        self.count += 1

    def push_units_processed(self, units: float) -> None:
        """Remember how many units the call got through."""
        self._units.append(units)

    def has_units_processed(self) -> bool:
        """Whether a throughput is known."""
        return bool(self._units)

    @property
    def mean(self) -> float:
        """Mean duration, s; 0 before the first call."""
        return sum(self._durations) / len(self._durations) if self._durations else 0.0

    @property
    def mean_throughput(self) -> float:
        """Units per second; 0 before the first call."""
        total_s = sum(self._durations)
        return sum(self._units) / total_s if total_s > 0 else 0.0


class SharedMetrics:
    """What the operators of one plan tell each other and the report.

    Attributes:
        counters: name -> int.
        timers: name -> `TimerStat`.
        info: name -> whatever is to appear in the result's `info`.
        current_actor: the worker from which the current item came; None for the local one.
    """

    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.timers: defaultdict[str, TimerStat] = defaultdict(TimerStat)
        self.info: dict[str, Any] = {}
        self.current_actor: Any = None

    def absorb(self, other: SharedMetrics) -> None:
        """Add what another plan has counted, when the two become one."""
        for name, value in other.counters.items():
            self.counters[name] += value
        self.timers.update(other.timers)
        self.info.update(other.info)

    def save(self) -> dict[str, Any]:
        """Counters and info as JSON values. Timers are left out: they describe this machine, not the training."""
        return {"counters": {k: int(v) for k, v in self.counters.items()}, "info": json_values(self.info)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `save` gave; timers start anew."""
        self.counters.clear()
        self.counters.update(state["counters"])
        self.info = dict(state["info"])
        self.timers.clear()


_current = threading.local()


@contextmanager
def metrics_context(metrics: SharedMetrics) -> Iterator[None]:
    """Within it, `current_metrics()` gives `metrics`; plans may run inside operators of other plans."""
    outer = getattr(_current, "metrics", None)
    _current.metrics = metrics
    try:
        yield
    finally:
        _current.metrics = outer


def current_metrics() -> SharedMetrics:
    """The metrics of the plan that is running in this thread.

    Raises:
        PlanError: none is.
    """
    metrics = getattr(_current, "metrics", None)
    if metrics is None:
        raise PlanError(
            "The metrics of a plan exist only while it runs: call get_metrics() inside an operator, or read "
            "plan.shared_metrics from outside."
        )
    return metrics


def json_values(value: Any) -> Any:
    """The same numbers, strings, lists and string-keyed dicts, without NumPy's types; other objects as their text."""
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
