"""LearningPolicy: all of a policy that learns but what a framework computes, which is its `Learner`.

    batch -> minibatch -> network -> loss -> gradient -> clip -> optimizer -> weights       (headwater.policy.sgd walks)

The learner runs that line; here are the schedules, the counting of bad updates, weights and state by names that are
the same in every framework, and who acts: NumPy where that is faster (`headwater.frameworks.numpy.policy`), reading the
learner's own memory where it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.errors import CheckpointError, ConfigError, TrainingError
from headwater.frameworks.numpy.export import write_export
from headwater.frameworks.numpy.networks import make_network
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.numpy.policy import ActingNetwork, ActingPolicy, acts_faster_in_numpy
from headwater.frameworks.numpy.threads import limit_blas_threads
from headwater.frameworks.ops import Ops
from headwater.policy.catalog import ModelCatalog, is_bound
from headwater.policy.network_description import NetworkDescription
from headwater.policy.optimizers import MAX_GRADIENT_NORM, make_optimizer
from headwater.policy.policy import Array, Weights
from headwater.policy.sgd import epoch_orders, minibatch_bounds, missing_column, numeric_columns
from headwater.policy.weights import by_name, fitting_weights, flattened


class Outcome(NamedTuple):
    """What an SGD phase came to."""

    stats: dict[str, float]  # the loss's and "grad_gnorm": means over the last epoch's good updates, NaN without any
    good: NDArray[np.bool_]  # [updates], in order: False where one was skipped
    finite: bool  # False: the weights did not stay finite, and are again what they were before


class Learner(ABC):
    """A network, its gradient and its optimizer in one framework: what `LearningPolicy` needs of it.

    The trained weights are one flat vector of P numbers, in the order of `trained_shapes`.

    Attributes:
        shapes: Name -> shape of all weights.
        trained_shapes: Of those that are trained; the others are buffers and frozen parameters of a custom model.
        device: Where it learns, for messages.
        on_cpu: Whether its weights lie in main memory.
        model: The user's own model, given to distributions; else None.
        model_state_shapes: Name -> shape of each part of what that model remembers.
    """

    shapes: Mapping[str, tuple[int, ...]]
    trained_shapes: Mapping[str, tuple[int, ...]]
    device: Any
    on_cpu: bool
    model: Any = None
    model_state_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    @abstractmethod
    def sgd(
        self,
        batch: Mapping[str, Array],
        orders: NDArray[np.int64],
        bounds: list[tuple[int, int]],
        lr: float,
        coeffs: Mapping[str, float],
    ) -> Outcome:
        """Gradient steps on minibatches, skipping bad ones: those whose loss is not finite, or whose gradient's norm is
        not below `MAX_GRADIENT_NORM` (`headwater.policy.optimizers.guarded_step`).

        Args:
            batch: Numbers and booleans by column, [B, ...] or in sequences [M, L, ...], of any dtype
                (`headwater.policy.sgd.learnable` converts).
            orders: [epochs, rows]: the rows in the order of each epoch.
            bounds: Start and stop, in that order, of each minibatch of an epoch.
            lr: Step size.
            coeffs: What the loss finds in `coeffs`.
        """

    @abstractmethod
    def gradients(self, batch: Mapping[str, Array], coeffs: Mapping[str, float]) -> tuple[Array, dict[str, float]]:
        """The loss's gradient over the whole batch, [P], not clipped, and the statistics with "grad_gnorm"."""

    @abstractmethod
    def apply(self, gradient: Array, lr: float) -> bool:
        """One clipped optimizer step along a gradient [P]; False: it was bad, and nothing changed."""

    @abstractmethod
    def get_weights(self) -> Weights:
        """Copies of all weights by name."""

    @abstractmethod
    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace some weights by arrays that fit."""

    @abstractmethod
    def get_optimizer_state(self) -> dict[str, Any]:
        """The steps taken as "step" (0 where the rule does not count) and each moment that there is yet, [P]."""

    @abstractmethod
    def set_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Continue from "step" and all of the optimizer's moments."""

    @abstractmethod
    def get_random_state(self) -> dict[str, Any]:
        """The state of the framework's generators (of losses and custom models), as arrays and JSON values."""

    @abstractmethod
    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_random_state` gave in this framework."""

    @abstractmethod
    def acting_network(self) -> ActingNetwork:
        """The network in this framework as acting needs it, always with the present weights."""

    def memory(self) -> Weights | None:
        """The weights' own memory by name; None: NumPy cannot see it, so that acting needs copies."""
        return None


class LearningPolicy(ActingPolicy):
    """A policy that learns in some framework; `headwater.build_policy` adds the loss.

    Subclasses set `framework` and `learning_ops`, and make the learner.

    Attributes:
        loss: Set by `build_policy`.
        learner: What computes.
        description: The network; None for a model of the user's own.
        model: That model, else None.
    """

    loss: ClassVar[Callable[..., tuple[Any, dict[str, Any]]]]
    learning_ops: ClassVar[Ops]

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Mapping[str, Any]) -> None:
        limit_blas_threads(config["num_threads"])
        super().__init__(observation_space, action_space, config)
        self.ops = NUMPY_OPS if self._acting_framework() == "numpy" else self.learning_ops
        self.description = self._describe()
        self._train_dist, _ = ModelCatalog.get_action_dist(
            action_space, config["model"], self.framework, config["normalize_actions"]
        )
        self._optimizer = make_optimizer(config["optimizer"])
        self._sgd_rng = np.random.default_rng(self._stream(2))
        self._bad_updates_in_a_row = 0
        self.learner = self.make_learner()
        self.model = self.learner.model
        self._acting_copies: Weights = {}
        self.acting_network = self._choose_acting()

    @abstractmethod
    def make_learner(self) -> Learner:
        """The framework's half, with fresh weights.

        It finds `description`, `num_outputs`, `config` and the spaces here, `initial_weights()` for described networks,
        `seed_of(...)` for its own randomness, and calls `loss_of`.
        """

    def initial_weights(self) -> Weights:
        """Fresh weights of the described network, the same in every framework."""
        assert self.description is not None
        return self.description.initial_weights(np.random.default_rng(self._stream(0)))

    def seed_of(self, purpose: str) -> int:
        """A seed below 2**63 for what a learner draws: "model" (a custom one's weights), "loss", "layers" (dropout)."""
        return self._stream({"model": 0, "loss": 3, "layers": 4}[purpose]) >> 1

    def loss_of(
        self,
        dist_inputs: Any,
        values: Any,
        batch: Mapping[str, Any],
        coeffs: Mapping[str, Any],
        report: bool = True,
        rng: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The loss of B rows, given the network's outputs for them.

        Args:
            dist_inputs: [B, K], with gradients.
            values: [B], with gradients.
            batch: The rows' columns (see `headwater.policy.sgd.outputs_and_rows`).
            coeffs: The loss's coefficients; numbers, or the framework's scalars.
            report: Whether the statistics are wanted.
            rng: For distributions whose entropy or KL is estimated by sampling.

        Returns:
            A scalar, and {name: scalar}, which may be empty without `report`.
        """
        dist = self._train_dist(dist_inputs, self.model)
        if not dist.exact_entropy or not dist.exact_kl:
            dist.rng = rng
        old_dist = None
        if SampleBatch.ACTION_DIST_INPUTS in batch:
            old_dist = self._train_dist(batch[SampleBatch.ACTION_DIST_INPUTS], self.model)
        return self.loss(self.learning_ops, dist, old_dist, values, batch, coeffs, self.config, report=report)

    def extra_stats(self) -> Mapping[str, float]:
        """Numbers to report after learning, beside the loss's; set by `build_policy`."""
        return {}

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn_on_batch(self, batch: Any, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0) -> dict[str, float]:
        columns = self._columns(batch)
        rows, steps = len(columns[SampleBatch.OBS]), None
        if SampleBatch.STATE_IN in columns:
            steps = int(np.count_nonzero(columns[SampleBatch.MASK]))
        bounds = minibatch_bounds(rows, sgd_minibatch_size, steps)
        orders = epoch_orders(rows, num_sgd_iter, len(bounds), self._sgd_rng)
        lr = self.cur_lr
        try:
            # Bad numbers are counted, not warned of.
            with np.errstate(all="ignore"):
                outcome = self.learner.sgd(columns, orders, bounds, lr, self.coefficients)
        finally:
            self._renew_copies()
        for good in outcome.good.tolist():
            self._count(good)
        if not outcome.finite:
            raise TrainingError(
                f"An update with lr={lr:g} made weights that are not finite; they are again what they were before this "
                "batch. Lower lr, or set grad_clip."
            )
        return {**outcome.stats, **self._own_stats(lr)}

    def compute_gradients(self, batch: Any) -> tuple[Weights, dict[str, float]]:
        with np.errstate(all="ignore"):
            gradient, stats = self.learner.gradients(self._columns(batch), self.coefficients)
        return by_name(NUMPY_OPS, gradient, self.learner.trained_shapes), {**stats, **self._own_stats(self.cur_lr)}

    def apply_gradients(self, gradients: Mapping[str, Array]) -> None:
        expected = dict(self.learner.trained_shapes)
        shapes = {name: np.shape(gradient) for name, gradient in gradients.items()}
        if shapes != expected:
            raise ConfigError(f"apply_gradients: expected gradients of the shapes {expected}, but got {shapes}.")
        good = self.learner.apply(flattened(gradients, expected), self.cur_lr)
        self._renew_copies()
        self._count(good)

    def _columns(self, batch: Any) -> dict[str, Array]:
        columns = numeric_columns(batch)
        needed = [SampleBatch.OBS]
        if self.state_size:
            needed += [SampleBatch.STATE_IN, SampleBatch.MASK]
        for name in needed:
            if name not in columns:
                raise KeyError(missing_column(name, frozenset(columns)))
        return columns

    def _count(self, good: bool) -> None:
        if good:
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

    def _own_stats(self, lr: float) -> dict[str, float]:
        coefficients = {
            name if name in self._coefficient_schedules else f"cur_{name}": value
            for name, value in self.coefficients.items()
        }
        return {"cur_lr": lr, **coefficients, "num_bad_updates": self.num_bad_updates, **self.extra_stats()}

    # -- acting --------------------------------------------------------------------------------------------------------

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.learner.model_state_shapes if self.description is None else super().state_shapes

    def _describe(self) -> NetworkDescription | None:
        model_config = self.config["model"]
        if ModelCatalog.get_custom_model(model_config) is not None:
            return None
        free = ModelCatalog.get_free_columns(self.action_space, model_config)
        masked = ModelCatalog.get_mask_columns(self.observation_space, self.action_space, model_config)
        return ModelCatalog.get_network(self.observation_space, self.num_outputs, model_config, free, masked)

    def _acting_framework(self) -> str:
        custom = ModelCatalog.get_custom_action_dist(self.config["model"])
        bound_to_it = custom is not None and is_bound(custom) and custom.ops is self.learning_ops
        return self.framework if bound_to_it else "numpy"

    def _choose_acting(self) -> ActingNetwork:
        acting, description, learner = self.config["acting"], self.description, self.learner
        if acting == "numpy" and (description is None or not learner.on_cpu):
            what = "a custom_model" if description is None else f"device {str(learner.device)!r}"
            raise ConfigError(f"acting: 'numpy' is not possible with {what}. Set acting to 'auto' or 'framework'.")
        if description is None or acting == "framework" or not learner.on_cpu:
            return learner.acting_network()
        if acting == "auto" and not acts_faster_in_numpy(description):
            return learner.acting_network()
        memory = learner.memory()
        if memory is None:
            memory = self._acting_copies = learner.get_weights()
        return make_network(description, memory)

    def _renew_copies(self) -> None:
        """Let NumPy act with the weights of now, where it does not see the learner's memory."""
        if self._acting_copies:
            for name, weight in self.learner.get_weights().items():
                self._acting_copies[name][...] = weight

    # -- state ---------------------------------------------------------------------------------------------------------

    def get_weights(self) -> Weights:
        return self.learner.get_weights()

    def set_weights(self, weights: Mapping[str, Array], strict: bool = True) -> list[str]:
        fitting, mismatches = fitting_weights(weights, self.learner.shapes, strict)
        self.learner.set_weights(fitting)
        self._renew_copies()
        return mismatches

    def get_state(self) -> dict[str, Any]:
        """See `Policy.get_state`. It is the same in every framework but for the framework's own generators under "rng".

        A policy of another framework goes on from it, with its own generators as they are.
        """
        return {
            "weights": self.get_weights(),
            "optimizer": self._get_optimizer_state(),
            "coefficients": dict(self.coefficients),
            "lr": self.cur_lr,
            "global_timestep": self.global_timestep,
            "rows_acted": self._rows_acted,
            "num_bad_updates": self.num_bad_updates,
            "bad_updates_in_a_row": self._bad_updates_in_a_row,
            "rng": {
                "acting": self._acting_rng.get_state(),
                "sgd": self._sgd_rng.bit_generator.state,
                self.framework: self.learner.get_random_state(),
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        optimizer = self._fitting_optimizer_state(state["optimizer"])
        self.set_weights(state["weights"])
        self.learner.set_optimizer_state(optimizer)
        self.coefficients.update({name: float(state["coefficients"][name]) for name in self.coefficients})
        self.on_global_var_update({"timestep": state["global_timestep"]})  # scheduled coefficients follow the config
        self._rows_acted = int(state["rows_acted"])
        self.num_bad_updates = int(state["num_bad_updates"])
        self._bad_updates_in_a_row = int(state["bad_updates_in_a_row"])
        rng = state["rng"]
        self._acting_rng.set_state(rng["acting"])
        self._sgd_rng.bit_generator.state = rng["sgd"]
        if self.framework in rng:  # another framework's generators have other numbers
            self.learner.set_random_state(rng[self.framework])

    def _get_optimizer_state(self) -> dict[str, Any]:
        """`{"name", "step", "moments": {moment: {weight name: array}}}`."""
        state, shapes = self.learner.get_optimizer_state(), self.learner.trained_shapes
        return {
            "name": self.config["optimizer"]["name"],
            "step": int(state["step"]),
            "moments": {
                moment: by_name(NUMPY_OPS, np.array(state[moment], np.float32), shapes)
                for moment in self._optimizer.moments
                if moment in state
            },
        }

    def _fitting_optimizer_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A saved state for the learner, checked before anything is changed; moments that were not kept start at 0.

        Raises:
            CheckpointError: it is another optimizer's, or of other weights.
        """
        name, shapes = self.config["optimizer"]["name"], self.learner.trained_shapes
        if state["name"] != name:
            raise CheckpointError(
                f"The state is of the optimizer {state['name']!r}, but this policy has {name!r}. "
                "Set optimizer.name as it was, or take only the weights by set_weights."
            )
        found: dict[str, Any] = {"step": int(state["step"])}
        for moment in self._optimizer.moments:
            if moment in state["moments"]:
                fitting, _ = fitting_weights(state["moments"][moment], shapes, what=f"optimizer's {moment}")
                found[moment] = flattened(fitting, shapes)
            else:
                found[moment] = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()), np.float32)
        return found

    def export_model(self, path: str | Path) -> Path:
        return write_export(
            path, self.observation_space, self.action_space, self.config, self.description, self.get_weights()
        )
