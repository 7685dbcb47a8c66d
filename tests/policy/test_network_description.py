"""Descriptions of networks as data: the weights' layout, the state's, fresh weights, and JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headwater.policy.network_description import Attention, Gru, Lstm, NetworkDescription
from tests.policy.networks import NETWORKS, WITH_MEMORY, described


@pytest.mark.parametrize("name", NETWORKS)
def test_descriptions_survive_json(name: str) -> None:
    network = described(name)
    again = NetworkDescription.from_json(json.loads(json.dumps(network.to_json())))
    assert again == network
    assert again.weight_shapes() == network.weight_shapes() and again.state_shapes() == network.state_shapes()


def test_descriptions_from_before_there_were_masks() -> None:
    network = described("dense")
    data = {key: value for key, value in network.to_json().items() if key not in ("mask", "num_features")}
    assert NetworkDescription.from_json(data) == network


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "rnn"}, {"kind": "attention", "heads": None}, {"kind": "branches", "branches": 3}, {"inputs": "wide"},
        {"kind": "dense", "activation": "os.system"},
        {"kind": "conv", "activation": "relu", "kernel": [3], "stride": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_values_of_a_wrong_kind_are_refused(damage: dict[str, Any]) -> None:
    data = described("lstm").to_json()
    data["policy"][1].update(damage)
    with pytest.raises((TypeError, ValueError, KeyError)):
        NetworkDescription.from_json(data)


def test_layout_of_memories() -> None:
    assert Lstm("x", 5, 3).weight_shapes() == {"kernel": (5, 12), "recurrent": (3, 12), "bias": (12,)}
    gru = {"kernel": (5, 9), "recurrent": (3, 9), "bias": (9,), "recurrent_bias": (3,)}
    assert Gru("x", 5, 3).weight_shapes() == gru
    gate = {"kernel": (6, 18), "recurrent": (6, 12), "candidate": (6, 6), "bias": (6,)}
    assert Attention("x", 6, 6, heads=2, window=4).weight_shapes() == {
        "norm/scale": (6,), "norm/bias": (6,), "query/kernel": (6, 6), "key_value/kernel": (6, 12), "distance": (5, 2),
        "out/kernel": (6, 6), "out/bias": (6,), **{f"gate/{name}": shape for name, shape in gate.items()},
        "wide_norm/scale": (6,), "wide_norm/bias": (6,), "wide/kernel": (6, 12), "wide/bias": (12,),
        "narrow/kernel": (12, 6), "narrow/bias": (6,), **{f"wide_gate/{name}": shape for name, shape in gate.items()},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("dense", {}),
        ("lstm, shared", {"shared/lstm/h": (6,), "shared/lstm/c": (6,)}),
        ("gru", {"policy/gru/h": (6,), "value/gru/h": (6,)}),
        (
            "attention, deep",
            {
                f"shared/attention_{i}/{part}": shape
                for i in (0, 1)
                for part, shape in (("memory", (4, 6)), ("age", ()))
            },
        ),
    ],
)
def test_layout_of_states(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    network = described(name)
    assert network.state_shapes() == shapes and list(network.state_shapes()) == list(shapes)
    assert network.state_size == sum(int(np.prod(shape)) for shape in shapes.values())
    assert network.has_memory == bool(shapes)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("orthogonal", [True, False])
def test_fresh_weights_fill_the_layout_and_are_reproducible(name: str, orthogonal: bool) -> None:
    network = described(name, orthogonal_init=orthogonal)
    first, again, other = (network.initial_weights(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert {name: w.shape for name, w in first.items()} == network.weight_shapes()
    assert list(first) == list(network.weight_shapes())
    for key, w in first.items():
        assert w.dtype == np.float32 and np.isfinite(w).all() and np.array_equal(w, again[key])
        is_matrix = key.rpartition("/")[2] in ("kernel", "recurrent", "candidate")
        assert is_matrix != np.array_equal(w, other[key]), key


def blocks_of(kernel: np.ndarray, width: int) -> list[np.ndarray]:
    return np.split(kernel, max(1, kernel.shape[1] // width), 1)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_memories_begin_with_an_orthogonal_matrix_for_each_gate(name: str) -> None:
    network = described(name)
    weights = network.initial_weights(np.random.default_rng(0))
    for layer in network.layers():
        if not isinstance(layer, Lstm | Gru | Attention):
            continue
        for key, shape in layer.weight_shapes().items():
            value = weights[f"{layer.name}/{key}"]
            if len(shape) == 2 and key != "distance":
                for block in blocks_of(value, layer.outputs):
                    matrix = block if block.shape[0] <= block.shape[1] else block.T
                    assert matrix @ matrix.T == pytest.approx(np.eye(len(matrix)), abs=1e-5), key
        width = layer.outputs
        if isinstance(layer, Lstm):  # forget gates start open
            assert weights[f"{layer.name}/bias"].tolist() == [0.0] * width + [1.0] * width + [0.0] * 2 * width
        elif isinstance(layer, Attention):  # the block starts near the identity
            for key, expected in (("norm/scale", 1), ("gate/bias", 2), ("wide_gate/bias", 2), ("distance", 0)):
                assert (weights[f"{layer.name}/{key}"] == expected).all()


def test_which_networks_are_dense() -> None:
    dense = {name for name in NETWORKS if described(name).is_mlp}
    assert dense == {"dense", "dense, shared, free", "dense, masked, free", "no hidden layers"}
