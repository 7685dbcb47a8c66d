"""TorchLearner: runs minibatches through network, loss, gradient, clipping and optimizer in torch.

Weights and gradients are one flat vector each. Dense networks on CPU are differentiated by hand (`mlp.py`), others by
autograd; NumPy acts on the learner's own memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwater.frameworks.learning_policy import Learner, LearningPolicy, Outcome
from headwater.frameworks.torch.columns import Columns
from headwater.frameworks.torch.gradients import Differentiate, by_autograd, by_hand, compiled
from headwater.frameworks.torch.mlp import DenseLayers
from headwater.frameworks.torch.model import TorchWeights
from headwater.frameworks.torch.networks import ActingInTorch, ModuleNetwork
from headwater.frameworks.torch.ops import TorchGenerator
from headwater.frameworks.torch.optimizer import FlatOptimizer
from headwater.policy.optimizers import MAX_GRADIENT_NORM
from headwater.policy.policy import Array, Weights
from headwater.policy.sgd import minibatches

Stats = dict[str, Any]  # scalars: tensors, or numbers where the host has them already


class TorchLearner(Learner):
    """The half of a policy that torch computes.

    Args:
        policy: Whose network and loss these are.
    """

    def __init__(self, policy: LearningPolicy) -> None:
        self._config = policy.config
        self._weights = TorchWeights(policy)
        self.model, self.device = self._weights.module, self._weights.device
        if isinstance(self._weights.network, ModuleNetwork):
            self.model_state_shapes = self._weights.network.state_shapes
        self.on_cpu = self.device.type == "cpu"
        self.shapes, self.trained_shapes = self._weights.shapes, self._weights.flat.shapes
        self._optimizer = FlatOptimizer(self._weights.flat, policy.config["optimizer"])
        self._loss_rng = TorchGenerator(policy.seed_of("loss"), self.device)
        self._loss_of = functools.partial(policy.loss_of, rng=self._loss_rng)
        self._differentiate = self._choose_differentiation(policy)
        self._columns = Columns(self.device)
        # Dropout and the like draw from torch's global generators, which the policy swaps for states of its own.
        self._layers_rng = {
            kind: torch.Generator(kind).manual_seed(policy.seed_of("layers")).get_state()
            for kind in {"cpu", self.device.type}
        }
        # The host need not wait for a GPU after each update where the optimizer can skip by itself.
        self._check_late = not self.on_cpu and self._optimizer.can_skip_on_device and not self._weights.extras

    def sgd(
        self,
        batch: Mapping[str, Array],
        orders: NDArray[np.int64],
        bounds: list[tuple[int, int]],
        lr: float,
        coeffs: Mapping[str, float],
    ) -> Outcome:
        self._optimizer.set_lr(lr)
        vector = self._weights.flat.vector.detach()
        before = vector.clone()
        self._columns.load(batch)
        reported: list[Stats] = []
        good: list[Any] = []
        with self._learning():
            for is_last_epoch, minibatch in minibatches(self._columns.names, self._columns.gather, orders, bounds):
                extras = [extra.clone() for extra in self._weights.extras.values()]
                loss, stats = self._differentiate(minibatch, coeffs, is_last_epoch)
                norm, is_good = self._step(loss, extras)
                good.append(is_good)
                if is_last_epoch:
                    reported.append({**stats, "grad_gnorm": norm})
        if self._check_late:
            good = torch.stack(good).tolist()
        last = good[len(good) - len(bounds) :]
        means = _averaged([stats for stats, is_good in zip(reported, last, strict=True) if is_good])
        finite = bool(torch.isfinite(vector).all())
        if not finite:  # a finite gradient times a huge step may do this
            vector.copy_(before)
        return Outcome(means or dict.fromkeys(reported[0], math.nan), np.array(good, bool), finite)

    def gradients(self, batch: Mapping[str, Array], coeffs: Mapping[str, float]) -> tuple[Array, dict[str, float]]:
        rows = self._columns.load(batch)
        with self._learning():
            walk = minibatches(self._columns.names, self._columns.gather, np.arange(rows)[None], [(0, rows)])
            _, stats = self._differentiate(next(walk)[1], coeffs, True)
        gradient = self._weights.flat.gradient
        stats = {**stats, "grad_gnorm": torch.linalg.vector_norm(gradient)}
        return gradient.cpu().numpy().copy(), _averaged([stats])

    def apply(self, gradient: Array, lr: float) -> bool:
        self._optimizer.set_lr(lr)
        self._weights.flat.gradient.copy_(torch.from_numpy(np.asarray(gradient)))
        return bool(self._step(0.0, extras_before=())[1])

    def _step(self, loss: Any, extras_before: Any) -> tuple[Any, Any]:
        """Clip and apply the gradient unless it or the loss is bad: the gradient's norm, and whether all was good."""
        gradient, limit = self._weights.flat.gradient, self._config["grad_clip"]
        norm = torch.linalg.vector_norm(gradient)
        if self._check_late:
            good = (norm < MAX_GRADIENT_NORM) & torch.isfinite(torch.as_tensor(loss))
            if limit is not None:
                gradient.mul_((limit / norm).clamp_max(1.0))
            self._optimizer.skip_if((~good).to(torch.float32))
            self._optimizer.step()
            return norm, good
        size = norm.item()
        if not (size < MAX_GRADIENT_NORM and math.isfinite(float(loss))):
            for extra, before in zip(self._weights.extras.values(), extras_before, strict=False):
                extra.copy_(before)
            return size, False
        if limit is not None and size > limit:
            gradient.mul_(limit / size)
        self._optimizer.step()
        return size, True

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """A module is in training mode and draws from the policy's state."""
        if self.model is None:
            yield
            return
        self.model.train()
        with torch.random.fork_rng([] if self.on_cpu else [self.device]):
            torch.set_rng_state(self._layers_rng["cpu"])
            if not self.on_cpu:
                torch.cuda.set_rng_state(self._layers_rng["cuda"], self.device)
            try:
                yield
            finally:
                self._layers_rng["cpu"] = torch.get_rng_state()
                if not self.on_cpu:
                    self._layers_rng["cuda"] = torch.cuda.get_rng_state(self.device)
                self.model.eval()

    def _choose_differentiation(self, policy: LearningPolicy) -> Differentiate:
        weights, description = self._weights, policy.description
        if self._config["compile"] is True:
            return compiled(weights.network, weights.flat, self._loss_of)
        if self.on_cpu and description is not None and DenseLayers.supports(description):
            detached = weights.flat.split(weights.flat.vector.detach())
            return by_hand(DenseLayers(description, detached, weights.flat.gradients), self._loss_of)
        return by_autograd(weights.network, weights.flat, self._loss_of)

    # -- weights and state ---------------------------------------------------------------------------------------------

    def get_weights(self) -> Weights:
        return self._weights.get()

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self._weights.set(weights)

    def get_optimizer_state(self) -> dict[str, Any]:
        return self._optimizer.get_state()

    def set_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.set_state(state)

    def get_random_state(self) -> dict[str, Any]:
        layers = {kind: state.numpy().copy() for kind, state in self._layers_rng.items()}
        return {"loss": self._loss_rng.get_state(), "layers": layers}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        if state["loss"]["device"] == self.device.type:  # a generator of another device has other numbers
            self._loss_rng.set_state(state["loss"])
        for kind in self._layers_rng.keys() & state["layers"].keys():
            self._layers_rng[kind] = torch.from_numpy(np.array(state["layers"][kind], np.uint8))

    def acting_network(self) -> ActingInTorch:
        return ActingInTorch(self._weights.network, self.device)

    def memory(self) -> Weights | None:
        return self._weights.flat.arrays() if self.on_cpu else None


def _averaged(collected: list[Stats]) -> dict[str, float]:
    """The mean of each statistic over updates, fetched from the device at once; {} of none."""
    if not collected:
        return {}
    names = list(collected[0])
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in collected[0].values()):
        with torch.no_grad():
            rows = [torch.stack([torch.as_tensor(stats[name]) for name in names]) for stats in collected]
            means = torch.stack(rows).mean(0).tolist()
    else:
        means = np.mean([[_number(stats[name]) for name in names] for stats in collected], 0).tolist()
    return dict(zip(names, means, strict=True))


def _number(scalar: Any) -> float:
    return scalar.item() if hasattr(scalar, "item") else float(scalar)
