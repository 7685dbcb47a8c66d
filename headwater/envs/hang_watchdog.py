"""HangWatchdog: says so when an env does not come back, and where it is.

An env that hangs in this process cannot be stopped from outside, but it must not be silent. The vector env counts
`ticks` up as it enters and leaves the env, which is all that it costs per step; a thread looks at the count at times.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import FrameType

logger = logging.getLogger(__name__)

LOOKS_PER_LIMIT = 5


class HangWatchdog:
    """Warns once, with the stack, for each call into an env that takes longer than `warn_after_s`.

    Args:
        env_id: whose calls are watched, for the message.
        warn_after_s: seconds; None watches nothing and starts no thread.

    Attributes:
        ticks: add one before a call into the env and one after it; odd means that a call is running.

    Example:
        >>> watchdog = HangWatchdog("CartPole-v1", warn_after_s=60)
        >>> watchdog.ticks += 1  # now in the env
        >>> watchdog.ticks += 1  # out again
        >>> watchdog.close()
    """

    def __init__(self, env_id: str, warn_after_s: float | None) -> None:
        self.ticks = 0
        self._env_id = env_id
        self._warn_after_s = warn_after_s
        self._watched_thread = threading.get_ident()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to look; the calling thread is the one whose stack a warning shows. Does nothing the second time."""
        self._watched_thread = threading.get_ident()
        if self._warn_after_s is not None and self._thread is None:
            self._thread = threading.Thread(target=self._look, name=f"hang-watchdog {self._env_id}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stop.set()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _look(self) -> None:
        assert self._warn_after_s is not None
        pause_s = self._warn_after_s / LOOKS_PER_LIMIT
        seen, looks, warned = -1, 0, -1
        while not self._stop.wait(pause_s):
            ticks = self.ticks
            looks = looks + 1 if ticks == seen else 0
            seen = ticks
            if ticks % 2 and looks >= LOOKS_PER_LIMIT and warned != ticks:
                warned = ticks
                self._warn()

    def _warn(self) -> None:
        frame = sys._current_frames().get(self._watched_thread)
        logger.warning(
            "Env %r%s has not come back for more than %g s (env_hang_warn_s). It is here:\n%s",
            self._env_id,
            _sub_env(frame),
            self._warn_after_s,
            "".join(traceback.format_stack(frame)) if frame else "(its thread has ended)",
        )


def _sub_env(frame: FrameType | None) -> str:
    """Name the sub-env from the loop variable of the copies' loop, which is the cheapest place to keep it."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "headwater.envs.gymnasium_copies" and "index" in frame.f_locals:
            return f" (sub-env {frame.f_locals['index']})"
        frame = frame.f_back
    return ""
