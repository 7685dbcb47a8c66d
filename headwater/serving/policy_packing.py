"""A policy in one body: what `RolloutWorker.export_policy` writes, as arrays with a message. No code, no pickle."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from headwater.sampling.exported_policy import ExportedPolicy
from headwater.serving.bodies import ARRAYS_TYPE, BadBody, decode, encode

_WEIGHTS, _TEXTS = "weights.safetensors", ("policy.json", "acting.json")


def pack(worker: Any, policy_id: str) -> tuple[bytes, str]:
    """A worker's policy.

    Returns:
        The body, and a hash of all that acting depends on.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-policy-") as directory:
        path = Path(worker.export_policy(directory, policy_id))
        weights = load_file(path / _WEIGHTS)
        texts = {name: json.loads((path / name).read_text(encoding="utf-8")) for name in _TEXTS}
    body = encode({"policy_id": policy_id, "files": texts, "weights": weights}, ARRAYS_TYPE)
    return body, hashlib.sha256(body).hexdigest()


def unpack(body: bytes, seed: int | None = None) -> ExportedPolicy:
    """The policy in a body.

    Raises:
        BadBody, CheckpointError: it is damaged.
    """
    message = decode(body, ARRAYS_TYPE)
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-policy-") as directory:
            for name in _TEXTS:
                (Path(directory) / name).write_text(json.dumps(message["files"][name]), encoding="utf-8")
            save_file(dict(message["weights"]), Path(directory) / _WEIGHTS)
            return ExportedPolicy.load(directory, seed)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadBody(f"the policy's body lacks a part: {type(error).__name__}: {error}") from error
