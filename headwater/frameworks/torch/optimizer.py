"""The optimizer of a flat parameter vector, chosen by `config["optimizer"]`, with a framework-independent state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from headwater.errors import CheckpointError, ConfigError
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.policy.weights import fitting_weights


class FlatOptimizer:
    """One optimizer step over the whole vector.

    Args:
        parameters: What it changes.
        settings: `{"name": "adam", "eps", "beta1", "beta2"}`, `{"name": "sgd", "momentum"}` or
            `{"name": "rmsprop", "alpha", "eps", "momentum"}`; what is not given has torch's default.

    Raises:
        ConfigError: an unknown optimizer or setting.
    """

    def __init__(self, parameters: FlatParameters, settings: Mapping[str, Any]) -> None:
        self._parameters = parameters
        options = {key: settings[key] for key in settings if key != "name"}
        self.name = settings["name"]
        makers: dict[str, Callable[..., torch.optim.Optimizer]]
        makers = {"adam": self._adam, "sgd": self._sgd, "rmsprop": self._rmsprop}
        if self.name not in makers:
            raise ConfigError(f"optimizer.name: must be 'adam', 'sgd' or 'rmsprop', but {self.name!r} came.")
        try:
            self._optimizer = makers[self.name](**options)
        except TypeError as error:
            raise ConfigError(f"optimizer: {self.name} does not take these settings: {error}") from error
        self._group = self._optimizer.param_groups[0]
        self.step = self._optimizer.step

    def set_lr(self, lr: float) -> None:
        """The step size from now on."""
        self._group["lr"] = lr

    @property
    def can_skip_on_device(self) -> bool:
        """Whether `skip_if` works."""
        return self.name == "adam"

    def skip_if(self, bad: torch.Tensor | None) -> None:
        """Let the next step do nothing if the float scalar `bad` is 1, without the host having to know; None: never."""
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.grad_scale = None  # type: ignore[attr-defined]

    def get_state(self) -> dict[str, Any]:
        """`{"name", "step", "moments": {kind: {weight name: array}}}`; before the first step, no moments."""
        step, moments = 0, {}
        for kind, value in self._optimizer.state.get(self._parameters.vector, {}).items():
            if kind == "step":
                step = int(value.item())
            elif value is not None:
                moments[kind] = self._parameters.copies(value)
        return {"name": self.name, "step": step, "moments": moments}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit, before anything is changed.

        Raises:
            CheckpointError: it is another optimizer's, or of other weights.
        """
        if state["name"] != self.name:
            raise CheckpointError(
                f"The state is of the optimizer {state['name']!r}, but this policy has {self.name!r}. "
                "Set optimizer.name as it was, or take only the weights by set_weights."
            )
        for kind, moments in state["moments"].items():
            fitting_weights(moments, self._parameters.shapes, what=f"optimizer's {kind}")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave (see `check_state`)."""
        vector = self._parameters.vector
        self._optimizer.state.clear()
        if not state["moments"] and not state["step"]:
            return
        entry: dict[str, Any] = {"step": torch.tensor(float(state["step"]), device=vector.device)}
        for kind, moments in state["moments"].items():
            entry[kind] = torch.zeros_like(vector, requires_grad=False)
            self._parameters.write(entry[kind], moments)
        self._optimizer.state[vector] = entry

    def _adam(self, eps: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999) -> torch.optim.Optimizer:
        return torch.optim.Adam([self._parameters.vector], eps=eps, betas=(beta1, beta2), fused=True)

    def _sgd(self, momentum: float = 0.0) -> torch.optim.Optimizer:
        return torch.optim.SGD([self._parameters.vector], lr=0.0, momentum=momentum)

    def _rmsprop(self, alpha: float = 0.99, eps: float = 1e-8, momentum: float = 0.0) -> torch.optim.Optimizer:
        return torch.optim.RMSprop([self._parameters.vector], alpha=alpha, eps=eps, momentum=momentum)
