"""Which networks gain from a GPU, whatever the framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Networks without convolutions or memory gain only from so many weights on.
_MIN_WEIGHTS = 1_000_000


def gains_from_gpu(config: Mapping[str, Any], num_weights: int, only_dense: bool) -> bool:
    """Whether `device: "auto"` takes a GPU where there is one; NumPy cannot act with weights that lie there."""
    return config["acting"] != "numpy" and (not only_dense or num_weights >= _MIN_WEIGHTS)
