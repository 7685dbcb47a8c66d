"""torch's fused optimizers of a flat parameter vector, with the state that all frameworks have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.policy.optimizers import optimizer_settings


class FlatOptimizer:
    """One optimizer step over the whole vector.

    Args:
        parameters: What it changes.
        settings: `config["optimizer"]`; see `headwater.policy.optimizers.optimizer_settings`.
    """

    def __init__(self, parameters: FlatParameters, settings: Mapping[str, Any]) -> None:
        self._vector = parameters.vector
        self._name, found = settings["name"], optimizer_settings(settings)
        self._optimizer: torch.optim.Optimizer
        if self._name == "adam":
            betas = (found["beta1"], found["beta2"])
            self._optimizer = torch.optim.Adam([self._vector], eps=found["eps"], betas=betas, fused=True)
        elif self._name == "sgd":
            self._optimizer = torch.optim.SGD([self._vector], momentum=found["momentum"])
        else:
            alpha, eps, momentum = found["alpha"], found["eps"], found["momentum"]
            self._optimizer = torch.optim.RMSprop([self._vector], alpha=alpha, eps=eps, momentum=momentum)
        self._group = self._optimizer.param_groups[0]
        self.step = self._optimizer.step

    def set_lr(self, lr: float) -> None:
        """The step size from now on."""
        self._group["lr"] = lr

    @property
    def can_skip_on_device(self) -> bool:
        """Whether `skip_if` works."""
        return self._name == "adam"

    def skip_if(self, bad: torch.Tensor | None) -> None:
        """Let the next step do nothing if the float scalar `bad` is 1, without the host having to know; None: never."""
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.grad_scale = None  # type: ignore[attr-defined]

    def get_state(self) -> dict[str, Any]:
        """See `Learner.get_optimizer_state`."""
        entry = self._optimizer.state.get(self._vector, {})
        state: dict[str, Any] = {"step": 0}
        for name, value in entry.items():
            if name != "step" and value is not None:
                state[name] = value.detach().cpu().numpy().copy()
            elif name == "step" and self._name == "adam":  # alone reads it
                state["step"] = int(value.item())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `Learner.set_optimizer_state`."""
        entry: dict[str, Any] = {
            name: torch.from_numpy(np.array(value)).to(self._vector.device)
            for name, value in state.items()
            if name != "step"
        }
        if self._name != "sgd":
            entry["step"] = torch.tensor(float(state["step"]), device=self._vector.device)
        self._optimizer.state[self._vector] = entry
