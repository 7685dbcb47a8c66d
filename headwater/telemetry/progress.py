"""The progress of a run on the terminal: live, as plain lines, as JSON lines, or not at all."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from headwater.storage.nested_keys import look_up
from headwater.telemetry.flat_result import result_to_json
from headwater.telemetry.pace import Pace, Way

_logger = logging.getLogger(__name__)

_LIVE_INTERVAL_S = 0.25
_LINE_INTERVAL_S = 2.0
_READER_HAS_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)


class Display:
    """Shows nothing; the base of those that show something. Give it each result, and close it at the end.

    A terminal or a pipe that goes away silences a display; it never ends the run.
    """

    def update(self, result: Mapping[str, Any]) -> None:
        """Show a result."""

    def close(self) -> None:
        """Show the last result, and leave the terminal as it was."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def make_display(mode: str = "live", stop: Mapping[str, float] | None = None, stream: TextIO | None = None) -> Display:
    """Make the display of a run.

    Args:
        mode: "live" (plain lines where `stream` is no terminal), "plain" (a line now and then), "json" (each result as
            a line of strict JSON), or "quiet".
        stop: Result key -> bound at which the run ends, for the time that is left.
        stream: Where to; standard output.

    Example:
        >>> with make_display("plain", {"timesteps_total": 1024}, sys.stdout) as display:
        ...     display.update({"training_iteration": 1, "timesteps_total": 512, "episode_reward_mean": 21.5})
        iteration 1 | steps 512 | return 21.5 | 50% of steps 1,024
    """
    modes = {"live": _LiveDisplay, "plain": _PlainDisplay, "json": _JsonDisplay}
    if mode not in (*modes, "quiet"):
        raise ValueError(f"mode is one of 'live', 'plain', 'json', 'quiet'; got {mode!r}.")
    target = stream or sys.stdout
    if mode == "quiet" or target is None:  # a process without a console has no standard output
        return Display()
    if mode == "live" and not _is_terminal(target):
        mode = "plain"
    return modes[mode](_LastingStream(target), Pace(stop))


