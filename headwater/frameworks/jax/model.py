"""The network of a JAX policy, and where it lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headwater.errors import ConfigError
from headwater.frameworks.devices import gains_from_gpu
from headwater.frameworks.jax.generator import make_key
from headwater.frameworks.jax.networks import CustomNetwork
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.learning_policy import LearningPolicy
from headwater.policy.catalog import ModelCatalog
from headwater.policy.network import Network
from headwater.policy.policy import Weights


def make_network(policy: LearningPolicy) -> tuple[Network | CustomNetwork, Weights, jax.Device]:
    """A policy's network, described or the user's own, its fresh weights, and the device that it belongs to."""
    config, description = policy.config, policy.description
    if description is not None:
        weights = policy.initial_weights()
        device = choose_device(config, _count(weights), description.is_mlp)
        return Network(description, JAX_OPS), weights, device
    space = policy.observation_space
    obs = jnp.zeros((2, *space.shape), jnp.uint8 if space.dtype == np.uint8 else jnp.float32)
    network = CustomNetwork(_make_model(policy), make_key(policy.seed_of("model")), obs, policy.num_outputs)
    # Wrong shapes are reported here rather than in the first iteration.
    jax.eval_shape(network.forward, network.initial_weights, obs)
    has_convolutions = any(weight.ndim > 2 for weight in network.initial_weights.values())
    device = choose_device(config, _count(network.initial_weights), not has_convolutions)
    return network, network.initial_weights, device


def choose_device(config: Mapping[str, Any], num_weights: int, only_dense: bool) -> jax.Device:
    """The device that the config names; "auto": a GPU where there is one and the network gains from it.

    Raises:
        ConfigError: the device is not there.
    """
    kind, _, index = config["device"].partition(":")
    if kind == "cpu" or (kind == "auto" and not gains_from_gpu(config, num_weights, only_dense)):
        return jax.devices("cpu")[0]
    gpus = [device for device in jax.devices() if device.platform == "gpu"]
    if kind == "auto":
        return gpus[0] if gpus else jax.devices("cpu")[0]
    if int(index or 0) >= len(gpus):
        raise ConfigError(
            f"device: {config['device']!r} is not there; JAX sees {len(gpus)} GPUs. Use 'cpu' or 'auto', or install "
            "JAX for your GPU: pip install 'jax[cuda12]'."
        )
    return gpus[int(index or 0)]


def _make_model(policy: LearningPolicy) -> Any:
    model_config = policy.config["model"]
    model_class: Any = ModelCatalog.get_custom_model(model_config)
    arguments = (policy.observation_space, policy.action_space, policy.num_outputs, model_config)
    try:
        return model_class(*arguments, name="default_model", **model_config["custom_model_config"])
    except TypeError as error:
        raise ConfigError(
            f"custom_model: {model_class!r} could not be made: {error}. A model is made as Model(obs_space, "
            "action_space, num_outputs, model_config, name=name, **custom_model_config)."
        ) from error


def _count(weights: Weights) -> int:
    return sum(math.prod(weight.shape) for weight in weights.values())
