"""What the command line says: errors as one message, and a standard output that may be closed at any time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

import typer

from headwater.errors import HeadwaterError


def say(text: str) -> None:
    """Write a line to standard output, or to nowhere once its reader has gone.

    A training must outlive `| head -1` and a closed window. The descriptor itself is then pointed at the null device,
    so that no later write, nor the flush at the interpreter's end, meets the broken pipe again.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
            warn(f"headwater: standard output cannot be written: {error.strerror}.")
        _silence_stdout()


def warn(text: str) -> None:
    """Write a line to standard error."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    """Point standard output at the null device for the rest of the process."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
    finally:
        os.close(null)


@contextlib.contextmanager
def reporting_errors(debug: bool) -> Iterator[None]:
    """Print an exception as one message and exit with status 1; with `debug`, let the traceback through."""
    try:
        yield
    except (typer.Exit, typer.Abort, SystemExit):
        raise
    except KeyboardInterrupt:
        if debug:
            raise
        warn("headwater: interrupted.")
        raise typer.Exit(130) from None
    except HeadwaterError as error:
        if debug:
            raise
        warn(f"headwater: {_with_notes(error, str(error))}")
        raise typer.Exit(1) from None
    except Exception as error:
        if debug:
            raise
        text = f"unexpected {type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
        warn(f"headwater: {_with_notes(error, text)}\nRun again with --debug for the traceback.")
        raise typer.Exit(1) from None


def _with_notes(error: Exception, text: str) -> str:
    return "\n".join([text, *getattr(error, "__notes__", ())])
