"""Run directories: `runs/<algorithm>/<env>/<utc>-s<seed>-<id>/`, and the lock that gives one to one process."""

from __future__ import annotations

import logging
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from headwater.errors import ConfigError, HeadwaterError

LOCK_NAME = ".lock"

_logger = logging.getLogger(__name__)


def make_run_dir(local_dir: str | Path, algo: str, env_id: str, seed: int | None) -> Path:
    """Make a new directory for a run.

    Args:
        local_dir: Where runs are kept (`local_dir` of the config); `~` is understood.
        algo: The algorithm's name.
        env_id: Any env id; what a file name should not have becomes "-".
        seed: The run's seed.

    Raises:
        ConfigError: It cannot be made there.

    Example:
        >>> import tempfile
        >>> run_dir = make_run_dir(tempfile.mkdtemp(), "PPO", "ALE/Pong-v5", 1)
        >>> run_dir.parent.name, run_dir.parent.parent.name
        ('ALE-Pong-v5', 'PPO')
    """
    parent = Path(local_dir).expanduser() / _file_name(algo) / _file_name(env_id)
    seed_name = "none" if seed is None else str(seed)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            run_dir = parent / f"{started}-s{seed_name}-{secrets.token_hex(3)}"
            try:
                run_dir.mkdir()
                return run_dir
            except FileExistsError:  # two runs in one second that drew the same id
                continue
    except OSError as error:
        raise ConfigError(
            f"No run directory can be made under local_dir={str(local_dir)!r}: {parent}: {error.strerror or error}. "
            "Set local_dir to a directory that you may write to."
        ) from error


class RunLock:
    """Holds a run directory for this process; the system lets go of it when the process ends, however it ends."""

    def __init__(self, run_dir: str | Path) -> None:
        """Take the directory, which is made if need be.

        Raises:
            HeadwaterError: Another process, or another trainer in this one, has it.
            ConfigError: The directory cannot be written to.
        """
        import filelock

        run_dir = Path(run_dir)
        self._lock = filelock.FileLock(run_dir / LOCK_NAME)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            (run_dir / LOCK_NAME).touch()  # a directory that is not writable looks like a held lock to filelock
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise HeadwaterError(
                f"The run directory {run_dir} is in use by another run. Wait until that one ends, or let this run make "
                "a directory of its own."
            ) from None
        except NotImplementedError as error:
            _logger.warning("%s cannot be locked (%s): start no second run in it.", run_dir, error)
        except OSError as error:
            raise ConfigError(
                f"The run directory {run_dir} cannot be written to: {error.strerror or error}. "
                "Make it writable, or set local_dir to a directory that is."
            ) from error

    def release(self) -> None:
        """Let others have the directory."""
        self._lock.release()


def _file_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:80]
    return name or "unnamed"
