"""Acting in NumPy: the half of a policy that all frameworks share, and policies that only act.

**Who computes the network.** Whatever framework learns, NumPy's distributions draw the actions and give their
log-probabilities; the network before them runs in NumPy too where that is faster. Measured per call of `act` (4
observations, two tanh layers, Discrete(2), sampling included) on one core of a server CPU, microseconds, NumPy / torch:

| rows | width 64 | width 256 | width 1024 |
|---|---|---|---|
| 1 | 18 / 40 | 22 / 50 | 82 / 149 |
| 8 | 21 / 51 | 32 / 84 | 534 / 609 |
| 64 | 34 / 86 | 138 / 261 | 1,705 / 2,235 |
| 512 | 131 / 330 | 870 / 1,584 | 11,717 / 14,877 |

NumPy's calls cost less, and so does its tanh; the wider the network, the more both spend in the same matrix products.
With a memory of the same width behind these layers, shared (Discrete(2) as well):

| rows | LSTM, 64 | LSTM, 256 | GRU, 64 | attention, 64 |
|---|---|---|---|---|
| 1 | 51 / 155 | 100 / 222 | 49 / 148 | 210 / 512 |
| 8 | 69 / 189 | 338 / 528 | 64 / 173 | 355 / 770 |
| 64 | 171 / 305 | 1,546 / 1,457 | 136 / 261 | 1,341 / 2,566 |

`acting="auto"` takes NumPy for networks on CPU without convolutions none of whose layers has more than
`MAX_NUMPY_WEIGHTS` weights (the widest measured); for all others, and on GPUs, the framework acts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.errors import CheckpointError, ConfigError, HeadwaterError
from headwater.frameworks.numpy.export import read_export, write_export
from headwater.frameworks.numpy.networks import make_network
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.ops import Ops
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import mask_of
from headwater.policy.exploration import StochasticSampling
from headwater.policy.network_description import Conv, NetworkDescription
from headwater.policy.policy import Acted, Policy, Weights
from headwater.policy.weights import fitting_weights

MAX_NUMPY_WEIGHTS = 1024 * 1024

Array = NDArray[Any]


def acts_faster_in_numpy(network: NetworkDescription) -> bool:
    """Whether `acting="auto"` takes NumPy for this network on CPU; see the module's docstring."""
    if any(isinstance(layer, Conv) for layer in network.layers()):
        return False
    return all(math.prod(shape) <= MAX_NUMPY_WEIGHTS for shape in network.weight_shapes().values())


class ActingNetwork(Protocol):
    """What acting needs of a network: NumPy arrays in and out."""

    def dist_inputs(self, obs: Array) -> Array:
        """[N, *observation shape] -> float32 [N, K]; without memory."""

    def values(self, obs: Array, state: Array | None = None) -> Array:
        """[N, *observation shape], with memory what is remembered before them [N, S] -> float32 [N]."""

    def forward(self, obs: Array, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        """Both, and with memory the state after them [N, S]."""


class ActingPolicy(Policy):
    """The acting half of a policy, over a network that takes and gives NumPy arrays.

    Subclasses set `acting_network`, `description` and, where the distribution exists in their framework only,
    `dist_class` and `ops`.

    Attributes:
        description: The network; None for a model of the user's own.
        acting_network: What computes distribution inputs and values.
        dist_class: Makes the distribution that actions are drawn from.
        ops: The ops that distribution computes with.
        num_outputs: K, the width of the distribution's inputs.
    """

    framework = "numpy"
    acting_network: ActingNetwork
    description: NetworkDescription | None
    ops: Ops = NUMPY_OPS

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self.dist_class, self.num_outputs = ModelCatalog.get_action_dist(
            action_space, config["model"], self._acting_framework(), config["normalize_actions"]
        )
        masked = mask_of(observation_space) is not None
        self.exploration = StochasticSampling.from_config(config, action_space, masked)
        self.seed: Any = np.random.SeedSequence().entropy if config["seed"] is None else config["seed"]
        self._acting_rng = NUMPY_OPS.generator(self._stream(1))
        self._rows_acted = 0

    def _acting_framework(self) -> str:
        return "numpy"

    def _stream(self, purpose: int) -> int:
        """A seed of the policy's own for each purpose."""
        return int(np.random.SeedSequence([self.seed, purpose]).generate_state(1, np.uint64)[0])

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {} if self.description is None else self.description.state_shapes()

    def act(self, obs: Array, rng: Any, explore: bool = True, state: Array | None = None) -> Acted:
        values = None
        if state is None:
            inputs = self.acting_network.dist_inputs(obs)
        else:
            inputs, values, state = self.acting_network.forward(obs, state)
        dist = self._dist(inputs)
        if explore and self.exploration.random_timesteps:
            actions = self.exploration.get_actions(dist, rng, True, self.global_timestep + self._rows_acted)
            self._rows_acted += len(inputs)
        else:
            actions = dist.sample(rng) if explore else dist.deterministic_sample()
        return Acted(self._host(actions), inputs, state, values)

    def values(self, obs: Array, state: Array | None = None) -> Array:
        return self.acting_network.values(obs, state)

    def logp(self, dist_inputs: Array, actions: Any) -> Array:
        return self.ops.to_numpy(self._dist(dist_inputs).logp(actions))

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Any = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, list[Array], dict[str, Array]]:
        obs = self._as_observations(obs_batch)
        explore = self.config["explore"] if explore is None else explore
        timestep = self.global_timestep if timestep is None else timestep
        inputs, values, state = self.acting_network.forward(obs, self._as_state(state_batches, len(obs)))
        dist = self._dist(inputs)
        actions = self.exploration.get_actions(dist, self._acting_rng if rng is None else rng, explore, timestep)
        logp = self.ops.to_numpy(dist.logp(actions))
        extra = {"action_dist_inputs": inputs, "action_logp": logp, "action_prob": np.exp(logp), "vf_preds": values}
        return self._host(actions), self._as_parts(state), extra

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Any = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
    ) -> Array:
        obs = self._as_observations(obs_batch)
        inputs, *_ = self.acting_network.forward(obs, self._as_state(state_batches, len(obs)))
        return self.logp(inputs, actions)

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        super().on_global_var_update(global_vars)
        self._rows_acted = 0

    def _dist(self, inputs: Array) -> Any:
        return self.dist_class(inputs if self.ops is NUMPY_OPS else self.ops.asarray(inputs))

    def _host(self, actions: Any) -> Any:
        if self.ops is NUMPY_OPS:
            return actions
        if isinstance(actions, dict):
            return {key: self._host(value) for key, value in actions.items()}
        if isinstance(actions, tuple):
            return tuple(self._host(value) for value in actions)
        return self.ops.to_numpy(actions)

    def _as_observations(self, obs_batch: Any) -> Array:
        obs = np.asarray(obs_batch)
        expected = self.observation_space.shape
        if obs.shape[1:] != expected or obs.ndim != len(expected) + 1:
            raise ConfigError(
                f"The policy takes encoded observations of shape (B, {', '.join(map(str, expected))}), but got "
                f"{obs.shape}. Encode observations as the worker does, and give a single one to compute_single_action."
            )
        return obs

    def _as_state(self, state_batches: Any, rows: int) -> Array | None:
        """Parts [B, *shape] side by side, [B, S]; None without memory."""
        parts = [] if state_batches is None else [np.asarray(part, np.float32) for part in state_batches]
        expected = {name: (rows, *shape) for name, shape in self.state_shapes.items()}
        if parts and [part.shape for part in parts] != list(expected.values()):
            has = f"remembers {expected}" if expected else "has no memory"
            raise ConfigError(
                f"{type(self).__name__} {has}, but {len(parts)} state parts came, of the shapes "
                f"{[part.shape for part in parts]}. Give what get_initial_state() returns, or the state that the step "
                "before returned, one row for each observation."
            )
        if not expected:
            return None
        if not parts:
            return np.zeros((rows, self.state_size), np.float32)
        return np.concatenate([part.reshape(rows, -1) for part in parts], axis=1)

    def _as_parts(self, state: Array | None) -> list[Array]:
        """[B, S] -> its parts [B, *shape]."""
        if state is None:
            return []
        sizes = [math.prod(shape) for shape in self.state_shapes.values()]
        parts = np.split(state, np.cumsum(sizes)[:-1], axis=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.state_shapes.values(), strict=True)]


