"""InlineEngine: workers that live in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.engines.base import Engine


class _Call:
    """A finished call: its result, or what it raised."""

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self.result = result
        self.error = error


class InlineEngine(Engine):
    """Runs every call at once, in this thread.

    Example:
        >>> InlineEngine().gather(["a", "b"], "upper")
        ['A', 'B']
    """

    name = "inline"

    def submit(self, worker: Any, method: str, *args: Any, **kwargs: Any) -> _Call:
        """Run the call; an exception is kept for `get`, as if the worker ran elsewhere."""
        try:
            return _Call(getattr(worker, method)(*args, **kwargs))
        except Exception as error:
            return _Call(error=error)

    def wait(self, handles: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """All of them: nothing is ever pending."""
        return list(handles)

    def get(self, handle: _Call) -> Any:
        """See `Engine.get`."""
        if handle.error is not None:
            raise handle.error
        return handle.result

    def put(self, value: Any) -> Any:
        """The value itself: everything is shared."""
        return value
