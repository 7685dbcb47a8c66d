"""Networks in TensorFlow: what they offer, those of a `NetworkDescription`, and acting with either.

A network has its trained weights as one vector [P] and computes with weights that are given, so that a whole phase of
updates passes them from one to the next inside one function. `model.py` has the models of the user's own.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headwater.frameworks.tf.ops import TF_OPS
from headwater.frameworks.tf.tracing import Traced
from headwater.policy.network import Network
from headwater.policy.network_description import NetworkDescription
from headwater.policy.policy import Weights
from headwater.policy.weights import by_name, flattened

BLOCK_ROWS = 1024  # values of more observations are computed in blocks: the activations of images take much memory

Shapes = dict[str, tuple[int, ...]]
Outputs = tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]


class TFNetwork(Protocol):
    """What the learner and acting need of a network.

    Attributes:
        vector: [P], the trained weights.
        shapes: Name -> shape of the trained weights, in the vector's order.
        extras: Name -> variable of what is part of the weights but not trained.
        generators: Name -> variable of the state of a model's own random numbers.
        model: The user's own model; else None.
    """

    vector: tf.Variable
    shapes: Shapes
    extras: dict[str, Any]
    generators: dict[str, Any]
    model: Any

    def weights(self, vector: tf.Tensor) -> list[Any]:
        """The weights that a vector holds, in the order of `shapes`: what gradients are taken by."""

    def present(self) -> list[Any]:
        """The weights of now, for acting."""

    def forward(
        self,
        weights: list[Any],
        obs: tf.Tensor,
        state: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        keep_state: bool = False,
        training: bool = False,
    ) -> Outputs:
        """See `headwater.policy.network.Network.forward`."""

    def dist_inputs(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        """[B, *observation shape] -> [B, K]."""

    def values(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        """[B, *observation shape] -> [B]."""


class DescribedNetwork:
    """A described network.

    Args:
        description: What to compute.
        initial: Its first weights.
    """

    model = None

    def __init__(self, description: NetworkDescription, initial: Weights) -> None:
        self.shapes = description.weight_shapes()
        self.vector = tf.Variable(flattened(initial, self.shapes))
        self.extras: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self._network = Network(description, TF_OPS)

    def weights(self, vector: tf.Tensor) -> list[Any]:
        return list(by_name(TF_OPS, vector, self.shapes).values())

    def present(self) -> list[Any]:
        return self.weights(tf.convert_to_tensor(self.vector))

    def forward(
        self,
        weights: list[Any],
        obs: tf.Tensor,
        state: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        keep_state: bool = False,
        training: bool = False,
    ) -> Outputs:
        return self._network.forward(self._named(weights), obs, state, mask, keep_state)

    def dist_inputs(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        return self._network.dist_inputs(self._named(weights), obs)

    def values(self, weights: list[Any], obs: tf.Tensor) -> tf.Tensor:
        return self._network.values(self._named(weights), obs)

    def _named(self, weights: list[Any]) -> dict[str, Any]:
        return dict(zip(self.shapes, weights, strict=True))


class ActingInTF:
    """A network as acting needs it: NumPy arrays in and out.

    Args:
        network: What computes, with its present weights.
        place: The device, as TensorFlow names it.
        compiled: Whether by functions that are traced once for any rows.
    """

    def __init__(self, network: TFNetwork, place: str, compiled: bool) -> None:
        self._place = place
        self._dist_inputs = Traced(lambda obs: network.dist_inputs(network.present(), obs), compiled)
        self._values = Traced(lambda obs: network.values(network.present(), obs), compiled)
        self._forward = Traced(lambda obs: network.forward(network.present(), obs)[:2], compiled)
        self._step = Traced(lambda obs, state: network.forward(network.present(), obs, state, None, True), compiled)

    def dist_inputs(self, obs: NDArray) -> NDArray[np.float32]:
        """[N, *observation shape] -> [N, K]; without memory."""
        with tf.device(self._place):
            return self._dist_inputs(_tensor(obs)).numpy()

    def values(self, obs: NDArray, state: NDArray | None = None) -> NDArray[np.float32]:
        """[N, *observation shape], with memory the state before them [N, S] -> [N]."""
        if state is not None:
            return self.forward(obs, state)[1]
        starts = range(0, len(obs), BLOCK_ROWS)
        with tf.device(self._place):
            return np.concatenate([self._values(_tensor(obs[start : start + BLOCK_ROWS])).numpy() for start in starts])

    def forward(
        self, obs: NDArray, state: NDArray | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None]:
        """Both, and with memory the state after them [N, S]."""
        with tf.device(self._place):
            if state is None:
                dist_inputs, values = self._forward(_tensor(obs))
                return dist_inputs.numpy(), values.numpy(), None
            dist_inputs, values, after = self._step(_tensor(obs[:, None]), _tensor(state))
            return dist_inputs.numpy(), values.numpy(), after.numpy()


def _tensor(array: NDArray) -> tf.Tensor:
    return tf.convert_to_tensor(array if array.dtype == np.uint8 else array.astype(np.float32, copy=False))
