"""Training that is driven over HTTP: a server which is an external env, and its client."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that bears it; imported when first used, as the client needs nothing of the server.
_PUBLIC = {
    "EpisodeLost": "headwater.envs.external_episodes",
    "PolicyClient": "headwater.serving.policy_client",
    "PolicyServerInput": "headwater.serving.policy_server",
}

if TYPE_CHECKING:
    from headwater.envs.external_episodes import EpisodeLost as EpisodeLost
    from headwater.serving.policy_client import PolicyClient as PolicyClient
    from headwater.serving.policy_server import PolicyServerInput as PolicyServerInput

__all__ = ["EpisodeLost", "PolicyClient", "PolicyServerInput"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'headwater.serving' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
