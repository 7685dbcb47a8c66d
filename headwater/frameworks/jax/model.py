"""The network of a JAX policy, described or the user's own, and the device that it belongs to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from headwater.errors import ConfigError
from headwater.frameworks.jax.generator import make_key
from headwater.frameworks.jax.networks import CustomNetwork
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.learning_policy import LearningPolicy
from headwater.policy.custom_models import make_custom_model, output_mask
from headwater.policy.device import choose_device
from headwater.policy.network import Network
from headwater.policy.policy import Weights


def make_network(policy: LearningPolicy) -> tuple[Network | CustomNetwork, Weights, jax.Device]:
    """A policy's network, its fresh weights, and its device.

    Raises:
        ConfigError: the model is something else, or returns other things or shapes; or the device is not there.
    """
    description, space = policy.description, policy.observation_space
    if description is not None:
        weights = policy.initial_weights()
        return Network(description, JAX_OPS), weights, _device(policy, weights, not description.is_mlp)
    if policy.config["model"]["memory"] is not None:
        raise ConfigError("model.memory: a custom_model has no memory in jax. Leave out one of the two.")
    obs = jnp.zeros((2, *space.shape), jnp.uint8 if space.dtype == np.uint8 else jnp.float32)
    model = make_custom_model(policy, name_by_keyword=True)  # flax has its modules' names by keyword only
    masked = output_mask(policy, JAX_OPS)
    network = CustomNetwork(model, make_key(policy.seed_of("model")), obs, policy.num_outputs, masked)
    weights = network.initial_weights
    jax.eval_shape(network.forward, weights, obs)  # wrong shapes are reported here rather than in the first iteration
    return network, weights, _device(policy, weights, any(weight.ndim > 2 for weight in weights.values()))


def _device(policy: LearningPolicy, weights: Weights, has_convolutions: bool) -> jax.Device:
    num_weights = sum(weight.size for weight in weights.values())
    kind, index = choose_device(policy.config, num_weights, has_convolutions, lambda: len(_gpus()), "JAX")
    return _gpus()[index] if kind == "cuda" else jax.devices("cpu")[0]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.devices() if device.platform == "gpu"]
