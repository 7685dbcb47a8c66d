"""Which network an observation space and the model settings ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from headwater.errors import ConfigError
from headwater.policy.network_description import Conv, Dense, Layer, NetworkDescription

POLICY_GAIN = 0.01  # a nearly uniform first policy explores
VALUE_GAIN = 1.0
ATARI_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015
_ATARI_SIZE = 52  # smaller sides would leave the Atari stack less than 3 positions at its end
_MAX_FEATURE_SIDE = 11  # sides longer than this after the convolutions are halved by further ones


def choose_network(
    obs_space: spaces.Box, num_outputs: int, model_config: Mapping[str, Any], free_columns: tuple[int, ...] = ()
) -> NetworkDescription:
    """See `ModelCatalog.get_network`."""
    shape = tuple(obs_space.shape)
    is_image = len(shape) > 1
    shared = model_config["vf_share_layers"]
    if shared == "auto":
        shared = is_image

    def body(part: str) -> tuple[list[Layer], int]:
        if is_image:
            return _image_layers(part, shape, model_config)
        return _dense_layers(part, shape[0], model_config["fcnet_hiddens"], model_config["fcnet_activation"])

    def outputs(part: str, inputs: int, width: int, gain: float) -> Dense:
        return Dense(f"{part}/out", inputs, width, "linear", gain)

    policy_width = num_outputs - len(free_columns)
    if shared:
        trunk, width = body("shared")
        policy: list[Layer] = [outputs("policy", width, policy_width, POLICY_GAIN)]
        value: list[Layer] = [outputs("value", width, 1, VALUE_GAIN)]
    else:
        trunk = []
        policy, width = body("policy")
        policy.append(outputs("policy", width, policy_width, POLICY_GAIN))
        value, width = body("value")
        value.append(outputs("value", width, 1, VALUE_GAIN))
    return NetworkDescription(
        observation_shape=shape,
        scale=1.0 / 255.0 if obs_space.dtype == "uint8" else 1.0,
        num_outputs=num_outputs,
        shared=tuple(trunk),
        policy=tuple(policy),
        value=tuple(value),
        free_columns=free_columns,
        orthogonal=model_config["orthogonal_init"],
    )


def default_filters(height: int, width: int) -> list[list[int]]:
    """`[[channels, kernel, stride], ...]` for an image size: the usual Atari stack, or small kernels for small images.

    Large images get further layers of stride 2 until no side is longer than 11; small ones start with a convolution of
    stride 1 (as for MinAtar's 10x10) and are then halved likewise.

    Example:
        >>> default_filters(84, 84), default_filters(10, 10)
        ([[32, 8, 4], [64, 4, 2], [64, 3, 1]], [[16, 3, 1]])
    """
    large = min(height, width) >= _ATARI_SIZE
    filters = [list(layer) for layer in ATARI_FILTERS] if large else [[16, 3, 1]]
    sides = [height, width]
    for _, kernel, stride in filters:
        sides = [_reduced(side, kernel, stride) for side in sides]
    while max(sides) > _MAX_FEATURE_SIDE:
        filters.append([min(64, 2 * filters[-1][0]), 3, 2])
        sides = [_reduced(side, 3, 2) for side in sides]
    return filters


def _image_layers(part: str, shape: tuple[int, ...], model_config: Mapping[str, Any]) -> tuple[list[Layer], int]:
    height, width, channels = (*shape, 1)[:3]
    given = model_config["conv_filters"]
    activation = model_config["conv_activation"]
    layers: list[Layer] = []
    for index, (outputs, kernel, stride) in enumerate(default_filters(height, width) if given is None else given):
        if given is not None and min(height, width) < kernel:
            raise ConfigError(
                f"model.conv_filters[{index}]: a kernel of {kernel} does not fit into the {height}x{width} that the "
                f"layers before it leave of the {shape[0]}x{shape[1]} image. Use fewer or smaller ones."
            )
        sides = (min(kernel, height), min(kernel, width))  # a side that is used up stays as it is
        layers.append(Conv(f"{part}/conv_{index}", channels, outputs, sides, (stride, stride), activation))
        height, width, channels = _reduced(height, kernel, stride), _reduced(width, kernel, stride), outputs
    hiddens = model_config["post_fcnet_hiddens"]
    dense, features = _dense_layers(part, height * width * channels, hiddens, activation)
    return layers + dense, features


def _dense_layers(part: str, inputs: int, hiddens: list[int], activation: str) -> tuple[list[Layer], int]:
    layers: list[Layer] = []
    for index, width in enumerate(hiddens):
        layers.append(Dense(f"{part}/dense_{index}", inputs, width, activation))
        inputs = width
    return layers, inputs


def _reduced(side: int, kernel: int, stride: int) -> int:
    return (side - min(kernel, side)) // stride + 1