class NumpyPolicy(ActingPolicy):
    """A policy that only acts: made from a described network and its weights, needing NumPy alone.

    `NumpyPolicy.load(path)` reads what `export_model` of any framework's policy wrote. It takes encoded (and filtered)
    observations and gives actions as the distribution samples them, before they are clipped or stretched for the env.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        config: Mapping[str, Any],
        network: NetworkDescription | None = None,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        if network is None:
            free = ModelCatalog.get_free_columns(action_space, config["model"])
            masked = ModelCatalog.get_mask_columns(observation_space, action_space, config["model"])
            network = ModelCatalog.get_network(observation_space, self.num_outputs, config["model"], free, masked)
        if network.num_outputs != self.num_outputs:
            raise ConfigError(
                f"The network gives {network.num_outputs} outputs, but the distribution for {action_space} takes "
                f"{self.num_outputs}. Describe the network by ModelCatalog.get_network for the same space."
            )
        self.description = network
        if weights is None:
            self._weights = network.initial_weights(np.random.default_rng(self._stream(0)))
        else:
            fitting, _ = fitting_weights(weights, network.weight_shapes())
            self._weights = {name: np.array(value, np.float32) for name, value in fitting.items()}
        self._shapes = network.weight_shapes()
        self.acting_network = make_network(network, self._weights)

    @classmethod
    def load(cls, path: str | Path, seed: int | None = None) -> NumpyPolicy:
        """The policy that `export_model` wrote to the directory `path`.

        Raises:
            CheckpointError: what is there is no such export, or is damaged.
        """
        export = read_export(path)
        config = {**export.config, "seed": seed}
        try:
            return cls(export.observation_space, export.action_space, config, export.network, export.weights)
        except HeadwaterError as error:
            raise CheckpointError(f"The policy exported to {path} does not fit together: {error}") from error

    def get_weights(self) -> Weights:
        return {name: value.copy() for name, value in self._weights.items()}

    def set_weights(self, weights: Mapping[str, Array], strict: bool = True) -> list[str]:
        fitting, mismatches = fitting_weights(weights, self._shapes, strict)
        for name, value in fitting.items():
            self._weights[name][...] = value
        return mismatches

    def get_state(self) -> dict[str, Any]:
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "rng": {"acting": self._acting_rng.get_state()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.set_weights(state["weights"])
        self.on_global_var_update({"timestep": state["global_timestep"]})
        self._acting_rng.set_state(state["rng"]["acting"])

    def export_model(self, path: str | Path) -> Path:
        return write_export(
            path, self.observation_space, self.action_space, self.config, self.description, self._weights
        )

    def learn_on_batch(self, batch: Any, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0) -> dict[str, float]:
        raise self._only_acts()

    def compute_gradients(self, batch: Any) -> tuple[Weights, dict[str, float]]:
        raise self._only_acts()

    def apply_gradients(self, gradients: Mapping[str, Array]) -> None:
        raise self._only_acts()

    def _only_acts(self) -> HeadwaterError:
        return HeadwaterError(f"{type(self).__name__} only acts. Learn with a framework's policy, e.g. PPOTorchPolicy.")
