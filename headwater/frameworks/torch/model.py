"""TorchWeights: a policy's network in torch with its weights laid into one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.frameworks.learning_policy import LearningPolicy
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.frameworks.torch.networks import ModuleNetwork, TorchNetwork
from headwater.frameworks.torch.ops import TORCH_OPS
from headwater.policy.custom_models import make_custom_model, output_mask
from headwater.policy.device import choose_device

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class TorchWeights:
    """The network of a policy, on a device.

    Args:
        policy: Whose network it is: described, or the user's own model.

    Attributes:
        network: Maps observations to distribution inputs and values.
        module: The user's own model; else None.
        flat: The trained weights.
        extras: Name -> what is part of the weights but not trained: a model's buffers and frozen parameters.
        device: Where all of it lies.
    """

    def __init__(self, policy: LearningPolicy) -> None:
        self.module: nn.Module | None = None
        self.extras: dict[str, Tensor] = {}
        self.network: TorchNetwork | ModuleNetwork
        description = policy.description
        if description is not None:
            num_weights = sum(math.prod(shape) for shape in description.weight_shapes().values())
            self.device = _device(policy, num_weights, not description.is_mlp)
            self.flat = FlatParameters(policy.initial_weights(), self.device)
            self.network = TorchNetwork(description, self.flat.leaves)
        else:
            self.module = _make_module(policy)
            has_convolutions = any(isinstance(part, _CONVOLUTIONS) for part in self.module.modules())
            num_weights = sum(parameter.numel() for parameter in self.module.parameters())
            self.device = _device(policy, num_weights, has_convolutions)
            self._flatten_module(self.module.to(self.device))
            self.network = ModuleNetwork(self.module, policy.num_outputs, output_mask(policy, TORCH_OPS))
            with torch.no_grad():
                obs_space = policy.observation_space
                sample = torch.zeros((2, *obs_space.shape), dtype=_dtype(obs_space), device=self.device)
                # Wrong shapes are reported here rather than in the first iteration.
                if self.network.state_shapes:
                    size = sum(math.prod(shape) for shape in self.network.state_shapes.values())
                    self.network.forward(torch.stack([sample] * 3, 1), torch.zeros((2, size), device=self.device))
                else:
                    self.network.forward(sample)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all weights."""
        return {**self.flat.shapes, **{name: tuple(extra.shape) for name, extra in self.extras.items()}}

    def get(self) -> dict[str, NDArray[Any]]:
        """Copies of all weights by name."""
        return {
            **self.flat.copies(self.flat.vector),
            **{name: extra.detach().cpu().numpy().copy() for name, extra in self.extras.items()},
        }

    def set(self, weights: Mapping[str, Any]) -> None:
        """Replace some of the weights by arrays that fit."""
        self.flat.write(self.flat.vector, {name: weights[name] for name in weights if name in self.flat.shapes})
        with torch.no_grad():
            for name, extra in self.extras.items():
                if name in weights:
                    extra.copy_(torch.from_numpy(np.array(weights[name])))

    def _flatten_module(self, module: nn.Module) -> None:
        """Make the module's trained parameters views of the flat vector, under names like `model/encoder/0/weight`."""
        trained, names = {}, {}
        for name, parameter in module.named_parameters():
            name = "model/" + name.replace(".", "/")
            if parameter.requires_grad:
                names[name] = parameter
                trained[name] = parameter.detach().cpu().numpy()
            else:
                self.extras[name] = parameter.detach()
        for name, buffer in module.named_buffers():
            self.extras["model/" + name.replace(".", "/")] = buffer
        if not trained:
            raise ConfigError(f"custom_model {type(module).__name__} has no parameters that can be trained.")
        self.flat = FlatParameters(trained, self.device)
        for name, view in self.flat.split(self.flat.vector.detach()).items():
            names[name].data = view
            names[name].grad = self.flat.gradients[name]


def _device(policy: LearningPolicy, num_weights: int, has_convolutions: bool) -> torch.device:
    kind, index = choose_device(policy.config, num_weights, has_convolutions, torch.cuda.device_count, "torch")
    return torch.device(kind, index) if kind == "cuda" else torch.device(kind)


def _make_module(policy: LearningPolicy) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(policy.seed_of("model"))
        module = make_custom_model(policy, may_remember=True)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"custom_model: it must be a torch.nn.Module, but the class made a {type(module).__name__}. "
            "Derive it from torch.nn.Module or headwater.frameworks.torch.networks.TorchModel."
        )
    return module.float().eval()


def _dtype(obs_space: spaces.Box) -> torch.dtype:
    return torch.uint8 if obs_space.dtype == np.uint8 else torch.float32
