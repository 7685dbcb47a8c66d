"""What an env's `reset` takes, and what its `render` and `close` do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from headwater.envs.env_checks.findings import Findings, shown

RESET_SIGNATURE = "reset(self, *, seed=None, options=None)"


def check_reset_signature(findings: Findings, env: Any) -> bool:
    """Check that `reset` of an env and of all that it wraps takes seed and options; return whether it takes seeds."""
    takes_seed = True
    for layer in _layers(env):
        try:
            signature = inspect.signature(layer.reset)
        except (TypeError, ValueError, AttributeError):
            continue
        parameters = signature.parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            continue
        names = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
        missing = [name for name in ("seed", "options") if name not in names]
        if missing:
            takes_seed = takes_seed and "seed" not in missing
            findings.add(
                "error" if "seed" in missing else "warning", "reset-signature", RESET_SIGNATURE,
                f"{type(layer).__name__}.reset{signature}",
                "Take both as keywords, and begin with super().reset(seed=seed).",
            )  # fmt: skip
    return takes_seed


def check_render(findings: Findings, env: Any) -> None:
    """Check, where the env was made with a render mode, that it declares that and draws as it says."""
    mode = getattr(env, "render_mode", None)
    if mode is None:
        return
    modes = (getattr(env, "metadata", None) or {}).get("render_modes", [])
    if mode not in modes:
        findings.warning(
            "render-mode", f"a render_mode among metadata['render_modes'], {list(modes)}", repr(mode),
            "Name the mode in the class's metadata.",
        )  # fmt: skip
    if mode != "rgb_array":
        return
    frame = findings.call("render-raised", env.render)
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
        came = f"an array of shape {frame.shape}, {frame.dtype}" if isinstance(frame, np.ndarray) else shown(frame)
        findings.warning(
            "render-frame", "a uint8 array [height, width, 3] from render()", came, "Return the frame as an array.",
        )  # fmt: skip


def check_close(findings: Findings, env: Any) -> None:
    """Close an env twice, as clean-ups may."""
    close = getattr(env, "close", None)
    if close is None:
        findings.warning("close-missing", "a method close()", "none", "Derive the env from gymnasium.Env.")
        return
    findings.where = "close"
    findings.call("close-raised", close)
    findings.where = "second close"
    findings.call("close-twice", close)


def _layers(env: Any) -> Iterator[Any]:
    """An env, and what it wraps, down to the innermost."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
