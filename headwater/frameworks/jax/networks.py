"""Models of the user's own in JAX, and networks as acting needs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from headwater.errors import ConfigError
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.policy.custom_models import check_outputs
from headwater.policy.network import Network
from headwater.policy.weights import by_name

BLOCK_ROWS = 1024  # values of more observations are computed in blocks: the activations of images take much memory

Weights = Mapping[str, jax.Array]


class CustomNetwork:
    """A model of the user's own as a network: `init(key, obs) -> parameters`, `apply(parameters, obs) -> outputs`.

    Modules of flax.linen are such models, and so is any object with these two methods. Parameters are any pytree of
    floating arrays; their names are their paths, as in "model/params/Dense_0/kernel".

    Args:
        model: The user's.
        key: For `init`.
        obs: [B, *observation shape], for `init`.
        num_outputs: K.
        masked: Forbids outputs by what the observations say; see `output_mask`.

    Attributes:
        initial_weights: The fresh parameters by name.

    Raises:
        ConfigError: it has no such methods, no parameters, or others than floating arrays.
    """

    def __init__(
        self,
        model: Any,
        key: jax.Array,
        obs: jax.Array,
        num_outputs: int,
        masked: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> None:
        self.model = model
        self._masked = masked
        self._name = type(model).__name__
        self._num_outputs = num_outputs
        if not (callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None))):
            raise ConfigError(
                f"custom_model {self._name}: a model for jax has the methods init(key, obs) -> parameters and "
                "apply(parameters, obs) -> (dist_inputs, values). Derive it from flax.linen.Module, or write both."
            )
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(model.init(key, obs))
        self.initial_weights: dict[str, NDArray[np.float32]] = {}
        for path, leaf in leaves:
            name = "model/" + jax.tree_util.keystr(path, simple=True, separator="/")
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ConfigError(
                    f"custom_model {self._name}: parameters must be floating arrays, but {name} is {leaf!r}. Keep "
                    "other things as attributes of the model."
                )
            self.initial_weights[name] = np.asarray(leaf, np.float32)
        if not leaves:
            raise ConfigError(f"custom_model {self._name} has no parameters that can be trained.")

    def forward(
        self, weights: Weights, obs: jax.Array, state: None = None, mask: None = None, keep_state: bool = False
    ) -> tuple[jax.Array, jax.Array, None]:
        """[B, *observation shape] -> ([B, K], [B], None): it has no memory.

        Raises:
            ConfigError: the model returns other things or shapes.
        """
        parameters = jax.tree_util.tree_unflatten(self._structure, [weights[name] for name in self.initial_weights])
        result = self.model.apply(parameters, obs)
        dist_inputs, values = check_outputs(
            self._name, result, (len(obs),), self._num_outputs, lambda x: isinstance(x, jax.Array),
            "Let apply(parameters, obs) return both.",
        )  # fmt: skip
        return self._masked(obs, dist_inputs), values.reshape(len(obs)), None

    def dist_inputs(self, weights: Weights, obs: jax.Array) -> jax.Array:
        """[B, *observation shape] -> [B, K]."""
        return self.forward(weights, obs)[0]

    def values(self, weights: Weights, obs: jax.Array) -> jax.Array:
        """[B, *observation shape] -> [B]."""
        return self.forward(weights, obs)[1]


class ActingInJax:
    """A network as acting needs it: NumPy arrays in and out.

    Rows are filled up to powers of two, so that few numbers of rows are compiled.

    Args:
        network: What computes.
        shapes: Of its weights.
        vector: The present weights, [P].
    """

    def __init__(
        self,
        network: Network | CustomNetwork,
        shapes: Mapping[str, tuple[int, ...]],
        vector: Callable[[], jax.Array],
    ) -> None:
        def over_vector(function: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda vector, *inputs: function(by_name(JAX_OPS, vector, shapes), *inputs))

        self._vector = vector
        self._dist_inputs = over_vector(network.dist_inputs)
        self._values = over_vector(network.values)
        self._forward = over_vector(functools.partial(network.forward, keep_state=True))

    def dist_inputs(self, obs: NDArray) -> NDArray[np.float32]:
        """[N, *observation shape] -> [N, K]; without memory."""
        return np.asarray(self._dist_inputs(self._vector(), _filled(obs)))[: len(obs)]

    def values(self, obs: NDArray, state: NDArray | None = None) -> NDArray[np.float32]:
        """[N, *observation shape], with memory the state before them [N, S] -> [N]."""
        if state is not None:
            return self.forward(obs, state)[1]
        blocks = [obs[start : start + BLOCK_ROWS] for start in range(0, len(obs), BLOCK_ROWS)]
        vector = self._vector()
        return np.concatenate([np.asarray(self._values(vector, _filled(rows)))[: len(rows)] for rows in blocks])

    def forward(
        self, obs: NDArray, state: NDArray | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None]:
        """Both, and with memory the state after them [N, S]."""
        rows = _filled(obs)
        if state is None:
            outputs = self._forward(self._vector(), rows)
        else:
            outputs = self._forward(self._vector(), rows[:, None], _filled(state))
        dist_inputs, values, after = (None if x is None else np.asarray(x)[: len(obs)] for x in outputs)
        return dist_inputs, values, after  # type: ignore[return-value]


def _filled(rows: NDArray) -> NDArray:
    """[N, ...] -> [M, ...], M the power of two from N on; images stay bytes."""
    count = len(rows)
    rows = rows if rows.dtype == np.uint8 else np.asarray(rows, np.float32)
    size = 1 << (count - 1).bit_length()
    if size == count:
        return rows
    filled = np.zeros((size, *rows.shape[1:]), rows.dtype)
    filled[:count] = rows
    return filled
