"""The world: envs of any kind behind one contract, `VectorEnv` (arrays in, arrays out)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that bears it; imported when first used, as registries and configs need none of it.
_PUBLIC = {
    "EnvContext": "headwater.envs.env_context",
    "StepResult": "headwater.envs.vector_env",
    "VectorEnv": "headwater.envs.vector_env",
    "info_of_row": "headwater.envs.vector_env",
    "make_vector_env": "headwater.envs.vector_env",
}

if TYPE_CHECKING:
    from headwater.envs.env_context import EnvContext as EnvContext
    from headwater.envs.vector_env import StepResult as StepResult
    from headwater.envs.vector_env import VectorEnv as VectorEnv
    from headwater.envs.vector_env import info_of_row as info_of_row
    from headwater.envs.vector_env import make_vector_env as make_vector_env

__all__ = ["EnvContext", "StepResult", "VectorEnv", "info_of_row", "make_vector_env"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'headwater.envs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
