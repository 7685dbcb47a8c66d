"""TFLearner: the updates of a batch as one function of TensorFlow.

    weights, moments -> while loop over the updates: rows -> network -> loss -> gradient -> guarded step -> weights

Weights and moments pass through the loop as values, and come back to their variables at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headwater.frameworks.learning_policy import Learner, LearningPolicy, Outcome
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.frameworks.tf.device import count_gpus
from headwater.frameworks.tf.model import ModelNetwork
from headwater.frameworks.tf.networks import ActingInTF, DescribedNetwork, TFNetwork
from headwater.frameworks.tf.ops import TF_OPS, TFGenerator
from headwater.frameworks.tf.tracing import Traced
from headwater.policy.device import choose_device
from headwater.policy.optimizers import Adam, State, guarded_step, make_optimizer
from headwater.policy.policy import Array, Weights
from headwater.policy.sgd import learnable, missing_column, outputs_and_rows
from headwater.policy.weights import by_name, flattened

Columns = Mapping[str, tf.Tensor]


class TFLearner(Learner):
    """The half of a policy that TensorFlow computes.

    Args:
        policy: Whose network and loss these are.

    Attributes:
        phase: The function of all updates of a batch.
    """

    def __init__(self, policy: LearningPolicy) -> None:
        self._compiled = policy.config["compile"] is not False
        self._limit = policy.config["grad_clip"]
        self._optimizer = make_optimizer(policy.config["optimizer"])
        self.device, self._place = _device(policy)
        self.on_cpu = self.device == "cpu"
        with tf.device(self._place):
            self._network: TFNetwork
            if policy.description is None:
                self._network = ModelNetwork(policy)
            else:
                self._network = DescribedNetwork(policy.description, policy.initial_weights())
            self._state = {name: tf.Variable(tf.zeros_like(self._network.vector)) for name in self._optimizer.moments}
            self._state["step"] = tf.Variable(0.0)
            self._loss_rng = TFGenerator(policy.seed_of("loss"))
        self.model, self.trained_shapes = self._network.model, self._network.shapes
        extras = {name: tuple(variable.shape) for name, variable in self._network.extras.items()}
        self.shapes = {**self.trained_shapes, **extras}
        self._loss_of = functools.partial(policy.loss_of, rng=self._loss_rng)
        self._names: list[str] = []  # of the statistics, known once a loss was traced
        self.phase = Traced(self._run_phase, self._compiled)
        self._gradient = Traced(self._run_gradient, self._compiled)
        self._apply = Traced(self._run_apply, self._compiled)

    def sgd(
        self,
        batch: Mapping[str, Array],
        orders: NDArray[np.int64],
        bounds: list[tuple[int, int]],
        lr: float,
        coeffs: Mapping[str, float],
    ) -> Outcome:
        with tf.device(self._place):
            means, good, finite = self.phase(
                _columns(batch), tf.constant(orders.ravel()), tf.constant(bounds, tf.int32), tf.constant(lr),
                *_coefficients(coeffs),
            )  # fmt: skip
        return Outcome(dict(zip(self._names, means.numpy().tolist(), strict=True)), good.numpy(), bool(finite))

    def gradients(self, batch: Mapping[str, Array], coeffs: Mapping[str, float]) -> tuple[Array, dict[str, float]]:
        with tf.device(self._place):
            gradient, stats = self._gradient(_columns(batch), *_coefficients(coeffs))
        return gradient.numpy(), dict(zip(self._names, stats.numpy().tolist(), strict=True))

    def apply(self, gradient: Array, lr: float) -> bool:
        with tf.device(self._place):
            return bool(self._apply(tf.constant(gradient), tf.constant(lr)))

    def _run_phase(
        self,
        columns: Columns,
        orders: tf.Tensor,
        bounds: tf.Tensor,
        lr: tf.Tensor,
        coeffs: Mapping[str, tf.Tensor],
        zeros: frozenset[str],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """All updates: the statistics' means [number of them], which updates were good, and whether the weights are.

        Args:
            columns: [rows, ...].
            orders: int64 [epochs * rows].
            bounds: int32 [minibatches, 2].
            lr: Step size.
            coeffs: Coefficients that are not 0.
            zeros: Names of those that are: numbers 0 let a loss leave out their terms.
        """
        rows, parts = tf.shape(columns["obs"])[0], tf.shape(bounds)[0]
        updates = tf.size(orders) // rows * parts

        def update(report: bool, index: tf.Tensor, weights: tf.Tensor, state: State, good: Any, reported: Any) -> Any:
            start = index // parts * rows
            first, stop = start + bounds[index % parts, 0], start + bounds[index % parts, 1]
            minibatch = _Rows(columns, orders[first:stop])
            extras = [tf.identity(extra) for extra in self._network.extras.values()]
            loss, gradient, stats = self._differentiate(weights, minibatch, coeffs, zeros, report)
            step = guarded_step(TF_OPS, self._optimizer, weights, gradient, state, loss, lr, self._limit)
            for extra, before in zip(self._network.extras.values(), extras, strict=True):
                extra.assign(tf.where(step.good, extra, before))
            if report:
                reported = reported.write(index % parts, self._listed(stats, step.norm))
            return index + 1, step.weights, step.state, good.write(index, step.good), reported

        before = tf.convert_to_tensor(self._network.vector)
        state = {name: tf.convert_to_tensor(variable) for name, variable in self._state.items()}
        good = tf.TensorArray(tf.bool, updates, element_shape=())
        reported = tf.TensorArray(tf.float32, parts)
        carried = (tf.constant(0), before, state, good, reported)
        for report, stop in ((False, updates - parts), (True, updates)):
            carried = tf.while_loop(
                lambda index, *_, stop=stop: index < stop, functools.partial(update, report), carried
            )
        _, weights, state, good, reported = carried
        good, reported = good.stack(), reported.stack()
        finite = tf.reduce_all(tf.math.is_finite(weights))
        weights = tf.where(finite, weights, before)
        self._network.vector.assign(weights)
        self._network.weights(weights)
        for name, value in state.items():
            self._state[name].assign(value)
        last = tf.cast(good[-parts:], tf.float32)
        means = tf.reduce_sum(tf.where(last[:, None] > 0, reported, 0.0), 0) / tf.reduce_sum(last)
        return means, good, finite

    def _run_gradient(
        self, columns: Columns, coeffs: Mapping[str, tf.Tensor], zeros: frozenset[str]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        vector = tf.convert_to_tensor(self._network.vector)
        minibatch = _Rows(columns, tf.range(tf.shape(columns["obs"])[0]))
        _, gradient, stats = self._differentiate(vector, minibatch, coeffs, zeros, True)
        return gradient, self._listed(stats, tf.norm(gradient))

    def _run_apply(self, gradient: tf.Tensor, lr: tf.Tensor) -> tf.Tensor:
        state = {name: tf.convert_to_tensor(variable) for name, variable in self._state.items()}
        vector = tf.convert_to_tensor(self._network.vector)
        step = guarded_step(TF_OPS, self._optimizer, vector, gradient, state, 0.0, lr, self._limit)
        self._network.vector.assign(step.weights)
        self._network.weights(step.weights)
        for name, value in step.state.items():
            self._state[name].assign(value)
        return step.good

    def _differentiate(
        self, vector: tf.Tensor, minibatch: Mapping[str, tf.Tensor], coeffs: Any, zeros: frozenset[str], report: bool
    ) -> tuple[tf.Tensor, tf.Tensor, Mapping[str, Any]]:
        """The loss, its gradient [P] and the statistics."""
        weights = self._network.weights(vector)
        forward = functools.partial(self._network.forward, weights, training=True)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs = outputs_and_rows(TF_OPS, forward, minibatch)
            loss, stats = self._loss_of(*outputs, {**coeffs, **dict.fromkeys(zeros, 0.0)}, report)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, tf.concat([tf.reshape(gradient, (-1,)) for gradient in gradients], 0), stats

    def _listed(self, stats: Mapping[str, Any], norm: tf.Tensor) -> tf.Tensor:
        stats = {**stats, "grad_gnorm": norm}
        self._names = list(stats)
        return tf.stack([tf.cast(value, tf.float32) for value in stats.values()])

    # -- weights and state ---------------------------------------------------------------------------------------------

    def get_weights(self) -> Weights:
        extras = {name: _host(variable) for name, variable in self._network.extras.items()}
        return {**by_name(NUMPY_OPS, _host(self._network.vector), self.trained_shapes), **extras}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        trained = by_name(NUMPY_OPS, _host(self._network.vector), self.trained_shapes)
        trained.update({name: weights[name] for name in weights if name in trained})
        with tf.device(self._place):
            self._network.vector.assign(flattened(trained, self.trained_shapes))
            self._network.weights(tf.convert_to_tensor(self._network.vector))
            for name, variable in self._network.extras.items():
                if name in weights:
                    variable.assign(tf.cast(weights[name], variable.dtype))

    def get_optimizer_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: _host(variable) for name, variable in self._state.items()}
        return state if isinstance(self._optimizer, Adam) else {**state, "step": 0}  # alone reads it

    def set_optimizer_state(self, state: Mapping[str, Any]) -> None:
        for name, variable in self._state.items():
            variable.assign(np.array(state[name], np.float32))

    def get_random_state(self) -> dict[str, Any]:
        layers = {name: _host(variable) for name, variable in self._network.generators.items()}
        return {"loss": self._loss_rng.get_state(), "layers": layers}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        self._loss_rng.set_state(state["loss"])
        for name, variable in self._network.generators.items():
            variable.assign(np.array(state["layers"][name], np.uint32))

    def acting_network(self) -> ActingInTF:
        return ActingInTF(self._network, self._place, self._compiled)


def _device(policy: LearningPolicy) -> tuple[str, str]:
    """The device by its name in the config, and by TensorFlow's."""
    description = policy.description
    shapes = {} if description is None else description.weight_shapes()
    num_weights = sum(int(np.prod(shape)) for shape in shapes.values())
    # Of a model of the user's own nothing is known before it is made somewhere.
    has_convolutions = description is None or not description.is_mlp
    kind, index = choose_device(policy.config, num_weights, has_convolutions, count_gpus, "TensorFlow")
    return ("cpu", "/CPU:0") if kind == "cpu" else (f"cuda:{index}", f"/GPU:{index}")


def _host(variable: tf.Variable) -> Array:
    """A copy of its value."""
    return variable.numpy().copy()


def _columns(batch: Mapping[str, Array]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(learnable(column)) for name, column in batch.items()}


def _coefficients(coeffs: Mapping[str, float]) -> tuple[dict[str, tf.Tensor], frozenset[str]]:
    """Those that are not 0 as tensors, and the names of those that are."""
    zeros = frozenset(name for name, value in coeffs.items() if value == 0.0)
    return {name: tf.constant(value) for name, value in coeffs.items() if name not in zeros}, zeros


class _Rows(dict):
    """A minibatch: a column's rows are gathered when the loss first asks for it."""

    def __init__(self, columns: Columns, index: tf.Tensor) -> None:
        super().__init__()
        self._columns, self._index = columns, index

    def __missing__(self, name: str) -> tf.Tensor:
        if name not in self._columns:
            raise KeyError(missing_column(name, frozenset(self._columns)))
        rows = self[name] = tf.gather(self._columns[name], self._index)
        return rows

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: Any = None) -> Any:
        """The rows, or `default` where the train batch has no such column."""
        return self[name] if name in self._columns else default
