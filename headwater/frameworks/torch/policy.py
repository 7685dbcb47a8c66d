"""TorchPolicy: learns with torch; all of a policy but its loss, which `headwater.build_policy` adds.

    batch -> minibatch -> network -> loss -> gradient -> clip -> optimizer -> weights       (headwater.policy.sgd walks)

Weights and gradients are one flat vector each. Dense networks on CPU are differentiated by hand (`mlp.py`), others by
autograd; NumPy acts on the learner's own memory where that is faster (`headwater.frameworks.numpy.policy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from headwater.errors import ConfigError, TrainingError
from headwater.frameworks.numpy.export import write_export
from headwater.frameworks.numpy.networks import NumpyNetwork
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.numpy.policy import ActingPolicy, acts_faster_in_numpy
from headwater.frameworks.numpy.threads import limit_blas_threads
from headwater.frameworks.torch.columns import Columns
from headwater.frameworks.torch.gradients import Differentiate, by_autograd, by_hand, compiled
from headwater.frameworks.torch.mlp import DenseLayers
from headwater.frameworks.torch.model import TorchWeights
from headwater.frameworks.torch.networks import ActingInTorch
from headwater.frameworks.torch.ops import TORCH_OPS, TorchGenerator
from headwater.frameworks.torch.optimizer import FlatOptimizer
from headwater.policy.catalog import ModelCatalog, is_bound
from headwater.policy.policy import Array, Weights
from headwater.policy.sgd import minibatches

# Adam squares gradients: a norm whose square float32 cannot hold is as bad as an infinite one.
MAX_GRADIENT_NORM = 1e18

Stats = dict[str, Any]  # scalars: tensors, or numbers where the host has them already


class TorchPolicy(ActingPolicy):
    """A policy whose network learns in torch.

    Attributes:
        loss: Set by `build_policy`.
        model: The user's own module, else None.
        device: Where the network learns.
    """

    framework = "torch"
    loss: ClassVar[Callable[..., tuple[Tensor, dict[str, Tensor]]]]

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        if torch.get_num_threads() != config["num_threads"]:
            torch.set_num_threads(config["num_threads"])
        limit_blas_threads(config["num_threads"])
        super().__init__(observation_space, action_space, config)
        self.ops = NUMPY_OPS if self._acting_framework() == "numpy" else TORCH_OPS
        self._weights = TorchWeights(observation_space, action_space, self.num_outputs, config, self._stream(0))
        self.model, self.device = self._weights.module, self._weights.device
        self.acting_network = self._choose_acting()
        self._train_dist, _ = ModelCatalog.get_action_dist(
            action_space, config["model"], "torch", config["normalize_actions"]
        )
        self._optimizer = FlatOptimizer(self._weights.flat, config["optimizer"])
        self._differentiate = self._choose_differentiation()
        self._columns = Columns(self.device)
        self._sgd_rng = np.random.default_rng(self._stream(2))
        self._loss_rng = TorchGenerator(self._stream(3) >> 1, self.device)
        # Dropout and the like draw from torch's global generators, which the policy swaps for states of its own.
        self._module_rng = {
            kind: torch.Generator(kind).manual_seed(self._stream(4) >> 1).get_state()
            for kind in {"cpu", self.device.type}
        }
        self._bad_updates_in_a_row = 0
        self._stat_names: tuple[str, ...] = ()
        # The host need not wait for a GPU after each update where the optimizer can skip by itself.
        self._check_late = self.device.type != "cpu" and self._optimizer.can_skip_on_device and not self._weights.extras

    def extra_stats(self) -> Mapping[str, float]:
        """Numbers to report after learning, beside the loss's; set by `build_policy`."""
        return {}

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn_on_batch(self, batch: Any, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0) -> dict[str, float]:
        lr = self.cur_lr
        self._optimizer.set_lr(lr)
        before = self._weights.flat.vector.detach().clone()
        columns = self._columns
        num_rows = columns.load(batch)
        collected: list[Stats] = []
        norms: list[tuple[bool, Any]] = []
        try:
            with self._learning():
                walk = minibatches(
                    columns.names, columns.gather, num_rows, num_sgd_iter, sgd_minibatch_size, self._sgd_rng
                )
                for is_last_epoch, minibatch in walk:
                    stats = self._update(minibatch, report=is_last_epoch)
                    if stats is None:
                        continue
                    if self._check_late:
                        norms.append((is_last_epoch, stats["grad_gnorm"]))
                    if is_last_epoch:
                        collected.append(stats)
            if self._check_late:
                collected = self._count_late(norms, collected)
        except TrainingError:
            self._went_back_to(before)
            raise
        if self._went_back_to(before):
            raise TrainingError(
                f"An update with lr={lr:g} made weights that are not finite; they are again what they were before this "
                "batch. Lower lr, or set grad_clip."
            )
        if not collected:  # all were skipped
            return {**dict.fromkeys(self._stat_names, math.nan), **self._own_stats(lr)}
        return {**_averaged(collected), **self._own_stats(lr)}

    def compute_gradients(self, batch: Any) -> tuple[Weights, dict[str, float]]:
        num_rows = self._columns.load(batch)
        with self._learning():
            walk = minibatches(self._columns.names, self._columns.gather, num_rows, 1, 0, self._sgd_rng)
            _, stats = self._differentiate(next(walk)[1], self.coefficients, True)
        flat = self._weights.flat
        stats = {**stats, "grad_gnorm": torch.linalg.vector_norm(flat.gradient)}
        return flat.copies(flat.gradient), {**_averaged([stats]), **self._own_stats(self.cur_lr)}

    def apply_gradients(self, gradients: Mapping[str, Array]) -> None:
        flat = self._weights.flat
        shapes = {name: np.shape(gradient) for name, gradient in gradients.items()}
        if shapes != flat.shapes:
            raise ConfigError(f"apply_gradients: expected gradients of the shapes {flat.shapes}, but got {shapes}.")
        self._optimizer.set_lr(self.cur_lr)
        flat.write(flat.gradient, gradients)
        self._step(0.0, extras_before=())

    def _update(self, minibatch: Any, report: bool) -> Stats | None:
        """One gradient step; its statistics, all of them with `report`, or None if it was skipped."""
        extras_before = [extra.clone() for extra in self._weights.extras.values()]
        loss, stats = self._differentiate(minibatch, self.coefficients, report)
        if report:
            self._stat_names = (*stats, "grad_gnorm")
        norm = self._step(loss, extras_before)
        return None if norm is None else {**stats, "grad_gnorm": norm}

    def _step(self, loss: Any, extras_before: Any) -> Any:
        """Clip and apply the gradient unless it or the loss is not finite; its norm, or None if it was skipped."""
        gradient, limit = self._weights.flat.gradient, self.config["grad_clip"]
        norm = torch.linalg.vector_norm(gradient)
        if self._check_late:
            bad = ~((norm < MAX_GRADIENT_NORM) & torch.isfinite(torch.as_tensor(loss)))
            if limit is not None:
                gradient.mul_((limit / norm).clamp_max(1.0))
            self._optimizer.skip_if(bad.to(torch.float32))
            self._optimizer.step()
            return torch.where(bad, torch.nan, norm)
        size = norm.item()
        if not (size < MAX_GRADIENT_NORM and math.isfinite(float(loss))):
            for extra, before in zip(self._weights.extras.values(), extras_before, strict=False):
                extra.copy_(before)
            self._count(bad=True)
            return None
        if limit is not None and size > limit:
            gradient.mul_(limit / size)
        self._optimizer.step()
        self._count(bad=False)
        return size

    def _count_late(self, norms: list[tuple[bool, Any]], collected: list[Stats]) -> list[Stats]:
        """Count the updates that the device skipped (their norm is NaN), and drop their statistics."""
        good = torch.isfinite(torch.stack([norm for _, norm in norms])).tolist()
        for is_good in good:
            self._count(bad=not is_good)
        last = [is_good for is_good, (is_last, _) in zip(good, norms, strict=True) if is_last]
        return [stats for stats, is_good in zip(collected, last, strict=True) if is_good]

    def _went_back_to(self, before: Tensor) -> bool:
        """Whether the weights are not finite (a finite gradient times a huge step may be), and now those of before."""
        vector = self._weights.flat.vector.detach()
        if torch.isfinite(vector).all().item():
            return False
        vector.copy_(before)
        return True

    def _count(self, bad: bool) -> None:
        if not bad:
            self._bad_updates_in_a_row = 0
            return
        self.num_bad_updates += 1
        self._bad_updates_in_a_row += 1
        if self._bad_updates_in_a_row >= self.config["max_bad_updates_in_a_row"]:
            raise TrainingError(
                f"{self._bad_updates_in_a_row} updates in a row had a loss or gradient that was not finite (or had a "
                f"norm of {MAX_GRADIENT_NORM:g} and more); they were skipped, and the weights are the last good ones. "
                "Look for extreme rewards or observations (clip_rewards, observation_filter), or lower lr or grad_clip."
            )

    def _loss_of(
        self, dist_inputs: Tensor, values: Tensor, batch: Mapping[str, Tensor], coeffs: Mapping[str, Any], report: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        dist = self._train_dist(dist_inputs, self.model)
        if not dist.exact_entropy or not dist.exact_kl:
            dist.rng = self._loss_rng
        old_dist = self._train_dist(batch["action_dist_inputs"], self.model) if "action_dist_inputs" in batch else None
        return self.loss(TORCH_OPS, dist, old_dist, values, batch, coeffs, self.config, report=report)

    def _own_stats(self, lr: float) -> dict[str, float]:
        coefficients = {
            name if name in self._coefficient_schedules else f"cur_{name}": value
            for name, value in self.coefficients.items()
        }
        return {"cur_lr": lr, **coefficients, "num_bad_updates": self.num_bad_updates, **self.extra_stats()}

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Bad numbers are counted, not warned of; a module is in training mode and draws from the policy's state."""
        if self.model is None:
            with np.errstate(all="ignore"):
                yield
            return
        on_gpu = self.device.type == "cuda"
        self.model.train()
        with torch.random.fork_rng([self.device] if on_gpu else []), np.errstate(all="ignore"):
            torch.set_rng_state(self._module_rng["cpu"])
            if on_gpu:
                torch.cuda.set_rng_state(self._module_rng["cuda"], self.device)
            try:
                yield
            finally:
                self._module_rng["cpu"] = torch.get_rng_state()
                if on_gpu:
                    self._module_rng["cuda"] = torch.cuda.get_rng_state(self.device)
                self.model.eval()

    # -- choices -------------------------------------------------------------------------------------------------------

    def _acting_framework(self) -> str:
        custom = ModelCatalog.get_custom_action_dist(self.config["model"])
        return "torch" if custom is not None and is_bound(custom) and custom.ops is TORCH_OPS else "numpy"

    def _choose_acting(self) -> Any:
        acting, description = self.config["acting"], self._weights.description
        on_cpu = self.device.type == "cpu"
        if acting == "numpy" and (description is None or not on_cpu):
            what = "a custom_model" if description is None else f"device {str(self.device)!r}"
            raise ConfigError(f"acting: 'numpy' is not possible with {what}. Set acting to 'auto' or 'framework'.")
        if acting == "numpy" or (
            acting == "auto" and on_cpu and description is not None and acts_faster_in_numpy(description)
        ):
            assert description is not None
            return NumpyNetwork(description, self._weights.flat.arrays())
        return ActingInTorch(self._weights.network, self.device)

    def _choose_differentiation(self) -> Differentiate:
        weights, description = self._weights, self._weights.description
        if self.config["torch_compile"]:
            return compiled(weights.network, weights.flat, self._loss_of)
        if self.device.type == "cpu" and description is not None and DenseLayers.supports(description):
            detached = weights.flat.split(weights.flat.vector.detach())
            return by_hand(DenseLayers(description, detached, weights.flat.gradients), self._loss_of)
        return by_autograd(weights.network, weights.flat, self._loss_of)

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_weights(self) -> Weights:
        return self._weights.get()

    def set_weights(self, weights: Mapping[str, Array], strict: bool = True) -> list[str]:
        return self._weights.set(weights, strict)

    def get_state(self) -> dict[str, Any]:
        return {
            "weights": self.get_weights(),
            "optimizer": self._optimizer.get_state(),
            "coefficients": dict(self.coefficients),
            "lr": self.cur_lr,
            "global_timestep": self.global_timestep,
            "rows_acted": self._rows_acted,
            "num_bad_updates": self.num_bad_updates,
            "bad_updates_in_a_row": self._bad_updates_in_a_row,
            "rng": {
                "acting": self._acting_rng.get_state(),
                "sgd": self._sgd_rng.bit_generator.state,
                "loss": self._loss_rng.get_state(),
                "module": {kind: state.numpy().copy() for kind, state in self._module_rng.items()},
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.check_state(state["optimizer"])
        self.set_weights(state["weights"])
        self._optimizer.set_state(state["optimizer"])
        self.coefficients.update({name: float(state["coefficients"][name]) for name in self.coefficients})
        self.on_global_var_update({"timestep": state["global_timestep"]})  # scheduled coefficients follow the config
        self._rows_acted = int(state["rows_acted"])
        self.num_bad_updates = int(state["num_bad_updates"])
        self._bad_updates_in_a_row = int(state["bad_updates_in_a_row"])
        rng = state["rng"]
        self._acting_rng.set_state(rng["acting"])
        self._sgd_rng.bit_generator.state = rng["sgd"]
        if rng["loss"]["device"] == self.device.type:  # a generator of another device has other numbers
            self._loss_rng.set_state(rng["loss"])
        for kind in self._module_rng.keys() & rng["module"].keys():
            self._module_rng[kind] = torch.from_numpy(np.array(rng["module"][kind], np.uint8))

    def export_model(self, path: str | Path) -> Path:
        return write_export(
            path,
            self.observation_space,
            self.action_space,
            self.config,
            self._weights.description,
            self.get_weights(),
        )


def _averaged(collected: list[Stats]) -> dict[str, float]:
    """The mean of each statistic over updates, fetched from the device at once."""
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
