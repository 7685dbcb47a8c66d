"""Where workers run: in this process (`InlineEngine`), or wherever another `Engine` puts them."""

from headwater.engines.base import Engine, WorkerLost
from headwater.engines.inline import InlineEngine

__all__ = ["Engine", "InlineEngine", "WorkerLost"]
