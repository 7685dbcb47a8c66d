"""The networks of a `NetworkDescription` in torch, and models of the user's own.

A network maps observations [B, *observation shape] to `(dist_inputs [B, K], values [B])`. The weights layout is
described in `headwater.policy.network_description`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from headwater.errors import ConfigError
from headwater.policy.network_description import Dense, Layer, NetworkDescription

BLOCK_ROWS = 1024  # values of more observations are computed in blocks: the activations of images take much memory

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "linear": lambda x: x,
}


class TorchNetwork:
    """A described network over given weights.

    Args:
        description: What to compute.
        weights: The description's weights; gradients flow to them.
    """

    def __init__(self, description: NetworkDescription, weights: Mapping[str, Tensor]) -> None:
        self.description = description
        self._weights = weights
        self._order = description.output_order

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, *observation shape] -> ([B, K], [B])."""
        features, scale = self._features(obs)
        return self._dist_inputs(features, scale), self._values(features, scale)

    def dist_inputs(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B, K], without the value network where that is separate."""
        return self._dist_inputs(*self._features(obs))

    def values(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B], without the policy network where that is separate."""
        return self._values(*self._features(obs))

    def _features(self, obs: Tensor) -> tuple[Tensor, float]:
        """The shared layers' output, and what the next layer still has to scale its inputs by."""
        description = self.description
        x = obs.to(torch.float32)
        if len(description.observation_shape) > 1:
            x = x.unsqueeze(-1) if len(description.observation_shape) == 2 else x
            x = x.permute(0, 3, 1, 2)  # channels first in name; in memory they stay last, which is torch's faster way
        x = self._run(description.shared, x, description.scale)
        return x, 1.0 if description.shared else description.scale

    def _dist_inputs(self, features: Tensor, scale: float) -> Tensor:
        outputs = self._run(self.description.policy, features, scale)
        if not self.description.free_columns:
            return outputs
        log_std = self._weights["log_std"].expand(len(outputs), -1)
        columns = torch.cat([outputs, log_std], 1)
        return columns if self._order is None else columns[:, self._order]

    def _values(self, features: Tensor, scale: float) -> Tensor:
        return self._run(self.description.value, features, scale).squeeze(1)

    def _run(self, layers: Sequence[Layer], x: Tensor, scale: float) -> Tensor:
        for layer in layers:
            kernel, bias = self._weights[f"{layer.name}/kernel"], self._weights[f"{layer.name}/bias"]
            if scale != 1.0:
                kernel, scale = kernel * scale, 1.0  # cheaper than scaling the images
            if isinstance(layer, Dense):
                if x.ndim > 2:
                    x = x.permute(0, 2, 3, 1).flatten(1)
                x = torch.addmm(bias, x, kernel)
            else:
                x = functional.conv2d(x, kernel.permute(0, 3, 1, 2), bias, layer.stride)
            x = ACTIVATIONS[layer.activation](x)
        return x


class TorchModel(nn.Module):
    """Base for models of your own whose value function is computed apart, like the 1.x line's.

    Override `forward(obs)`, which returns the distribution's inputs [B, K], and `value_function()`, which returns the
    values [B] of the observations that `forward` saw last. A plain `nn.Module` whose `forward` returns both serves too.

    Example:
        >>> class Linear(TorchModel):
        ...     def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        ...         super().__init__(obs_space, action_space, num_outputs, model_config, name)
        ...         self.policy = nn.Linear(obs_space.shape[0], num_outputs)
        ...         self.value = nn.Linear(obs_space.shape[0], 1)
        ...     def forward(self, obs):
        ...         self._obs = obs
        ...         return self.policy(obs)
        ...     def value_function(self):
        ...         return self.value(self._obs).squeeze(1)
        >>> config = {"model": {"custom_model": Linear}}
    """

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = action_space
        self.num_outputs = num_outputs
        self.model_config = model_config
        self.name = name

    def value_function(self) -> Tensor:
        """[B]: the values of the observations that `forward` saw last."""
        raise NotImplementedError(f"{type(self).__name__} must override value_function()")


class ModuleNetwork:
    """A model of the user's own as a network.

    Args:
        module: Maps [B, *observation shape] to (dist_inputs [B, K], values [B] or [B, 1]), or is a `TorchModel`.
        num_outputs: K.
    """

    def __init__(self, module: nn.Module, num_outputs: int) -> None:
        self.module = module
        self.num_outputs = num_outputs

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, *observation shape] -> ([B, K], [B]).

        Raises:
            ConfigError: the module returns other things or shapes.
        """
        result = self.module(obs)
        name, rows = type(self.module).__name__, len(obs)
        if isinstance(self.module, TorchModel) and isinstance(result, Tensor):
            result = (result, self.module.value_function())
        if not (isinstance(result, tuple | list) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)):
            raise ConfigError(
                f"custom_model {name}: forward(obs) must return (dist_inputs, values), but returned {_shown(result)}. "
                "Derive from headwater.frameworks.torch.networks.TorchModel to give values by value_function()."
            )
        dist_inputs, values = result
        if tuple(dist_inputs.shape) != (rows, self.num_outputs):
            raise ConfigError(
                f"custom_model {name}: for {rows} observations the distribution's inputs must have the shape "
                f"{(rows, self.num_outputs)}, but have {tuple(dist_inputs.shape)}. End with num_outputs outputs."
            )
        if tuple(values.shape) not in ((rows,), (rows, 1)):
            raise ConfigError(
                f"custom_model {name}: for {rows} observations the values must have the shape {(rows,)}, "
                f"but have {tuple(values.shape)}. Return one value for each observation."
            )
        return dist_inputs, values.reshape(rows)

    def dist_inputs(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B, K]."""
        return self.forward(obs)[0]

    def values(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B]."""
        return self.forward(obs)[1]


def _shown(result: Any) -> str:
    if isinstance(result, Tensor):
        return f"one tensor of shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        return f"{len(result)} things ({', '.join(type(part).__name__ for part in result)})"
    return f"a {type(result).__name__}"


class ActingInTorch:
    """A network as acting needs it: NumPy arrays in and out, no gradients, a module in its evaluation mode.

    Args:
        network: What computes.
        device: Where its weights lie.
    """

    def __init__(self, network: TorchNetwork | ModuleNetwork, device: torch.device) -> None:
        self._network = network
        self._device = device

    @torch.inference_mode()
    def dist_inputs(self, obs: NDArray) -> NDArray[np.float32]:
        """[N, *observation shape] -> [N, K]."""
        return self._network.dist_inputs(self._tensor(obs)).cpu().numpy()

    @torch.inference_mode()
    def values(self, obs: NDArray, state: NDArray | None = None) -> NDArray[np.float32]:
        """[N, *observation shape] -> [N]."""
        blocks = [
            self._network.values(self._tensor(obs[start : start + BLOCK_ROWS])).cpu().numpy()
            for start in range(0, len(obs), BLOCK_ROWS)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    @torch.inference_mode()
    def forward(
        self, obs: NDArray, state: NDArray | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None]:
        """[N, *observation shape] -> ([N, K], [N], None)."""
        dist_inputs, values = self._network.forward(self._tensor(obs))
        return dist_inputs.cpu().numpy(), values.cpu().numpy(), None

    def _tensor(self, obs: NDArray) -> Tensor:
        obs = np.ascontiguousarray(obs, np.uint8 if obs.dtype == np.uint8 else np.float32)
        return torch.from_numpy(obs if obs.flags.writeable else obs.copy()).to(self._device)
