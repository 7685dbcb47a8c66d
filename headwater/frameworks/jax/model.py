"""The network of a JAX policy, described or the user's own, and the device that it belongs to."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headwater.errors import ConfigError
from headwater.frameworks.jax.generator import make_key
from headwater.frameworks.jax.loop_ops import JAX_LOOP_OPS
from headwater.frameworks.jax.networks import CustomNetwork
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.learning_policy import LearningPolicy
from headwater.policy.custom_models import make_custom_model, output_mask
from headwater.policy.device import choose_device
from headwater.policy.network import Network
from headwater.policy.policy import Weights


class Made(NamedTuple):
    """A policy's network."""

    learning: Network | CustomNetwork
    acting: Network | CustomNetwork
    weights: Weights  # fresh
    device: jax.Device
    in_loops: bool  # whether it is as fast inside a compiled loop as outside


def make_network(policy: LearningPolicy) -> Made:
    """The network that a policy's spaces and config ask for.

    Raises:
        ConfigError: the model is something else, or returns other things or shapes; or the device is not there.
    """
    description, space = policy.description, policy.observation_space
    if description is not None:
        weights = policy.initial_weights()
        device, acting = _device(policy, weights, not description.is_mlp), Network(description, JAX_OPS)
        learning = Network(description, JAX_LOOP_OPS) if device.platform == "cpu" else acting
        return Made(learning, acting, weights, device, in_loops=True)
    if policy.config["model"]["memory"] is not None:
        raise ConfigError("model.memory: a custom_model has no memory in jax. Leave out one of the two.")
    obs = jnp.zeros((2, *space.shape), jnp.uint8 if space.dtype == np.uint8 else jnp.float32)
    model = make_custom_model(policy, name_by_keyword=True)  # flax has its modules' names by keyword only
    masked = output_mask(policy, JAX_OPS)
    network = CustomNetwork(model, make_key(policy.seed_of("model")), obs, policy.num_outputs, masked)
    weights = network.initial_weights
    jax.eval_shape(network.forward, weights, obs)  # wrong shapes are reported here rather than in the first iteration
    has_convolutions = any(weight.ndim > 2 for weight in weights.values())
    device = _device(policy, weights, has_convolutions)
    return Made(network, network, weights, device, in_loops=not has_convolutions or device.platform != "cpu")


def _device(policy: LearningPolicy, weights: Weights, gains: bool) -> jax.Device:
    num_weights = sum(weight.size for weight in weights.values())
    kind, index = choose_device(policy.config, num_weights, gains, lambda: len(_gpus()), "JAX")
    return _gpus()[index] if kind == "cuda" else jax.devices("cpu")[0]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.devices() if device.platform == "gpu"]
