"""Which layers the parts of an observation, the memory settings and sharing ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import ModelConfig
from headwater.errors import ConfigError
from headwater.frameworks.numpy import NUMPY_OPS
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import joined, one_part
from headwater.policy.network import Network
from headwater.policy.network_description import Attention, Branches, Dense, Lstm, NetworkDescription
from headwater.sampling.preprocessors import get_encoder
from tests.policy.networks import SMALL, described, observations, states

VECTOR = spaces.Box(-1, 1, (4,))


def chosen(space: spaces.Box, outputs: int = 3, **model: Any) -> NetworkDescription:
    mask = tuple(range(outputs)) if getattr(space, "mask", None) is not None else ()
    return ModelCatalog.get_network(space, outputs, ModelConfig(**{**SMALL, **model}), mask_columns=mask)


def kinds(layers: tuple[Any, ...]) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def test_parts_are_cut_from_the_row() -> None:
    """Images each by itself; vectors and what was before together; the mask is no input."""
    network = described("parts")
    (branches,) = network.shared
    assert isinstance(branches, Branches) and (network.num_features, network.mask.start) == (100, 100)
    first, second, vectors = branches.branches
    assert (first.columns, first.shape, kinds(first.layers)) == (((0, 42),), (7, 6, 1), ["Conv", "Conv", "Dense"])
    assert (second.columns, second.shape, kinds(second.layers)) == (((46, 96),), (5, 5, 2), ["Conv", "Conv", "Dense"])
    assert vectors.columns == ((42, 46), (96, 99), (99, 100))
    assert (vectors.shape, kinds(vectors.layers)) == ((8,), ["Dense"])
    assert network.policy[0].inputs == 7 + 7 + 6


def test_what_was_before_widens_a_plain_row() -> None:
    space = joined([VECTOR, one_part("prev_action", (3,)), one_part("prev_reward", (1,))])
    network = chosen(space)
    assert network.is_mlp and network.num_features is None
    assert network.weight_shapes()["policy/dense_0/kernel"] == (8, 6)


@pytest.mark.parametrize("space", [
    spaces.Dict({"camera": spaces.Box(0, 255, (9, 8, 3), np.uint8)}),
    spaces.Tuple([spaces.Box(0, 255, (9, 8), np.uint8)]),
    spaces.Dict({"a": spaces.Box(0, 255, (9, 8, 3), np.uint8), "b": spaces.Box(0, 255, (7, 7), np.uint8)}),
])  # fmt: skip
def test_images_alone_in_a_nested_space(space: spaces.Space) -> None:
    encoder = get_encoder(space)
    network = chosen(encoder.space)
    space.seed(0)
    batch = {key: space.spaces[key].sample()[None] for key in space.spaces} if isinstance(space, spaces.Dict) else (
        space.spaces[0].sample()[None],
    )  # fmt: skip
    weights = network.initial_weights(np.random.default_rng(0))
    dist_inputs, values, _ = Network(network, NUMPY_OPS).forward(weights, encoder.encode(batch))
    assert dist_inputs.shape == (1, 3) and values.shape == (1,)


@pytest.mark.parametrize(("memory", "layers"), [
    ("lstm", ["Dense", "Lstm", "Dense"]),
    ("gru", ["Dense", "Gru", "Dense"]),
    ("attention", ["Dense", "Dense", "Attention", "Attention", "Dense"]),
])  # fmt: skip
def test_a_memory_stands_between_hidden_layers_and_outputs(memory: str, layers: list[str]) -> None:
    apart = chosen(VECTOR, memory=memory, attention_blocks=2)
    assert not apart.shared and kinds(apart.policy) == kinds(apart.value) == layers
    shared = chosen(VECTOR, memory=memory, attention_blocks=2, vf_share_layers=True)
    assert kinds(shared.shared) == layers[:-1] and kinds(shared.policy) == kinds(shared.value) == ["Dense"]
    assert 2 * shared.state_size == apart.state_size


def test_memory_settings_reach_the_layers() -> None:
    network = chosen(VECTOR, memory="attention", memory_size=12, attention_heads=3, attention_window=9)
    embed, block = network.policy[1:3]
    assert isinstance(embed, Dense) and embed.activation == "linear"
    assert isinstance(block, Attention) and (block.outputs, block.heads, block.window) == (12, 3, 9)
    lstm = chosen(VECTOR, memory="lstm", memory_size=12).policy[1]
    assert isinstance(lstm, Lstm) and (lstm.inputs, lstm.outputs) == (6, 12)


def test_images_share_their_memory_and_vectors_do_not() -> None:
    assert chosen(spaces.Box(0, 255, (9, 8, 2), np.uint8), memory="gru").state_shapes() == {"shared/gru/h": (6,)}
    assert list(chosen(VECTOR, memory="gru").state_shapes()) == ["policy/gru/h", "value/gru/h"]


@pytest.mark.parametrize(("size", "heads", "instead"), [(64, 3, 63), (2, 4, 4), (7, 2, 8)])
def test_heads_must_divide_the_memory(size: int, heads: int, instead: int) -> None:
    with pytest.raises(ConfigError, match=rf"memory_size: {size} .*attention_heads, {heads}\. Take {instead}"):
        chosen(VECTOR, memory="attention", memory_size=size, attention_heads=heads)


PART = st.one_of(
    st.integers(1, 4).map(lambda size: spaces.Box(-1, 1, (size,))),
    st.tuples(st.integers(3, 9), st.integers(3, 9), st.integers(1, 3)).map(
        lambda shape: one_part("image", shape, 0, 1)
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(PART, min_size=1, max_size=4),
    before=st.booleans(),
    masked=st.booleans(),
    memory=st.sampled_from([None, "lstm", "gru", "attention"]),
    share=st.sampled_from(["auto", True, False]),
)
def test_whatever_a_row_holds_there_is_a_network(
    parts: list[spaces.Box], before: bool, masked: bool, memory: str | None, share: Any
) -> None:
    rows = [*parts, *([one_part("prev_reward", (1,))] if before else []), *([one_part("action_mask", (3,))] * masked)]
    network = chosen(joined(rows), memory=memory, vf_share_layers=share, conv_filters=[[2, 3, 2]])
    weights = network.initial_weights(np.random.default_rng(0))
    obs = observations(network, 2, 3) if memory else observations(network, 6)
    dist_inputs, values, state = Network(network, NUMPY_OPS).forward(weights, obs, states(network, 2))
    assert dist_inputs.shape == (6, 3) and values.shape == (6,)
    assert state is None if memory is None else state.shape == (2, network.state_size)
    assert np.isfinite(dist_inputs).all() and np.isfinite(values).all()
