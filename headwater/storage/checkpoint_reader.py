"""Reading a checkpoint without trusting it: every byte is checked before anything is built from it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors

from headwater import __version__
from headwater.errors import CheckpointError
from headwater.storage.checkpoint_files import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    TENSORS_NAME,
    manifest_digest,
    restore_replaced,
)
from headwater.storage.state_tree import TENSOR_DTYPES, unflatten_state

MAX_TENSOR_HEADER_BYTES = 100_000_000  # as much as the format allows


def load_checkpoint(path: str | Path, expected_algorithm: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a checkpoint after checking every byte of it.

    Args:
        path: The checkpoint's directory (or the `checkpoint.json` in it).
        expected_algorithm: Refuse a checkpoint whose `meta["algorithm"]` is another one.

    Returns:
        `(state, meta)` as they were given to `save_checkpoint`; the arrays are fresh and writable.

    Raises:
        CheckpointError: It is absent, damaged, foreign, of a newer format, or of another algorithm.

    Example:
        >>> import tempfile
        >>> from headwater.checkpoint import save_checkpoint
        >>> path = save_checkpoint(Path(tempfile.mkdtemp()) / "c", {"bias": np.zeros(2)}, {"algorithm": "PPO"})
        >>> load_checkpoint(path, expected_algorithm="PPO")
        ({'bias': array([0., 0.])}, {'algorithm': 'PPO'})
    """
    directory, manifest = _read_manifest(path)
    algorithm = manifest["meta"].get("algorithm") if isinstance(manifest["meta"], dict) else None
    if expected_algorithm is not None and algorithm != expected_algorithm:
        _refuse(directory, f"it holds the algorithm {algorithm!r}, not {expected_algorithm!r}", "Load it with its own.")
    data = _read_tensor_file(directory, manifest)
    try:
        arrays = {name: _as_array(name, tensor) for name, tensor in safetensors.deserialize(data)}
        state, meta = unflatten_state(manifest["state"], arrays), unflatten_state(manifest["meta"], {})
    except (safetensors.SafetensorError, ValueError, RecursionError, MemoryError) as error:
        _refuse(directory, f"its content does not make a state ({type(error).__name__}: {str(error)[:300]})")
    if not isinstance(state, dict) or not isinstance(meta, dict):
        _refuse(directory, "its state or its meta is no JSON object")
    return state, meta


def read_checkpoint_meta(path: str | Path) -> dict[str, Any]:
    """Read only what `checkpoint.json` says: the `meta` that was saved, `format_version`, `versions` and `created`.

    Raises:
        CheckpointError: The manifest is absent, damaged, foreign or of a newer format.
    """
    directory, manifest = _read_manifest(path)
    try:
        meta = unflatten_state(manifest["meta"], {})
    except (ValueError, RecursionError) as error:
        _refuse(directory, f"its meta cannot be read ({error})")
    return {**meta, **{key: manifest[key] for key in ("format_version", "versions", "created") if key in manifest}}


def verify_checkpoint(path: str | Path) -> None:
    """Check every byte of a checkpoint without building its state.

    Raises:
        CheckpointError: It is absent, damaged, foreign or of a newer format.
    """
    _read_tensor_file(*_read_manifest(path))


def _refuse(path: Path, reason: str, remedy: str = "Use another checkpoint of the run.") -> NoReturn:
    raise CheckpointError(f"The checkpoint {path} cannot be loaded: {reason}. {remedy}")


def _locate(path: str | Path) -> Path:
    directory = Path(path)
    if directory.name == MANIFEST_NAME and not directory.is_dir():
        directory = directory.parent
    if not directory.exists() and directory.parent.is_dir():
        restore_replaced(directory)
    if directory.is_file():
        remedy = "Give the directory; pickles and archives of other libraries are never loaded."
        _refuse(directory, "it is a file, and a checkpoint of headwater is a directory", remedy)
    if not directory.is_dir():
        _refuse(directory, "there is no such directory", "Check the path.")
    if not os.path.lexists(directory / MANIFEST_NAME):
        inside = sorted(part.name for part in directory.glob("checkpoint_*") if (part / MANIFEST_NAME).is_file())
        remedy = f"There is a checkpoint in it: {inside[-1]}." if inside else "It is damaged, or of another library."
        _refuse(directory, f"it has no {MANIFEST_NAME}", remedy)
    return directory


