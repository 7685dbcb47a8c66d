"""Files that survive a crash: written whole or not at all, and lines that are appended whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Flush a directory's entries (renames, new names) to disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file and flush it to disk.

    Raises:
        OSError: The file exists or cannot be written.
    """
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Give `path` a new content; a reader, or a crash, sees the old one or the new one.

    Raises:
        OSError: It cannot be written; the old content is still there.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_synced(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class AppendFile:
    """A file that grows by whole records, opened at the first one.

    Each record reaches the system in one unbuffered write, so that a killed process loses nothing. A record that
    could not be written whole (a full disk) is taken back, so that the next one does not continue a torn one.
    """

    def __init__(self, path: Path, *, lines: bool = True) -> None:
        """Name the file; `lines` says that a record ends with a newline, so that a torn last one can be dropped."""
        self.path = path
        self._lines = lines
        self._descriptor: int | None = None
        self._size = 0

    def append(self, record: bytes) -> None:
        """Add one record.

        Raises:
            OSError: It could not be written whole; the file ends with the record before.
        """
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        view = memoryview(record)
        try:
            while view:  # a nearly full disk takes a part and refuses the rest
                view = view[os.write(self._descriptor, view) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(record)

    def _open(self) -> None:
        if self._lines:
            with contextlib.suppress(FileNotFoundError):
                drop_torn_line(self.path)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    @property
    def is_empty(self) -> bool:
        """Whether no record is in the file yet; opens it.

        Raises:
            OSError: It cannot be opened.
        """
        if self._descriptor is None:
            self._open()
        return self._size == 0

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def drop_torn_line(path: Path) -> None:
    """Cut what stands after the last newline: the rest of a line whose writer was killed.

    Raises:
        OSError: The file cannot be read or cut.
    """
    if not path.is_file():  # a device or a pipe has no last line
        return
    with open(path, "r+b") as file:
        end = position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.truncate(position)
