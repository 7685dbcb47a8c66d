"""One or more specimens of every family, for the tests that hold all of them to the same rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from headwater.frameworks import jax as jax_side
from headwater.frameworks import numpy as numpy_side
from headwater.frameworks import tf as tf_side
from headwater.frameworks import torch as torch_side

SIDES = {"Numpy": numpy_side, "Torch": torch_side, "TF": tf_side, "JAX": jax_side}

LOW, HIGH = np.array([-1.0, 0.0, -5.0], np.float32), np.array([1.0, 10.0, -4.0], np.float32)
NESTED = Dict(
    {
        "turn": Discrete(3),
        "arm": Tuple((Box(-1, 1, (2,)), MultiDiscrete([2, 3]))),
        "push": Box(-2.0, 2.0, (1,), np.float32),
    }
)


class Specimen(NamedTuple):
    make: Callable[[str], Callable]  # of SIDES -> factory(inputs, model=None)
    width: int  # K
    action_shape: tuple[int, ...]


def bind(side: str, name: str, **arguments: object) -> Callable:
    return partial(getattr(SIDES[side], ("" if side == "TF" else side) + name), **arguments)


def bind_nested(side: str) -> Callable:
    children = [
        bind(side, "DiagGaussian"),
        bind(side, "MultiCategorical", input_lens=[2, 3]),
        bind(side, "SquashedGaussian", low=-2.0, high=2.0),
        bind(side, "Categorical"),
    ]
    return bind(
        side, "MultiActionDistribution", child_distributions=children, input_lens=[4, 5, 2, 3], action_space=NESTED
    )


SPECIMENS = {
    "Categorical": Specimen(lambda s: bind(s, "Categorical"), 5, ()),
    "Categorical at temperature 2": Specimen(lambda s: bind(s, "Categorical", temperature=2.0), 4, ()),
    "MultiCategorical": Specimen(lambda s: bind(s, "MultiCategorical", input_lens=[2, 3]), 5, (2,)),
    "MultiCategorical of equal lengths": Specimen(
        lambda s: bind(s, "MultiCategorical", input_lens=[3, 3, 3, 3], action_shape=(2, 2)), 12, (2, 2)
    ),
    "GumbelSoftmax": Specimen(lambda s: bind(s, "GumbelSoftmax", temperature=0.7), 4, (4,)),
    "DiagGaussian": Specimen(lambda s: bind(s, "DiagGaussian"), 6, (3,)),
    "DiagGaussian of rank 2": Specimen(lambda s: bind(s, "DiagGaussian", action_shape=(2, 2)), 8, (2, 2)),
    "SquashedGaussian": Specimen(lambda s: bind(s, "SquashedGaussian"), 4, (2,)),
    "SquashedGaussian by dimension": Specimen(lambda s: bind(s, "SquashedGaussian", low=LOW, high=HIGH), 6, (3,)),
    "Beta": Specimen(lambda s: bind(s, "Beta"), 4, (2,)),
    "Beta by dimension": Specimen(lambda s: bind(s, "Beta", low=LOW, high=HIGH), 6, (3,)),
    "Dirichlet": Specimen(lambda s: bind(s, "Dirichlet"), 4, (4,)),
    "Dirichlet between bounds": Specimen(lambda s: bind(s, "Dirichlet", low=-1.0, high=1.0), 3, (3,)),
    "BinaryAutoregressive": Specimen(lambda s: bind(s, "BinaryAutoregressiveDistribution"), 6, (2,)),
    "Deterministic": Specimen(lambda s: bind(s, "Deterministic"), 3, (3,)),
    "MultiActionDistribution": Specimen(bind_nested, 14, (6,)),
}


def inputs_for(specimen: Specimen, rows: int = 16, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(rows, specimen.width)) * scale).astype(np.float32)


def numpy_of(x: object) -> object:
    """Actions or numbers of any framework, nested or not, as NumPy arrays."""
    if isinstance(x, dict):
        return {key: numpy_of(value) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(numpy_of(value) for value in x)
    return x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)