def _read_manifest(path: str | Path) -> tuple[Path, dict[str, Any]]:
    directory = _locate(path)
    data = _read_file(directory, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    try:
        manifest = json.loads(data)
        digest = manifest_digest(manifest) if isinstance(manifest, dict) else None
    except RecursionError:
        _refuse(directory, f"its {MANIFEST_NAME} is nested too deeply")
    except ValueError as error:  # not JSON, not UTF-8, or an int of more digits than Python converts
        _refuse(directory, f"its {MANIFEST_NAME} is damaged ({error})")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        _refuse(directory, f"its {MANIFEST_NAME} does not say that it is a {FORMAT}", "Another program wrote it.")
    _check_version(directory, manifest)
    if manifest.get("digest") != digest:
        _refuse(directory, f"its {MANIFEST_NAME} was changed or damaged: the digest does not match")
    if not {"meta", "state", "files"} <= manifest.keys() or not isinstance(manifest["meta"], dict):
        _refuse(directory, f"its {MANIFEST_NAME} lacks the meta, the state or the files")
    return directory, manifest


def _check_version(directory: Path, manifest: Mapping[str, Any]) -> None:
    version = manifest.get("format_version")
    if type(version) is not int or version < 1:
        _refuse(
            directory, f"its {MANIFEST_NAME} gives the format version {str(version)[:40]!r}, no whole number from 1"
        )
    if version > FORMAT_VERSION:
        versions = manifest.get("versions")
        writer = versions.get("headwater") if isinstance(versions, dict) else None
        _refuse(
            directory,
            f"its {MANIFEST_NAME} has format {version}, written by headwater {str(writer)[:40]}; "
            f"this is headwater {__version__}, which reads formats up to {FORMAT_VERSION}",
            "Upgrade headwater: pip install --upgrade headwater",
        )


def _read_tensor_file(directory: Path, manifest: Mapping[str, Any]) -> bytes:
    files = manifest["files"]
    if not isinstance(files, dict) or files.keys() != {TENSORS_NAME} or not isinstance(files[TENSORS_NAME], dict):
        _refuse(directory, f"its manifest lists other files than {TENSORS_NAME}: {str(files)[:200]}")
    entry = files[TENSORS_NAME]
    data = _read_file(directory, TENSORS_NAME, None, entry.get("bytes"))
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        _refuse(directory, f"its {TENSORS_NAME} is damaged: the SHA-256 does not match")
    return data


def _read_file(directory: Path, name: str, limit: int | None, expected: Any = None) -> bytes:
    """Read a regular file that is no link, after checking its size: at most `limit`, or exactly `expected`."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(directory / name, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                _refuse(directory, f"its {name} is no regular file")
            if limit is not None and status.st_size > limit:
                _refuse(directory, f"its {name} has {status.st_size} bytes, more than the {limit} that are read")
            if limit is None:
                _check_tensor_sizes(directory, name, status.st_size, expected, file.peek(8)[:8])
            return file.read(status.st_size)
    except FileNotFoundError:
        _refuse(directory, f"its {name} is missing")
    except MemoryError:
        _refuse(directory, f"its {name} does not fit into memory")
    except OSError as error:
        reason = "is a link" if (directory / name).is_symlink() else f"cannot be read ({error.strerror or error})"
        _refuse(directory, f"its {name} {reason}")


def _check_tensor_sizes(directory: Path, name: str, size: int, expected: Any, start: bytes) -> None:
    if type(expected) is not int or size != expected:
        _refuse(directory, f"its {name} has {size} bytes, and {str(expected)[:40]} were written")
    header = int.from_bytes(start, "little")
    if size < 8 or header > min(size - 8, MAX_TENSOR_HEADER_BYTES):
        _refuse(directory, f"its {name} claims a header of {header} bytes")


def _as_array(name: str, tensor: Mapping[str, Any]) -> np.ndarray:
    dtype = TENSOR_DTYPES.get(tensor["dtype"])
    if dtype is None:
        raise ValueError(f"the array {name!r} has the dtype {tensor['dtype']}")
    array = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return array if array.flags.writeable and array.flags.aligned else array.copy()
