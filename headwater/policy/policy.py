"""Policy: who decides and learns; the contract that the policies of all frameworks fulfil.

    sampler -> act -> env        trajectory -> postprocess_trajectory -> batch -> learn_on_batch -> weights

All arrays that go in and come out are NumPy's, whatever the framework.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.policy.schedules import Schedule, make_schedule

Array = NDArray[Any]
Weights = dict[str, Array]


class Acted(NamedTuple):
    """What `Policy.act` gives."""

    actions: Any  # [N, ...], nested for Dict and Tuple spaces
    dist_inputs: Array  # [N, K] float32
    state: Array | None = None  # [N, S] float32 after this step; None without memory
    values: Array | None = None  # [N] float32: with memory, for they come with the state


class Policy(ABC):
    """Maps observations to actions, and learns from batches.

    Policies are usually made by `headwater.build_policy` from a loss, and constructed by a worker.

    Args:
        observation_space: Of encoded observations: a Box of rank 1 (a vector), 2 or 3 (an image).
        action_space: The env's own.
        config: The trainer's config.

    Attributes:
        coefficients: Name -> present value of the loss's coefficients. A plan may change them (`UpdateKL`); those that
            have a schedule follow it.
        global_timestep: Env steps of the whole run, as last told by `on_global_var_update`.
        num_bad_updates: Updates that were skipped because their loss or gradient was not finite.
    """

    framework: ClassVar[str]
    coefficient_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, config: Any) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.global_timestep = 0
        self.num_bad_updates = 0
        self.coefficients = {name: float(config[name]) for name in self.coefficient_names}
        self._lr_schedule = make_schedule(config["lr_schedule"], config["lr"], "lr_schedule")
        # A coefficient with a `_schedule` setting follows the config, others (kl_coeff) adapt and belong to the state.
        self._coefficient_schedules: dict[str, Schedule] = {
            name: make_schedule(config[f"{name}_schedule"], config[name], f"{name}_schedule")
            for name in self.coefficient_names
            if f"{name}_schedule" in config
        }
        self._follow_schedules()

    # -- acting ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def act(self, obs: Array, rng: Any, explore: bool = True, state: Array | None = None) -> Acted:
        """What samplers call at every step.

        Args:
            obs: [N, *observation shape].
            rng: Source of random numbers, with `uniform(shape)` and `normal(shape)`.
            explore: Sample; False: the distribution's deterministic action.
            state: Float32 [N, S], with memory: what is remembered of the steps before, zeros where an episode begins.
        """

    @abstractmethod
    def values(self, obs: Array, state: Array | None = None) -> Array:
        """[B, *observation shape] -> float32 [B]: values of observations; with memory, of those that follow `state`."""

    @abstractmethod
    def logp(self, dist_inputs: Array, actions: Any) -> Array:
        """[B, K], actions (nested, or flat [B, A]) -> float32 [B]: the actions' log-probabilities."""

    @abstractmethod
    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Any = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, list[Array], dict[str, Array]]:
        """Actions for a batch of encoded observations, with everything known about them.

        Args:
            obs_batch: [B, *observation shape].
            state_batches: What is remembered, one [B, ...] per part of `get_initial_state()`; None or []: nothing yet.
            prev_action_batch: The actions before; unused, as the observations hold them where the policy sees them.
            prev_reward_batch: The rewards before; likewise.
            info_batch: The env's infos; unused by the built-in policies.
            episodes: The episodes; likewise.
            explore: None: as the config says.
            timestep: In place of `global_timestep`, for exploration that depends on it.
            rng: As in `act`; None: the policy's own.

        Returns:
            (actions, state parts, {action_dist_inputs [B, K], action_logp [B], action_prob [B], vf_preds [B]}).
        """

    def compute_single_action(
        self,
        obs: Any,
        state: Any = None,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        episode: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, list[Array], dict[str, Any]]:
        """As `compute_actions`, for one observation [*observation shape]: nothing has a batch axis."""
        actions, states, extra = self.compute_actions(
            np.asarray(obs)[None],
            [np.asarray(part)[None] for part in state or ()],
            None if prev_action is None else [prev_action],
            None if prev_reward is None else [prev_reward],
            None if info is None else [info],
            None if episode is None else [episode],
            explore=explore,
            timestep=timestep,
            rng=rng,
            **kwargs,
        )
        return first_row(actions), [part[0] for part in states], {key: value[0] for key, value in extra.items()}

    @abstractmethod
    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Any = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
    ) -> Array:
        """float32 [B]: log-probabilities, at observations [B, ...], of `actions` (nested, or flat [B, A]).

        With memory each observation follows its row of `state_batches`, as in `compute_actions`.
        """

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of each part of what is remembered of one episode; {} without memory."""
        return {}

    @property
    def state_size(self) -> int:
        """S, the numbers of all parts: samplers and batches hold them side by side, as one row [S]."""
        return sum(math.prod(shape) for shape in self.state_shapes.values())

    def get_initial_state(self) -> list[Array]:
        """What is remembered before an episode's first step: one array of zeros per part; [] without memory."""
        return [np.zeros(shape, np.float32) for shape in self.state_shapes.values()]

    # -- learning ----------------------------------------------------------------------------------------------------

    def postprocess_trajectory(self, trajectory: Any) -> None:  # noqa: B027
        """Add the columns that learning needs (advantages, ...) to a fragment that was just sampled."""

    @abstractmethod
    def learn_on_batch(self, batch: Any, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0) -> dict[str, float]:
        """Take gradient steps on a train batch.

        Args:
            batch: Columns [B, ...].
            num_sgd_iter: Passes over the batch.
            sgd_minibatch_size: Rows per step, about: the batch is split evenly. 0: the whole batch.

        Returns:
            Statistics, averaged over the last pass.

        Raises:
            TrainingError: `max_bad_updates_in_a_row` losses or gradients were not finite. The last good weights stay.
        """

    @abstractmethod
    def compute_gradients(self, batch: Any) -> tuple[Weights, dict[str, float]]:
        """The loss's gradient over the whole batch (by weight name, not clipped), and the statistics."""

    @abstractmethod
    def apply_gradients(self, gradients: Mapping[str, Array]) -> None:
        """One clipped optimizer step along gradients from `compute_gradients`."""

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Learn how many env steps the run has sampled (`{"timestep": n}`): schedules follow it."""
        self.global_timestep = int(global_vars["timestep"])
        self._follow_schedules()

    @property
    def cur_lr(self) -> float:
        """The learning rate at `global_timestep`."""
        return float(self._lr_schedule(self.global_timestep))

    def reset_coefficients(self, names: Iterable[str]) -> None:
        """Those of `names` that are coefficients without a schedule start anew at their settings."""
        for name in set(names) & (self.coefficients.keys() - self._coefficient_schedules.keys()):
            self.coefficients[name] = float(self.config[name])

    def _follow_schedules(self) -> None:
        for name, schedule in self._coefficient_schedules.items():
            self.coefficients[name] = float(schedule(self.global_timestep))

    # -- state -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def get_weights(self) -> Weights:
        """Copies of all weights, by framework-independent names (see `headwater.policy.network_description`)."""

    @abstractmethod
    def set_weights(self, weights: Mapping[str, Array], strict: bool = True) -> list[str]:
        """Replace the weights; all of them or, after an error, none.

        Args:
            weights: By name.
            strict: Refuse missing, extra and wrongly shaped weights; False: take those that fit.

        Returns:
            What did not fit and so was kept as it was or ignored, one sentence each; [] where all fit.

        Raises:
            CheckpointError: listing every weight that does not fit or is not finite.
        """

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Everything that influences the future, as nested dicts of arrays and JSON values."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `get_state` was called, bit for bit on CPU."""

    @abstractmethod
    def export_model(self, path: str | Path) -> Path:
        """Write the acting half to a directory, which `headwater.frameworks.numpy.policy.NumpyPolicy.load` reads."""

    def update_target(self) -> None:  # noqa: B027
        """Copy the weights to the target network, for policies that have one."""


def first_row(actions: Any) -> Any:
    """The first of a batch of actions, which may be nested in dicts and tuples."""
    if isinstance(actions, dict):
        return {key: first_row(value) for key, value in actions.items()}
    if isinstance(actions, tuple):
        return tuple(first_row(value) for value in actions)
    return actions[0]
