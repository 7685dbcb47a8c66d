"""Signals as a wish to stop: the first waits for a safe point, a second Ctrl-C does not."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

PATIENCE_S = 5.0  # what an iteration may still take after the signal; saving and closing come on top
CLOSING_PATIENCE_S = 1.0
INSISTENCE_S = 0.5  # between two attempts to break off code that catches everything
ATTEMPTS = 3

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # SIGHUP: the terminal was closed; absent on Windows


class OutOfPatience(BaseException):
    """What was to be finished takes too long. No `Exception`, so that no env or callback swallows it lightly."""


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP only set `received`; a SIGINT after one of them ends the process.

    The loop that runs looks at `received` between two iterations, where everything can be saved. A signal that was
    ignored when the process started (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._patience: float | None = None  # of the block that is being run
        self._attempts = 0
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that a signal stopped; 0 where none came."""
        return 0 if self.received is None else 128 + self.received

    @property
    def name(self) -> str:
        """The name of the signal that came, or ""."""
        return "" if self.received is None else signal.Signals(self.received).name

    @contextlib.contextmanager
    def limiting_patience(self, seconds: float = PATIENCE_S) -> Iterator[None]:
        """Break the block off if it takes longer than `seconds` after a signal, or after its start if that is later.

        Where the block catches even that, several times, the process ends at once.

        Raises:
            OutOfPatience: inside the block, wherever it is.
        """
        self._patience, self._attempts = seconds, 0
        if self.received is not None:
            self._set_alarm(seconds)
        try:
            yield
        finally:
            self._patience = None
            if self.received is not None:
                self._set_alarm(0.0)

    def __enter__(self) -> StopSignals:
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) == signal.SIG_IGN:
                continue
            with contextlib.suppress(ValueError):  # not the main thread: whoever owns it handles signals
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._handle_in_forked_child(number)
        elif self.received is None:
            self.received = number
            _tell(f"headwater: {self.name}: stopping after this iteration, then saving. Ctrl-C again stops at once.")
            if self._patience is not None:
                self._set_alarm(self._patience)
        elif number == signal.SIGINT:
            self._stop_at_once(128 + signal.SIGINT)

    @staticmethod
    def _stop_at_once(status: int) -> None:
        with contextlib.suppress(ValueError):  # closed
            if sys.stdout.isatty():
                _write(1, "\x1b[?25h")  # a live display hides the cursor
        _write(2, "\nheadwater: stopped at once; what was saved before is intact.\n")
        os._exit(status)

    def _set_alarm(self, seconds: float) -> None:
        if hasattr(signal, "setitimer") and self._previous:
            signal.signal(signal.SIGALRM, self._lose_patience)
            signal.setitimer(signal.ITIMER_REAL, seconds, INSISTENCE_S if seconds else 0.0)

    def _lose_patience(self, number: int, frame: FrameType | None) -> None:
        if self._patience is None or os.getpid() != self._pid:
            return
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            self._stop_at_once(self.exit_status)
        raise OutOfPatience

    @staticmethod
    def _handle_in_forked_child(number: int) -> None:
        """An env process inherits this handler: Ctrl-C is its parent's business, termination is its own."""
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _tell(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)  # which a live display redirects to above itself
    except (RuntimeError, OSError, ValueError):  # the signal came within a write to the same buffered stream
        _write(2, f"\n{line}\n")


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, text.encode())
