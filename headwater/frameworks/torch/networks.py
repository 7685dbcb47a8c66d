"""The networks of a `NetworkDescription` in torch, and models of the user's own.

A network maps observations [B, *observation shape], with memory sequences and the state before them, to `(dist_inputs
[B, K], values [B], state)`; see `headwater.policy.network`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headwater.errors import ConfigError
from headwater.frameworks.torch.ops import TORCH_OPS
from headwater.policy.custom_models import check_outputs
from headwater.policy.network import Network
from headwater.policy.network_description import NetworkDescription

BLOCK_ROWS = 1024  # values of more observations are computed in blocks: the activations of images take much memory


class TorchNetwork:
    """A described network over given weights.

    Args:
        description: What to compute.
        weights: The description's weights; gradients flow to them.
    """

    def __init__(self, description: NetworkDescription, weights: Mapping[str, Tensor]) -> None:
        self._network = Network(description, TORCH_OPS)
        self._weights = weights

    def forward(
        self, obs: Tensor, state: Tensor | None = None, mask: Tensor | None = None, keep_state: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Network.forward`; the state after the last step only with `keep_state`."""
        return self._network.forward(self._weights, obs, state, mask, keep_state)

    def dist_inputs(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B, K], without the value network where that is separate."""
        return self._network.dist_inputs(self._weights, obs)

    def values(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B], without the policy network where that is separate."""
        return self._network.values(self._weights, obs)


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

    With a method `initial_state()`, which returns the parts of a state as arrays of zeros, it has memory. It then maps
    sequences [M, L, *observation shape] and a list of the parts before them, [M, *part shape] each, to (dist_inputs
    [M, L, K], values [M, L] or [M, L, 1], the parts after them). Rows of padding, at the end of sequences, are zeros.

    Args:
        module: Maps [B, *observation shape] to (dist_inputs [B, K], values [B] or [B, 1]), or is a `TorchModel`, or has
            memory.
        num_outputs: K.
        masked: Forbids outputs by what the observations say; see `output_mask`.

    Attributes:
        state_shapes: Name -> shape of each part of a state; {} without memory.

    Raises:
        ConfigError: `initial_state()` returns something else.
    """

    def __init__(self, module: nn.Module, num_outputs: int, masked: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.module = module
        self.num_outputs = num_outputs
        self.state_shapes = _state_shapes(module)
        self._masked = masked
        self._name = type(module).__name__

    def forward(
        self, obs: Tensor, state: Tensor | None = None, mask: Tensor | None = None, keep_state: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B, *observation shape] -> ([B, K], [B], None); with memory see `Network.forward`.

        The state afterwards, [M, S], is that after the last row, be it padding.

        Raises:
            ConfigError: the module returns other things or shapes.
        """
        if state is None:
            rows, result = obs.shape[:1], self.module(obs)
            if isinstance(self.module, TorchModel) and isinstance(result, Tensor):
                result = (result, self.module.value_function())
            hint = "Derive from headwater.frameworks.torch.networks.TorchModel to give values by value_function()."
        else:
            rows = obs.shape[:2]
            if mask is not None:
                obs = obs.masked_fill(~mask.reshape(*rows, *(1,) * (obs.ndim - 2)), 0)
            *result, parts = self._run(obs, state)
            state = torch.cat([part.reshape(len(part), -1) for part in parts], 1) if keep_state else None
            obs, hint = obs.flatten(0, 1), "With memory it must return the state as a third."
        dist_inputs, values = check_outputs(self._name, result, tuple(rows), self.num_outputs, torch.is_tensor, hint)
        return self._masked(obs, dist_inputs.reshape(-1, self.num_outputs)), values.reshape(-1), state

    def _run(self, obs: Tensor, state: Tensor) -> tuple[Any, ...]:
        """What the module returns for sequences; the state's parts, which come last, are as they must be."""
        shapes = [(len(state), *shape) for shape in self.state_shapes.values()]
        parts = torch.split(state, [math.prod(shape) for shape in self.state_shapes.values()], 1)
        result = self.module(obs, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
        if not (isinstance(result, tuple | list) and len(result) == 3 and isinstance(result[2], tuple | list)):
            returned = f"{len(result)} things" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
            raise ConfigError(
                f"custom_model {self._name}: it has an initial_state(), so it must return (dist_inputs, values, [the "
                f"state's parts]), but returned {returned}. Return all three, or leave initial_state out."
            )
        found = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in result[2]]
        if found != shapes:
            raise ConfigError(
                f"custom_model {self._name}: the state's parts must have the shapes {shapes}, as initial_state() says, "
                f"but are {found}. Return one row for each sequence."
            )
        return tuple(result)

    def dist_inputs(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B, K]."""
        return self.forward(obs)[0]

    def values(self, obs: Tensor) -> Tensor:
        """[B, *observation shape] -> [B]."""
        return self.forward(obs)[1]


def _state_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    initial_state: Any = getattr(module, "initial_state", None)
    if initial_state is None:
        return {}
    parts = initial_state()
    if not isinstance(parts, tuple | list) or any(torch.as_tensor(part).any() for part in parts):
        raise ConfigError(
            f"custom_model {type(module).__name__}: initial_state() must return a list of arrays of zeros, one for "
            f"each part of a state, but returned {parts!r}. What else an episode should begin with, add in forward."
        )
    return {f"model/state_{index}": tuple(np.shape(part)) for index, part in enumerate(parts)}


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
        """[N, *observation shape], with memory the state before them [N, S] -> [N]."""
        if state is not None:
            return self.forward(obs, state)[1]
        blocks = [
            self._network.values(self._tensor(obs[start : start + BLOCK_ROWS])).cpu().numpy()
            for start in range(0, len(obs), BLOCK_ROWS)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    @torch.inference_mode()
    def forward(
        self, obs: NDArray, state: NDArray | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None]:
        """Both, and with memory the state after them [N, S]."""
        if state is None:
            dist_inputs, values, _ = self._network.forward(self._tensor(obs))
            return dist_inputs.cpu().numpy(), values.cpu().numpy(), None
        dist_inputs, values, after = self._network.forward(self._tensor(obs[:, None]), self._tensor(state), None, True)
        assert after is not None
        return dist_inputs.cpu().numpy(), values.cpu().numpy(), after.cpu().numpy()

    def _tensor(self, obs: NDArray) -> Tensor:
        obs = np.ascontiguousarray(obs, np.uint8 if obs.dtype == np.uint8 else np.float32)
        return torch.from_numpy(obs if obs.flags.writeable else obs.copy()).to(self._device)
