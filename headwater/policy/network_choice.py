"""Which network an observation space and the model settings ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from headwater.errors import ConfigError
from headwater.policy.encoded_space import mask_of, parts_of
from headwater.policy.network_description import (
    ActionMask,
    Attention,
    Branch,
    Branches,
    Conv,
    Dense,
    Gru,
    Layer,
    Lstm,
    NetworkDescription,
)

POLICY_GAIN = 0.01  # a nearly uniform first policy explores
VALUE_GAIN = 1.0
ATARI_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015
_ATARI_SIZE = 52  # smaller sides would leave the Atari stack less than 3 positions at its end
_MAX_FEATURE_SIDE = 11  # sides longer than this after the convolutions are halved by further ones


def choose_network(
    obs_space: spaces.Box,
    num_outputs: int,
    model_config: Mapping[str, Any],
    free_columns: tuple[int, ...] = (),
    mask_columns: tuple[int, ...] = (),
) -> NetworkDescription:
    """See `ModelCatalog.get_network`."""
    shape = tuple(obs_space.shape)
    parts = parts_of(obs_space)
    sees_images = any(part.kind == "image" for part in parts)
    shared = model_config["vf_share_layers"]
    if shared == "auto":
        shared = sees_images
    policy_width = num_outputs - len(free_columns)
    trunk: list[Layer] = []
    policy: list[Layer] = []
    value: list[Layer] = []
    if shared:
        trunk, width = _body("shared", obs_space, model_config)
        policy_inputs = value_inputs = width
    else:
        policy, policy_inputs = _body("policy", obs_space, model_config)
        value, value_inputs = _body("value", obs_space, model_config)
    mask = mask_of(obs_space)
    inputs = sum(part.size for part in parts if part.kind != "action_mask")
    return NetworkDescription(
        observation_shape=shape,
        scale=1.0 / 255.0 if obs_space.dtype == "uint8" else 1.0,
        num_outputs=num_outputs,
        shared=tuple(trunk),
        policy=(*policy, Dense("policy/out", policy_inputs, policy_width, "linear", POLICY_GAIN)),
        value=(*value, Dense("value/out", value_inputs, 1, "linear", VALUE_GAIN)),
        free_columns=free_columns,
        orthogonal=model_config["orthogonal_init"],
        num_features=None if mask is None else inputs,
        mask=None if mask is None else ActionMask(mask.start, mask_columns),
    )


def _body(part: str, obs_space: spaces.Box, model_config: Mapping[str, Any]) -> tuple[list[Layer], int]:
    """All layers but the output of one half, or of what both share; and their width."""
    obs_parts = parts_of(obs_space)
    images = [obs_part for obs_part in obs_parts if obs_part.kind == "image"]
    vectors = [obs_part for obs_part in obs_parts if obs_part.kind not in ("image", "action_mask")]
    hiddens, activation = model_config["fcnet_hiddens"], model_config["fcnet_activation"]
    if not images:
        layers, width = _dense_layers(part, sum(vector.size for vector in vectors), hiddens, activation)
    elif len(obs_space.shape) > 1:  # the image comes as it is, not as a row
        layers, width = _image_layers(part, images[0].shape, model_config)
    else:
        branches, widths = [], []
        for index, image in enumerate(images):
            name = part if len(images) == 1 else f"{part}/image_{index}"
            own, width = _image_layers(name, image.shape, model_config)
            branches.append(Branch(((image.start, image.start + image.size),), image.shape, tuple(own)))
            widths.append(width)
        if vectors:
            inputs = sum(vector.size for vector in vectors)
            own, width = _dense_layers(part, inputs, hiddens, activation)
            columns = tuple((vector.start, vector.start + vector.size) for vector in vectors)
            branches.append(Branch(columns, (inputs,), tuple(own)))
            widths.append(width)
        inputs, width = sum(obs_part.size for obs_part in obs_parts), sum(widths)
        layers = [Branches(f"{part}/branches", inputs, width, tuple(branches))]
    return _with_memory(part, layers, width, model_config)


def _with_memory(
    part: str, layers: list[Layer], width: int, model_config: Mapping[str, Any]
) -> tuple[list[Layer], int]:
    kind, size = model_config["memory"], model_config["memory_size"]
    if kind is None:
        return layers, width
    if kind == "lstm":
        return [*layers, Lstm(f"{part}/lstm", width, size)], size
    if kind == "gru":
        return [*layers, Gru(f"{part}/gru", width, size)], size
    heads, window = model_config["attention_heads"], model_config["attention_window"]
    if size % heads:
        raise ConfigError(
            f"model.memory_size: {size} is not a multiple of model.attention_heads, {heads}. "
            f"Take {heads * max(1, round(size / heads))}, or another number of heads."
        )
    embed = Dense(f"{part}/embed", width, size)
    blocks = [
        Attention(f"{part}/attention_{index}", size, size, heads, window)
        for index in range(model_config["attention_blocks"])
    ]
    return [*layers, embed, *blocks], size


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
    dense, features = _dense_layers(part, height * width * channels, hiddens, activation, "post")
    return layers + dense, features


def _dense_layers(
    part: str, inputs: int, hiddens: list[int], activation: str, name: str = "dense"
) -> tuple[list[Layer], int]:
    layers: list[Layer] = []
    for index, width in enumerate(hiddens):
        layers.append(Dense(f"{part}/{name}_{index}", inputs, width, activation))
        inputs = width
    return layers, inputs


def _reduced(side: int, kernel: int, stride: int) -> int:
    return (side - min(kernel, side)) // stride + 1
