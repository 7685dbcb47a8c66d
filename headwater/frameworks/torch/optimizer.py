"""Optimizers of one flat vector, chosen by `config["optimizer"]`, with a framework-independent state.

They are the formulas of the classes of `torch.optim`, without those: for one vector of ten thousand weights, their
`step` costs four times what the arithmetic does (33 us against 9 us for fused Adam).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from headwater.errors import CheckpointError, ConfigError
from headwater.frameworks.torch.flat_parameters import FlatParameters
from headwater.policy.weights import fitting_weights


class FlatOptimizer(ABC):
    """Moves a vector along its gradient.

    Args:
        parameters: What it changes.

    Attributes:
        lr: The step size.
        steps: float scalar tensor: how many steps were taken.
        moments: Name -> [P] running statistics of the gradient.
    """

    name: ClassVar[str]
    can_skip_on_device: ClassVar[bool] = False
    kinds: tuple[str, ...]

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._vector = parameters.vector.detach()
        self._gradient = parameters.gradient
        self.lr = 0.0
        self.steps = self._vector.new_zeros(())
        self.moments = {kind: torch.zeros_like(self._vector) for kind in self.kinds}

    @abstractmethod
    def step(self, skip: Tensor | None = None) -> None:
        """One step along the gradient that lies in the parameters.

        Args:
            skip: Where `can_skip_on_device`: a float scalar; 1: do nothing, without the host having to know.
        """

    def get_state(self) -> dict[str, Any]:
        """`{"name", "step", "moments": {kind: {weight name: array}}}`."""
        moments = {kind: self._parameters.copies(moment) for kind, moment in self.moments.items()}
        return {"name": self.name, "step": int(self.steps.item()), "moments": moments}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit, before anything is changed.

        Raises:
            CheckpointError: it is another optimizer's, or of other weights.
        """
        if state["name"] != self.name or set(state["moments"]) != set(self.kinds):
            raise CheckpointError(
                f"The state is of the optimizer {state['name']!r} with {sorted(state['moments'])}, but this policy has "
                f"{self.name!r} with {sorted(self.kinds)}. Set optimizer as it was, or take the weights by set_weights."
            )
        for kind, moments in state["moments"].items():
            fitting_weights(moments, self._parameters.shapes, what=f"optimizer's {kind}")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave (see `check_state`)."""
        self.steps.fill_(state["step"])
        for kind, moments in state["moments"].items():
            self._parameters.write(self.moments[kind], moments)


class Adam(FlatOptimizer):
    """Kingma and Ba 2015 (arXiv:1412.6980), by torch's fused kernel."""

    name = "adam"
    can_skip_on_device = True
    kinds = ("exp_avg", "exp_avg_sq")

    def __init__(self, parameters: FlatParameters, eps: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999) -> None:
        super().__init__(parameters)
        self._eps, self._beta1, self._beta2 = eps, beta1, beta2

    def step(self, skip: Tensor | None = None) -> None:
        self.steps += 1
        torch._fused_adam_(
            [self._vector],
            [self._gradient],
            [self.moments["exp_avg"]],
            [self.moments["exp_avg_sq"]],
            [],
            [self.steps],
            lr=self.lr,
            beta1=self._beta1,
            beta2=self._beta2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )
        if skip is not None:
            self.steps -= skip


class SGD(FlatOptimizer):
    """Gradient descent, by setting with momentum (Polyak's: `m <- momentum m + g`)."""

    name = "sgd"

    def __init__(self, parameters: FlatParameters, momentum: float = 0.0) -> None:
        self.kinds = ("momentum_buffer",) if momentum else ()
        super().__init__(parameters)
        self._momentum = momentum

    def step(self, skip: Tensor | None = None) -> None:
        self.steps += 1
        direction = self._gradient
        if self._momentum:
            direction = self.moments["momentum_buffer"].mul_(self._momentum).add_(direction)
        self._vector.add_(direction, alpha=-self.lr)


class RMSprop(FlatOptimizer):
    """Gradients over the root of their running mean square (Tieleman and Hinton 2012), by setting with momentum."""

    name = "rmsprop"

    def __init__(
        self, parameters: FlatParameters, alpha: float = 0.99, eps: float = 1e-8, momentum: float = 0.0
    ) -> None:
        self.kinds = ("square_avg", "momentum_buffer") if momentum else ("square_avg",)
        super().__init__(parameters)
        self._alpha, self._eps, self._momentum = alpha, eps, momentum

    def step(self, skip: Tensor | None = None) -> None:
        self.steps += 1
        square = self.moments["square_avg"]
        square.mul_(self._alpha).addcmul_(self._gradient, self._gradient, value=1.0 - self._alpha)
        root = square.sqrt().add_(self._eps)
        if self._momentum:
            buffer = self.moments["momentum_buffer"].mul_(self._momentum).addcdiv_(self._gradient, root)
            self._vector.add_(buffer, alpha=-self.lr)
        else:
            self._vector.addcdiv_(self._gradient, root, value=-self.lr)


OPTIMIZERS: dict[str, type[FlatOptimizer]] = {cls.name: cls for cls in (Adam, SGD, RMSprop)}


def make_optimizer(parameters: FlatParameters, settings: Mapping[str, Any]) -> FlatOptimizer:
    """The optimizer that settings name, with torch's defaults for what they do not say.

    They are `{"name": "adam", "eps", "beta1", "beta2"}`, `{"name": "sgd", "momentum"}` or `{"name": "rmsprop", "alpha",
    "eps", "momentum"}`.

    Raises:
        ConfigError: an unknown optimizer or setting.
    """
    options = {key: settings[key] for key in settings if key != "name"}
    name = settings["name"]
    if name not in OPTIMIZERS:
        raise ConfigError(f"optimizer.name: must be one of {sorted(OPTIMIZERS)}, but {name!r} came.")
    try:
        return OPTIMIZERS[name](parameters, **options)
    except TypeError as error:
        raise ConfigError(f"optimizer: {name} does not take these settings: {error}") from error
