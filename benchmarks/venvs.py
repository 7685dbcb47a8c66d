"""A virtual environment for each peer, made on first use under ``benchmarks/.venvs/`` (ignored by git)."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER / "requirements"
VENVS = FOLDER / ".venvs"


def peer_python(peer: str) -> Path:
    """Returns the interpreter of `peer`'s environment, which is made or renewed when its requirements changed.

    Args:
        peer: the stem of a file under ``requirements/``, for instance ``"sb3"``.
    """
    requirements = REQUIREMENTS / f"{peer}.txt"
    environment = VENVS / peer
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = environment / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"making the environment of {peer} (once; downloads its packages) ...", file=sys.stderr, flush=True)
    if not python.exists():
        venv.create(environment, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch goes first and alone: an index may offer several builds of it, and this leaves the choice to pip's own
    # configuration rather than to what the peer's packages ask for.
    torch_line = next(line for line in requirements.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, torch_line], check=True)
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    stamp.write_text(digest)
    return python
