"""Where a policy learns: which device the config means, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwater.errors import ConfigError

# With "auto", networks without convolutions learn on a GPU only from so many weights on.
_MIN_GPU_WEIGHTS = 1_000_000


def choose_device(
    config: Mapping[str, Any], num_weights: int, has_convolutions: bool, count_gpus: Callable[[], int], framework: str
) -> tuple[str, int]:
    """The device that the config names; "auto": a GPU where there is one and the network gains from it.

    Args:
        config: `device` and `acting`.
        num_weights: Of the network.
        has_convolutions: Whether it has any.
        count_gpus: How many GPUs the framework sees; asked only where it matters, for asking may start a driver.
        framework: Its name, for the message.

    Returns:
        ("cpu" or "cuda", index).

    Raises:
        ConfigError: the device is not there.
    """
    wanted = config["device"]
    if wanted == "auto":
        large = has_convolutions or num_weights >= _MIN_GPU_WEIGHTS
        return ("cuda" if large and config["acting"] != "numpy" and count_gpus() else "cpu"), 0
    kind, _, index = wanted.partition(":")
    if kind == "cuda" and int(index or 0) >= count_gpus():
        raise ConfigError(
            f"device: {wanted!r} is not there; {framework} sees {count_gpus()} GPUs. Use 'cpu' or 'auto'."
        )
    return kind, int(index or 0)
