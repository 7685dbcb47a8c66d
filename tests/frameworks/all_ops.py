"""The ops of every framework, each imported when a test first asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headwater.frameworks.ops import Ops

# Name -> (module, its ops, the package that it needs).
_OPS = {
    "numpy": ("headwater.frameworks.numpy", "NUMPY_OPS", "numpy"),
    "torch": ("headwater.frameworks.torch", "TORCH_OPS", "torch"),
    "tf2": ("headwater.frameworks.tf", "TF_OPS", "tensorflow"),
    "jax": ("headwater.frameworks.jax", "JAX_OPS", "jax"),
}
LEARNING = [name for name in _OPS if name != "numpy"]
ALL = ["numpy", *LEARNING]


def load_ops(name: str) -> Ops:
    """The ops of the framework `name`; skips the test where it is not installed."""
    module, ops, package = _OPS[name]
    pytest.importorskip(package)
    return getattr(importlib.import_module(module), ops)


def gradient(name: str, function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The derivative at `x` of a function to scalars, written over the framework's ops."""
    ops = load_ops(name)
    if name == "jax":
        return np.asarray(importlib.import_module("jax").grad(function)(ops.asarray(x)))
    if name == "tf2":
        tf, tensor = importlib.import_module("tensorflow"), ops.asarray(x)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            y = function(tensor)
        return tf.convert_to_tensor(tape.gradient(y, tensor)).numpy()  # some come as rows and their places
    tensor = ops.asarray(x).requires_grad_()
    function(tensor).backward()
    return tensor.grad.numpy()


def held_as(name: str, dtype: Any) -> np.dtype:
    """What a framework makes of a type: JAX has 32 bits."""
    narrow = {"int64": "int32", "float64": "float32"} if name == "jax" else {}
    return np.dtype(narrow.get(np.dtype(dtype).name, dtype))