class _LastingStream:
    """A stream that turns silent when its reader has gone, whatever it is asked afterwards."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.gone = False

    def write(self, text: str) -> int:
        if not self.gone:
            try:
                return self._stream.write(text)
            except (OSError, ValueError) as error:  # a broken pipe, a full disk; a closed file
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if not self.gone:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.gone = True
        if isinstance(error, OSError) and error.errno not in _READER_HAS_GONE:
            _logger.warning("The progress can no longer be shown: %s. Training goes on.", error)
        # What is still in the stream's buffer would break the flush at the interpreter's end as well.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, self._stream.fileno())
            finally:
                os.close(null)

    def __getattr__(self, name: str) -> Any:  # encoding, isatty, fileno
        return getattr(self._stream, name)


class _JsonDisplay(Display):
    def __init__(self, stream: _LastingStream, pace: Pace) -> None:
        self._stream = stream

    def update(self, result: Mapping[str, Any]) -> None:
        if not self._stream.gone:
            self._stream.write(result_to_json(result) + "\n")
            self._stream.flush()


class _ThrottledDisplay(Display, ABC):
    """Shows a result when the last one has stood for an interval, and the last one of all."""

    interval_s: float

    def __init__(self, stream: _LastingStream, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._pace = pace
        self._clock = clock
        self._due = -math.inf
        self._waiting: Mapping[str, Any] | None = None
        self._evaluation: Any = None  # the last one stays in view

    def update(self, result: Mapping[str, Any]) -> None:
        self._pace.add(result)
        self._waiting = result
        self._evaluation = result.get("evaluation", self._evaluation)
        if self._clock() >= self._due and not self._stream.gone:
            self._show_waiting()
            self._due = self._clock() + self.interval_s

    def close(self) -> None:
        self._show_waiting()

    def _show_waiting(self) -> None:
        if self._waiting is not None and not self._stream.gone:
            self._show(self._waiting)
        self._waiting = None

    @abstractmethod
    def _show(self, result: Mapping[str, Any]) -> None:
        """Write one result."""


class _PlainDisplay(_ThrottledDisplay):
    interval_s = _LINE_INTERVAL_S

    def _show(self, result: Mapping[str, Any]) -> None:
        parts = [f"{name} {text}" for group in _groups(result, self._evaluation, self._pace) for name, text in group]
        ways = [_describe_way(way) for way in self._pace.ways(result)]
        self._stream.write(" | ".join(parts + ways) + "\n")
        self._stream.flush()


class _LiveDisplay(_ThrottledDisplay):
    interval_s = _LIVE_INTERVAL_S

    def __init__(self, stream: _LastingStream, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, pace, clock)
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        console = Console(file=stream)  # type: ignore[arg-type]
        self._live = Live(Text("The first iteration is under way ..."), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def close(self) -> None:
        super().close()
        self._live.stop()

    def _show(self, result: Mapping[str, Any]) -> None:
        frame = self._text(no_wrap=True, overflow="ellipsis")
        for group in _groups(result, self._evaluation, self._pace):
            for name, value in group:
                frame.append(f"{name} ", "dim").append(f"{value:<6} ", "bold")
            frame.append("\n")
        for way in self._pace.ways(result):
            filled = round(30 * way.done)
            frame.append("━" * filled, "green").append("━" * (30 - filled), "dim").append(f" {_describe_way(way)}\n")
        frame.rstrip()
        self._live.update(frame, refresh=True)


def _groups(result: Mapping[str, Any], evaluation: Any, pace: Pace) -> list[list[tuple[str, str]]]:
    """What is shown, line by line, each number with its name; what a result lacks is left out."""
    learner = _learner_stats(result)
    rows: list[list[tuple[str, float, str]]] = [
        [
            ("iteration", look_up(result, "training_iteration"), ",.0f"),
            ("steps", look_up(result, "timesteps_total"), ",.0f"),
            ("steps/s", pace.steps_per_second, ",.0f"),
            ("time", look_up(result, "time_total_s"), "time"),
        ],
        [
            ("return", look_up(result, "episode_reward_mean"), "value"),
            ("min", look_up(result, "episode_reward_min"), "value"),
            ("max", look_up(result, "episode_reward_max"), "value"),
            ("length", look_up(result, "episode_len_mean"), "value"),
            ("episodes", look_up(result, "episodes_total"), ",.0f"),
        ],
        [
            ("kl", look_up(learner, "kl"), ".4f"),
            ("entropy", look_up(learner, "entropy"), "value"),
            ("policy loss", look_up(learner, "policy_loss"), ".4f"),
            ("value loss", look_up(learner, "vf_loss"), "value"),
            ("expl. var.", look_up(learner, "vf_explained_var"), ".3f"),
        ],
    ]
    if isinstance(evaluation, Mapping):
        rows.append([("evaluation", look_up(evaluation, "episode_reward_mean"), "value")])
    groups = [[(name, _format(number, form)) for name, number, form in row if not math.isnan(number)] for row in rows]
    return [group for group in groups if group]


def _learner_stats(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The statistics of the default policy, or of the first that is trained."""
    info = result.get("info")
    policies = info.get("learner") if isinstance(info, Mapping) else None
    if not isinstance(policies, Mapping) or not policies:
        return {}
    stats = policies.get("default_policy", next(iter(policies.values())))
    return stats if isinstance(stats, Mapping) else {}


_NAMES = {
    "timesteps_total": "steps",
    "training_iteration": "iterations",
    "episode_reward_mean": "return",
    "evaluation/episode_reward_mean": "evaluation return",
}


def _describe_way(way: Way) -> str:
    if way.key == "time_total_s":
        bound = f"time {_format(way.bound, 'time')}"
    else:
        bound = f"{_NAMES.get(way.key, way.key)} {_format(way.bound, ',.10g')}"
    left = "" if way.seconds_left is None else f", {_format(way.seconds_left, 'time')} left"
    return f"{way.done:.0%} of {bound}{left}"


def _format(number: float, form: str) -> str:
    if form == "value":
        form = ",.0f" if 1000 <= abs(number) < 1e9 else ".4g"
    if form != "time" or not math.isfinite(number):
        return format(number, ".4g" if form == "time" else form)
    minutes, seconds = divmod(round(number), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
