"""Networks of every kind, small, that tests compute, describe and export."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.config import ModelConfig
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import joined, one_part
from headwater.policy.network_description import NetworkDescription

VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (9, 8, 2), np.uint8)
PIXELS = one_part("image", (7, 6, 1), 0, 1)
MASK = one_part("action_mask", (3,), 0, 1)
BEFORE = [one_part("prev_action", (3,)), one_part("prev_reward", (1,))]
PARTS = joined([PIXELS, VECTOR, one_part("image", (5, 5, 2), 0, 1), *BEFORE, MASK])
OUTPUTS = 5
SMALL = {
    "fcnet_hiddens": [6], "post_fcnet_hiddens": [7], "conv_filters": [[3, 3, 2], [4, 2, 1]], "memory_size": 6,
    "attention_heads": 2, "attention_window": 4,
}  # fmt: skip

# Name -> (observation space, model settings, free columns, columns governed by a mask).
NETWORKS: dict[str, tuple[spaces.Box, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "dense": (VECTOR, {"fcnet_hiddens": [6, 5]}, (), ()),
    "dense, shared, free": (VECTOR, {"vf_share_layers": True, "fcnet_activation": "elu"}, (3, 4), ()),
    "dense, masked, free": (joined([VECTOR, MASK]), {"fcnet_activation": "silu"}, (1,), (0, 2, 3)),
    "no hidden layers": (VECTOR, {"fcnet_hiddens": []}, (), ()),
    "convolutions": (IMAGE, {}, (), ()),
    "convolutions, separate": (IMAGE, {"vf_share_layers": False}, (), ()),
    "one image in a row": (PIXELS, {}, (), ()),
    "parts": (PARTS, {}, (2,), (4, 1, 0)),
    "lstm": (VECTOR, {"memory": "lstm"}, (), ()),
    "lstm, shared": (VECTOR, {"memory": "lstm", "vf_share_layers": True}, (4,), ()),
    "gru": (VECTOR, {"memory": "gru"}, (), ()),
    "attention": (VECTOR, {"memory": "attention"}, (), ()),
    "attention, deep": (VECTOR, {"memory": "attention", "attention_blocks": 2, "vf_share_layers": True}, (), ()),
    "lstm over parts": (PARTS, {"memory": "lstm"}, (), (0, 1, 2)),
    "gru over images": (IMAGE, {"memory": "gru"}, (), ()),
}
WITH_MEMORY = [name for name, (_, model, *_) in NETWORKS.items() if "memory" in model]


def described(name: str, **model: Any) -> NetworkDescription:
    """The network `name`, with further model settings."""
    space, own, free, masked = NETWORKS[name]
    return ModelCatalog.get_network(space, OUTPUTS, ModelConfig(**{**SMALL, **own, **model}), free, masked)


def weights_of(network: NetworkDescription, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights none of which is 0, and with outputs of a usual size."""
    rng = np.random.default_rng(seed)
    return {
        name: w + rng.normal(0, 0.3, w.shape).astype(np.float32) for name, w in network.initial_weights(rng).items()
    }


def observations(network: NetworkDescription, *rows: int, seed: int = 0) -> np.ndarray:
    """Random observations [*rows, *observation shape]; a mask allows about half, and always the first choice."""
    rng = np.random.default_rng(seed)
    shape = (*rows, *network.observation_shape)
    if network.scale != 1:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    obs = rng.normal(size=shape).astype(np.float32)
    if network.mask is not None:
        obs[..., network.mask.start :] = obs[..., network.mask.start :] > 0
        obs[..., network.mask.start] = 1
    return obs


def states(network: NetworkDescription, rows: int, seed: int = 0) -> np.ndarray | None:
    """States [rows, S] as acting could have left them, every other one in mid-episode; None without memory."""
    if not network.has_memory:
        return None
    rng = np.random.default_rng(seed)
    parts = []
    for name, shape in network.state_shapes().items():
        part = rng.uniform(-0.9, 0.9, (rows, *shape)).astype(np.float32)
        if name.endswith("age"):
            part = rng.integers(1, SMALL["attention_window"] + 1, rows).astype(np.float32)
        part[::2] = 0
        parts.append(part.reshape(rows, -1))
    return np.concatenate(parts, 1)
