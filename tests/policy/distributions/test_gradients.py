"""The derivatives of every family by its inputs: the same in torch, TensorFlow and JAX."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.frameworks.numpy import NumpyGenerator
from tests.frameworks.all_ops import gradient

from .families import SPECIMENS, inputs_for

SIDES = {"torch": "Torch", "tf2": "TF", "jax": "JAX"}


def derivatives(framework, name, number, inputs, others):
    """[rows, K]: of the sum over rows of `number`."""
    specimen = SPECIMENS[name]
    make = specimen.make(SIDES[framework])
    actions = specimen.make("Numpy")(others).sample(NumpyGenerator(1))

    def total(x):
        dist = make(x)
        dist.rng = NumpyGenerator(2)
        found = {
            "logp": lambda: dist.logp(actions),
            "entropy": dist.entropy,
            "kl": lambda: dist.kl(make(others)),
            "kl of the other": lambda: make(others).kl(dist),
        }[number]()
        return dist.ops.sum(found)

    return gradient(framework, total, inputs)


@pytest.mark.parametrize("name", [name for name in SPECIMENS if name != "Deterministic"])
@pytest.mark.parametrize("number", ["logp", "entropy", "kl", "kl of the other"])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_all_frameworks_give_the_same_derivatives(name, number, scale):
    inputs, others = (inputs_for(SPECIMENS[name], 16, seed, scale) for seed in (4, 5))
    if "Gaussian" in name or name == "MultiActionDistribution":
        inputs, others = np.clip(inputs, -3, 3), np.clip(others, -3, 3)  # exp(2 * 15) has no five digits in common
    ours, *theirs = (derivatives(framework, name, number, inputs, others) for framework in SIDES)
    largest = max(1.0, float(np.abs(ours).max()))
    for other in theirs:
        np.testing.assert_allclose(other, ours, rtol=1e-5, atol=1e-5 * largest)
