"""The files of a checkpoint: JSON and tensors in a directory, written whole or not at all, read without trust.

    checkpoint_000012/
        checkpoint.json      who wrote it, for what (`meta`), the JSON part of the state, the SHA-256 of every file
        state.safetensors    the arrays of the state, named by their path in it

Nothing is ever unpickled, and nothing that a checkpoint names is imported or opened: both files have fixed names.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy

from headwater import __version__
from headwater.errors import CheckpointError
from headwater.storage.files import sync_directory, write_synced
from headwater.storage.state_tree import flatten_state

FORMAT = "headwater-checkpoint"
FORMAT_VERSION = 1
MANIFEST_NAME = "checkpoint.json"
TENSORS_NAME = "state.safetensors"

# What is larger is neither written nor read: parsing JSON takes some twenty times its size in memory.
MAX_MANIFEST_BYTES = 32 * 2**20

# .tmp: being written; .old: being replaced; .del: being removed.
_TEMPORARY = re.compile(r"\.(?P<kind>tmp|old|del)-(?P<name>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_in_use: set[str] = set()  # the temporary names of this process


def checkpoint_name(iteration: int) -> str:
    """Return the directory name of the checkpoint of an iteration, e.g. `checkpoint_000012`."""
    return f"checkpoint_{iteration:06d}"


def save_checkpoint(path: str | Path, state: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
    """Write a checkpoint directory; a crash at any moment leaves the one that was there before.

    Everything is written under a temporary name beside `path`, flushed to disk, and renamed. A checkpoint that has
    the name already is replaced; files of other names in it are kept.

    Args:
        path: The checkpoint's directory, e.g. `run/checkpoints/checkpoint_000012`.
        state: A state tree (see `headwater.storage.state_tree`).
        meta: What a reader may want to know before the state (`algorithm`, `config`, `spaces`...); JSON only.

    Returns:
        `path`, absolute.

    Raises:
        CheckpointError: The state holds something else than JSON and arrays, or the disk refuses; no temporary is left.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / checkpoint_name(12)
        >>> path = save_checkpoint(path, {"kl_coeff": 0.2, "history": [1.5, float("inf")]}, {"algorithm": "PPO"})
        >>> sorted(part.name for part in path.iterdir())
        ['checkpoint.json', 'state.safetensors']
    """
    target = Path(os.path.realpath(path))
    manifest, tensors = _serialise(target, state, meta)
    if target.exists() and not (target / MANIFEST_NAME).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists and is no checkpoint, so it is not overwritten. Choose another name.")
    temporary = _reserve_sibling(target, "tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        write_synced(temporary / TENSORS_NAME, tensors)
        write_synced(temporary / MANIFEST_NAME, manifest)
        sync_directory(temporary)
        _publish(temporary, target)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {target} could not be written: {error.strerror or error}. Earlier checkpoints are intact. "
            "Free space there, or save to another directory."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already if all went well
        _in_use.discard(temporary.name)
    return target


def clean_stale_temporaries(root: str | Path) -> list[Path]:
    """Finish or undo what killed processes left under `root`, and only that; return what was removed or brought back.

    A half-written checkpoint is removed; one that was being replaced when its successor had not yet got the name
    gets its name back. Names that we do not write, links, and the temporaries of living processes stay.
    """
    handled = []
    for path in sorted(Path(root).glob(".*")):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir() or not _is_stale(path.name, int(match["pid"])):
            continue
        with contextlib.suppress(OSError):  # a directory that is only read from may be read-only
            _clean(path, match["kind"], path.with_name(match["name"]))
        if not path.exists():
            handled.append(path)
    return handled


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint directory; a crash in between leaves no half of it under its name.

    Raises:
        OSError: It cannot be removed.
    """
    doomed = _reserve_sibling(path, "del")
    try:
        os.rename(path, doomed)
        shutil.rmtree(doomed)
    finally:
        _in_use.discard(doomed.name)


def restore_replaced(directory: Path) -> None:
    """Give a checkpoint its name back if its replacement was cut off between taking the name and giving it."""
    for path in directory.parent.glob(".old-*"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or match["name"] != directory.name or not (path / MANIFEST_NAME).is_file():
            continue
        if _is_stale(path.name, int(match["pid"])):
            with contextlib.suppress(OSError):
                os.rename(path, directory)
            return


def manifest_digest(content: Mapping[str, Any]) -> str:
    """Hash the manifest's content without its own digest, whatever its layout."""
    content = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _serialise(target: Path, state: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[bytes, bytes]:
    try:
        document, arrays = flatten_state(dict(state))
        meta_document, meta_arrays = flatten_state(dict(meta))
        if meta_arrays:
            raise TypeError(f"its meta is JSON only, and arrays belong into the state: {sorted(meta_arrays)}")
        tensors = safetensors.numpy.save(arrays)
        manifest = _manifest(meta_document, document, tensors)
    except (TypeError, RecursionError) as error:
        reason = "it is nested too deeply, or contains itself" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(f"The state cannot be saved to {target}: {reason}") from error
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise CheckpointError(
            f"The JSON part of the state has {len(manifest)} bytes; {MAX_MANIFEST_BYTES} fit. "
            "Keep long lists of numbers in arrays."
        )
    return manifest, tensors


def _manifest(meta: Any, state: Any, tensors: bytes) -> bytes:
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": _versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "meta": meta,
        "files": {TENSORS_NAME: {"bytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()}},
        "state": state,
    }
    content["digest"] = manifest_digest(content)
    # One line a key: readable, and dumped by the C encoder, which an indent would turn off.
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return f"{{\n{lines}\n}}\n".encode()


def _publish(temporary: Path, target: Path) -> None:
    if not (target / MANIFEST_NAME).is_file():
        os.rename(temporary, target)  # absent, or an empty directory
        sync_directory(target.parent)
        return
    replaced = _reserve_sibling(target, "old")
    try:
        os.rename(target, replaced)
        try:
            os.rename(temporary, target)
            sync_directory(target.parent)
        except BaseException:
            if not temporary.exists():
                os.rename(target, temporary)
            os.rename(replaced, target)
            raise
        with contextlib.suppress(OSError):  # the next start tries again
            _discard_replaced(replaced, target)
    finally:
        _in_use.discard(replaced.name)


def _clean(path: Path, kind: str, target: Path) -> None:
    if kind == "old" and (path / MANIFEST_NAME).is_file():
        if target.exists():
            _discard_replaced(path, target)
        else:
            os.rename(path, target)
    elif kind != "tmp" or {part.name for part in path.iterdir()} <= {MANIFEST_NAME, TENSORS_NAME}:
        shutil.rmtree(path)


def _discard_replaced(replaced: Path, target: Path) -> None:
    """Remove the former checkpoint; what others put into it moves to its successor."""
    for part in replaced.iterdir():
        if part.name not in (MANIFEST_NAME, TENSORS_NAME) and not (target / part.name).exists():
            os.rename(part, target / part.name)
    shutil.rmtree(replaced, ignore_errors=True)


def _reserve_sibling(target: Path, kind: str) -> Path:
    name = f".{kind}-{target.name}-{os.getpid()}-{secrets.token_hex(4)}"
    _in_use.add(name)
    return target.with_name(name)


def _is_stale(name: str, pid: int) -> bool:
    if pid == os.getpid():  # in a container, the process before us often had our id
        return name not in _in_use
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"headwater": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch", "tensorflow", "jax", "gymnasium", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
