"""JaxLearner: network, loss, gradient, clipping and optimizer in JAX, a whole SGD phase as one compiled call (`Phase`).

The weights are one flat vector, cut into its named parts where code is compiled. Whatever changes from batch to batch
comes in as numbers and arrays of few sizes, so that nothing compiles again: see `headwater.frameworks.jax.plan`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.frameworks.jax.generator import JaxGenerator, make_key
from headwater.frameworks.jax.model import make_network
from headwater.frameworks.jax.networks import ActingInJax
from headwater.frameworks.jax.ops import JAX_OPS
from headwater.frameworks.jax.phase import Columns, Inputs, Numbers, Phase, Variant, rows_of
from headwater.frameworks.jax.plan import Filling, Planner
from headwater.frameworks.learning_policy import Learner, LearningPolicy, Outcome
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy.optimizers import Adam, Step, guarded_step, make_optimizer
from headwater.policy.policy import Array, Weights
from headwater.policy.sgd import missing_column, outputs_and_rows
from headwater.policy.weights import by_name, flattened


class JaxLearner(Learner):
    """The half of a policy that JAX computes.

    Args:
        policy: Whose network and loss these are.
    """

    def __init__(self, policy: LearningPolicy) -> None:
        made = make_network(policy)
        self._network, self._acting, weights, self.device = made.learning, made.acting, made.weights, made.device
        self.model = getattr(self._network, "model", None)
        self.on_cpu = self.device.platform == "cpu"
        self.shapes = self.trained_shapes = {name: weight.shape for name, weight in weights.items()}
        self._loss_of = policy.loss_of
        self._grad_clip = policy.config["grad_clip"]
        self._compiles = policy.config["compile"] is not False
        self._optimizer = make_optimizer(policy.config["optimizer"])
        self._vector = self._placed(flattened(weights, self.shapes))
        self._host: NDArray[np.float32] | None = None  # the weights where NumPy reads them
        zeros = np.zeros(self._vector.shape, np.float32)
        self._state = self._placed({"step": np.float32(0), **dict.fromkeys(self._optimizer.moments, zeros)})
        self._rng = JaxGenerator(self._placed(make_key(policy.seed_of("loss"))))
        self._planner = Planner()
        self._reads_mask: bool | None = None
        self._phase = Phase(self._update, in_one_call=made.in_loops)
        self._gradient = jax.jit(self._gradient_of_all, static_argnames="variant")
        self._apply = jax.jit(self._step, donate_argnums=(0, 1))

    # -- one call from the host each -----------------------------------------------------------------------------------

    def sgd(
        self,
        batch: Mapping[str, Array],
        orders: NDArray[np.int64],
        bounds: list[tuple[int, int]],
        lr: float,
        coeffs: Mapping[str, float],
    ) -> Outcome:
        plan = self._planner.plan(batch, orders, bounds, lambda: self._masks_rows(batch, coeffs))
        numbers, zeros = _split_zeros(coeffs)
        inputs = Inputs(
            plan.columns, plan.places, plan.sizes, np.int32(plan.num_updates), np.int32(len(bounds)), np.float32(lr),
            numbers,
        )  # fmt: skip
        variant = Variant(zeros, plan.filling)
        result = self._call(self._phase.run, self._vector, self._state, self._rng.key, inputs, variant=variant)
        self._vector, self._state, self._rng.key = result.vector, result.state, result.key
        self._renew_host()
        return Outcome(_floats(result.means), np.asarray(result.good)[: plan.num_updates], bool(result.finite))

    def gradients(self, batch: Mapping[str, Array], coeffs: Mapping[str, float]) -> tuple[Array, dict[str, float]]:
        plan = self._planner.whole(batch, lambda: self._masks_rows(batch, coeffs))
        numbers, zeros = _split_zeros(coeffs)
        gradient, stats, self._rng.key = self._call(
            self._gradient, self._vector, self._rng.key, plan.columns, plan.sizes, numbers,
            variant=Variant(zeros, plan.filling),
        )  # fmt: skip
        return np.array(gradient), _floats(stats)

    def apply(self, gradient: Array, lr: float) -> bool:
        step = self._call(self._apply, self._vector, self._state, np.asarray(gradient), np.float32(0), np.float32(lr))
        self._vector, self._state = step.weights, step.state
        self._renew_host()
        return bool(step.good)

    def _call(self, function: Callable[..., Any], *arguments: Any, **static: Any) -> Any:
        if self._compiles:
            return function(*arguments, **static)
        with jax.disable_jit():
            return function(*self._placed(arguments), **static)

    # -- what is compiled ----------------------------------------------------------------------------------------------

    def _update(
        self, vector: jax.Array, state: Numbers, key: jax.Array, rows: Columns, lr: jax.Array, numbers: Numbers,
        zeros: tuple[str, ...],
    ) -> tuple[Step, Numbers]:  # fmt: skip
        gradient, loss, stats = self._differentiate(vector, key, rows, numbers, zeros)
        step = self._step(vector, state, gradient, loss, lr)
        return step, {**stats, "grad_gnorm": step.norm}

    def _gradient_of_all(
        self, vector: jax.Array, key: jax.Array, columns: Columns, size: jax.Array, numbers: Numbers, *,
        variant: Variant,
    ) -> tuple[jax.Array, Numbers, jax.Array]:  # fmt: skip
        key, own = jax.random.split(key)
        rows = rows_of(columns, None, size if variant.filling is Filling.MASKED else None)
        gradient, _, stats = self._differentiate(vector, own, rows, numbers, variant.zeros)
        return gradient, {**stats, "grad_gnorm": jnp.linalg.norm(gradient)}, key

    def _differentiate(
        self, vector: jax.Array, key: jax.Array, rows: Columns, numbers: Numbers, zeros: tuple[str, ...]
    ) -> tuple[jax.Array, jax.Array, Numbers]:
        """The gradient [P], the loss, and its statistics."""
        coeffs, watched = {**numbers, **dict.fromkeys(zeros, 0.0)}, _Rows(rows)

        def loss_of(vector: jax.Array) -> tuple[jax.Array, Numbers]:
            forward = functools.partial(self._network.forward, by_name(JAX_OPS, vector, self.shapes), keep_state=False)
            outputs = outputs_and_rows(JAX_OPS, forward, watched)
            loss, stats = self._loss_of(*outputs, coeffs, True, JaxGenerator(key))
            return loss, {name: jnp.asarray(value, jnp.float32) for name, value in stats.items()}

        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(vector)
        self._reads_mask = watched.mask_was_read
        return gradient, loss, stats

    def _step(self, vector: jax.Array, state: Numbers, gradient: jax.Array, loss: jax.Array, lr: jax.Array) -> Step:
        return guarded_step(JAX_OPS, self._optimizer, vector, gradient, dict(state), loss, lr, self._grad_clip)

    def _masks_rows(self, batch: Mapping[str, Array], coeffs: Mapping[str, float]) -> bool:
        """Whether the loss reads the column "mask": then minibatches may be filled up with rows that do not count."""
        if self._reads_mask is None:
            numbers, zeros = _split_zeros(coeffs)
            exact = self._planner.whole(batch, lambda: False)
            function = functools.partial(self._gradient_of_all, variant=Variant(zeros, exact.filling))
            jax.eval_shape(function, self._vector, self._rng.key, exact.columns, exact.sizes, numbers)
        return bool(self._reads_mask)

    # -- weights and state ---------------------------------------------------------------------------------------------

    def get_weights(self) -> Weights:
        return by_name(NUMPY_OPS, np.array(self._vector), self.shapes)

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self._vector = self._placed(flattened({**self.get_weights(), **weights}, self.shapes))
        self._renew_host()

    def get_optimizer_state(self) -> dict[str, Any]:
        step = int(self._state["step"]) if isinstance(self._optimizer, Adam) else 0  # alone reads it
        return {**{name: np.array(self._state[name]) for name in self._optimizer.moments}, "step": step}

    def set_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._state = self._placed({name: np.asarray(value, np.float32) for name, value in state.items()})

    def get_random_state(self) -> dict[str, Any]:
        return {"loss": self._rng.get_state()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        self._rng.set_state(state["loss"])
        self._rng.key = self._placed(self._rng.key)

    def acting_network(self) -> ActingInJax:
        return ActingInJax(self._acting, self.shapes, lambda: self._vector)

    def memory(self) -> Weights | None:
        if not self.on_cpu:
            return None
        self._host = np.array(self._vector)
        return by_name(NUMPY_OPS, self._host, self.shapes)

    def _renew_host(self) -> None:
        if self._host is not None:
            self._host[...] = self._vector

    def _placed(self, tree: Any) -> Any:
        return jax.device_put(tree, self.device)


class _Rows(dict):
    """Columns of a minibatch, which notice whether a loss looks for a mask."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self.mask_was_read = False

    def __contains__(self, name: object) -> bool:
        self.mask_was_read |= name == SampleBatch.MASK
        return super().__contains__(name)

    def __getitem__(self, name: str) -> jax.Array:
        if name not in self:
            raise KeyError(missing_column(name, frozenset(self)))
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default


def _floats(scalars: Mapping[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in jax.device_get(scalars).items()}


def _split_zeros(coeffs: Mapping[str, float]) -> tuple[dict[str, np.float32], tuple[str, ...]]:
    """The coefficients that compiled code takes, and the names of those that are 0, without which it is compiled."""
    numbers = {name: np.float32(value) for name, value in coeffs.items() if value}
    return numbers, tuple(name for name in coeffs if name not in numbers)
