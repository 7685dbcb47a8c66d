"""FlatParameters: all weights of a policy as views of one vector, all gradients as views of another.

So the optimizer, the gradient's norm, and taking or setting weights each touch one array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class FlatParameters:
    """Named parameters in one float32 vector.

    Args:
        initial: Name -> first value, in the vector's order.
        device: Where the vector lies.

    Attributes:
        vector: [P] all weights; a leaf that optimizers take, whose `.grad` is `gradient`.
        gradient: [P] all gradients.
        leaves: Name -> the weight as a view of `vector`; autograd adds to the view of `gradient` that is its `.grad`.
        gradients: Name -> that view of `gradient`.
    """

    def __init__(self, initial: Mapping[str, NDArray[np.float32]], device: torch.device) -> None:
        self.shapes = {name: tuple(value.shape) for name, value in initial.items()}
        flat = np.concatenate([np.ravel(value) for value in initial.values()]).astype(np.float32)
        self.vector = torch.from_numpy(flat).to(device)
        self.gradient = torch.zeros_like(self.vector)
        self.gradients = self.split(self.gradient)
        self.leaves: dict[str, Tensor] = {}
        for name, view in self.split(self.vector).items():
            leaf = view.detach().requires_grad_()
            leaf.grad = self.gradients[name]
            self.leaves[name] = leaf
        self.vector.requires_grad_()
        self.vector.grad = self.gradient

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """[P] -> name -> view of the weight's shape."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = vector[start : start + size].view(shape)
            start += size
        return views

    def copies(self, vector: Tensor) -> dict[str, NDArray[np.float32]]:
        """[P] -> name -> NumPy array, views of one copy."""
        host = vector.detach().cpu().clone()
        return {name: view.numpy() for name, view in self.split(host).items()}

    def write(self, vector: Tensor, values: Mapping[str, NDArray]) -> None:
        """Copy named values, of the right shapes, into a [P] vector."""
        views = self.split(vector.detach())
        for name, value in values.items():
            views[name].copy_(torch.from_numpy(np.array(value, np.float32)))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The weights' own memory as NumPy arrays; on CPU only."""
        return {name: view.numpy() for name, view in self.split(self.vector.detach()).items()}
