"""Trainer: what a user holds. Config, workers and plan; evaluation, acting, and the whole state of them.

train() = step() (one result of the plan) -> filters -> evaluation -> callbacks -> result files -> checkpoint
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headwater.callbacks import make_callbacks
from headwater.checkpoint import load_checkpoint
from headwater.config import TrainerConfig, merge_config
from headwater.data.sample_batch import DEFAULT_POLICY_ID
from headwater.envs.base_env import BaseEnv
from headwater.envs.no_env import NO_ENV, NoEnv
from headwater.envs.space_json import space_from_json, space_to_json
from headwater.errors import CheckpointError, ConfigError, TrainingError
from headwater.evaluation import evaluate_trainer
from headwater.execution.iterators import LocalIterator
from headwater.policy.policy import Policy
from headwater.registry import env_creator_for, get_algorithm, resolve_reference
from headwater.sampling.filters import FilterManager
from headwater.sampling.rollout_worker import RolloutWorker
from headwater.sampling.worker_set import WorkerSet
from headwater.saved_references import resolve_saved_references
from headwater.settings.settings import changes
from headwater.trainable import LoggerCreator, Trainable

logger = logging.getLogger(__name__)


class Resources(NamedTuple):
    """What a run needs: the driver's share, and that of its workers together (`extra_`). CPUs, GPUs, bytes."""

    cpu: float
    gpu: float
    memory: int
    object_store_memory: int
    extra_cpu: float
    extra_gpu: float
    extra_memory: int
    extra_object_store_memory: int


class Trainer(Trainable):
    """A training run. Algorithms are subclasses made by `build_trainer`.

    Args:
        config: a dict or config object, merged over the algorithm's defaults.
        env: a Gymnasium id, `"module:EnvId"`, an env class, a function of the env context, or a registered name; wins
            over `config["env"]`.
        logger_creator: config -> `RunLogger`; None: a run directory under `config["local_dir"]`, made when the first
            result or checkpoint is written; False: nothing is written but checkpoints saved to a given place.

    Raises:
        ConfigError: the config cannot work.
        EnvError: the env cannot be made.

    Example:
        >>> from headwater import PPOTrainer
        >>> config = {"num_envs_per_worker": 4, "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 0}
        >>> with PPOTrainer(config, env="CartPole-v1", logger_creator=False) as trainer:
        ...     result = trainer.train()
        >>> result["training_iteration"], result["timesteps_total"] >= 64
        (1, True)
    """

    _name: ClassVar[str] = "Trainer"
    _default_config: ClassVar[TrainerConfig] = TrainerConfig()
    _validate_env: ClassVar[Any] = None  # (env, env_context)
    _before_evaluate_fn: ClassVar[Any] = None  # (trainer)
    _policy_class: type[Policy]
    workers: WorkerSet
    train_exec_impl: LocalIterator

    def __init__(
        self,
        config: Mapping[str, Any] | TrainerConfig | None = None,
        env: Any = None,
        logger_creator: LoggerCreator | bool | None = None,
    ) -> None:
        super().__init__(logger_creator)
        self.raw_user_config = config
        self.evaluation_workers: WorkerSet | None = None
        self.episodes_restarted = False  # a restore could not carry the running episodes on
        self._num_evaluations = 0
        merged = merge_config(self._default_config, config)
        if env is not None:
            merged.env = env
        if merged.env is None and merged.input != "sampler":
            self._env_id = NO_ENV
            self.env_creator: Callable[[Any], Any] = partial(_no_env, merged)
        else:
            self._env_id = self._register_if_needed(merged.env)
        try:
            self.setup(merged)
        except BaseException:
            self.cleanup()
            raise

    # Setting up.

    def _register_if_needed(self, env: Any) -> str:
        """The env's id; from here on `self.env_creator` makes one."""
        self._env_id, self.env_creator = env_creator_for(env)
        return self._env_id

    @property
    def env_id(self) -> str:
        """The id of the env, for messages and names."""
        return self._env_id

    def setup(self, config: TrainerConfig) -> None:
        """Make workers and plan from a merged config."""
        if config.in_evaluation:
            raise ConfigError("in_evaluation: is set by the library, for evaluation's samplers: leave it out.")
        self.config = config
        logging.getLogger("headwater").setLevel("WARNING" if config.log_level == "WARN" else config.log_level)
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.callbacks = make_callbacks(config.callbacks)
        if isinstance(config.custom_eval_function, str):
            config.custom_eval_function = resolve_reference(config.custom_eval_function)
        self._init(config, self.env_creator)
        if config.evaluation_interval is not None:
            self._make_evaluation_workers()

    def _init(self, config: TrainerConfig, env_creator: Callable[[Any], Any]) -> None:
        raise NotImplementedError("Trainer is the base of algorithms: use one of them, or build_trainer.")

    def _resolved_config(self) -> TrainerConfig:
        """The config with the seed that was drawn where none was given."""
        return self.config.model_copy(update={"seed": self.seed})

    def _make_workers(
        self,
        *,
        env_creator: Callable[[Any], Any],
        validate_env: Callable[[Any, Any], None] | None,
        policy_class: type[Policy],
        config: TrainerConfig,
        num_workers: int,
        callbacks: Any = None,
    ) -> WorkerSet:
        """A worker set; the factory for training and evaluation alike."""
        return WorkerSet(
            env_creator=env_creator,
            validate_env=validate_env,
            policy_class=policy_class,
            trainer_config=config,
            num_workers=num_workers,
            logdir=self.logdir if config.output == "logdir" else None,
            env_id=self._env_id,
            callbacks=callbacks,
        )

    def _make_evaluation_workers(self) -> WorkerSet:
        config = self.config.for_evaluation()
        other_env = self.config.evaluation_config.get("env")
        env_creator = self.env_creator if other_env is None else env_creator_for(other_env)[1]
        training = self.workers.local_worker()
        if other_env is None and isinstance(training.env, BaseEnv) and not training.env.num_envs:
            raise ConfigError(
                f"evaluation: the episodes of {self._env_id!r} come from outside, and nobody can be asked for others. "
                "Give an env to evaluate in as evaluation_config={'env': ...}, or leave evaluation_interval out."
            )
        self.evaluation_workers = self._make_workers(
            env_creator=env_creator,
            validate_env=self._validate_env,
            policy_class=self._policy_class,
            config=config if config.seed is not None else config.model_copy(update={"seed": self.seed}),
            num_workers=0,
        )
        spaces = self.evaluation_workers.local_worker().spaces
        if spaces != training.spaces:
            raise ConfigError(
                f"evaluation_config.env: its spaces are {spaces}, but the policies were made for {training.spaces}. "
                "Give an env that the policies can act in."
            )
        return self.evaluation_workers

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any] | TrainerConfig | None) -> Resources:
        """What a run with this config needs."""
        merged = merge_config(cls._default_config, config)
        workers = merged.num_workers
        return Resources(
            cpu=merged.num_cpus_for_driver,
            gpu=float(merged.device.startswith("cuda")),
            memory=merged.memory,
            object_store_memory=merged.object_store_memory,
            extra_cpu=merged.num_cpus_per_worker * workers,
            extra_gpu=0.0,
            extra_memory=0,
            extra_object_store_memory=0,
        )

    # Training.

    def step(self) -> dict[str, Any]:
        """One result of the algorithm, without what `train` adds."""
        raise NotImplementedError("Trainer is the base of algorithms: use one of them, or build_trainer.")

    def after_step(self, result: dict[str, Any]) -> None:
        """Merge filters; evaluate where it is due."""
        self._sync_filters_if_needed(self.workers)
        interval = self.config.evaluation_interval
        if interval is not None and self.iteration % interval == 0:
            result.update(self.evaluate())
        result["num_env_faults"] = self.workers.local_worker().num_env_faults

    def _sync_filters_if_needed(self, workers: WorkerSet) -> None:
        if self.config.observation_filter != "NoFilter":
            FilterManager.synchronize(
                workers.local_worker().filters,
                workers.remote_workers(),
                update_remote=self.config.synchronize_filters,
                gather=workers.engine.gather,
            )

    def _try_recover(self) -> None:
        """Replace remote workers that died.

        Raises:
            TrainingError: there are none: a failure in this process is the run's own.
        """
        if not self.workers.remote_workers():
            raise TrainingError("Not enough healthy workers remain to continue: this run samples in its own process.")

    # Evaluation.

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the present policy now: `{"evaluation": metrics}`. Training is not touched by it."""
        self._refuse_if_stopped()
        workers = self.evaluation_workers or self._make_evaluation_workers()
        if self._before_evaluate_fn is not None:
            self._before_evaluate_fn(self)
        self._sync_weights_to_workers(worker_set=workers)
        self._num_evaluations += 1
        return {"evaluation": evaluate_trainer(self, workers, self._num_evaluations)}

    _evaluate = evaluate  # its name in the 1.x line

    def _sync_weights_to_workers(
        self, *, worker_set: WorkerSet | None = None, workers: Sequence[RolloutWorker] = ()
    ) -> None:
        """Give every worker of a set, and each of `workers`, the local worker's weights and filters."""
        saved = self.workers.local_worker().save()
        if not self.config.synchronize_filters:
            saved["filters"] = {}
        if worker_set is not None:
            worker_set.foreach_worker(lambda worker: worker.restore(saved))
        for worker in workers:
            worker.restore(saved)

    # Acting.

    def compute_action(
        self,
        observation: Any,
        state: Sequence[Any] | None = None,
        prev_action: Any = None,
        prev_reward: float | None = None,
        info: Mapping[str, Any] | None = None,
        policy_id: str = DEFAULT_POLICY_ID,
        full_fetch: bool = False,
        explore: bool | None = None,
    ) -> Any:
        """The action for one raw observation, as the env takes it: encoded, filtered and mapped as in training.

        Args:
            observation: as the env gives it.
            state: of a policy with memory, as the call for the episode's step before returned it; None: it begins.
            prev_action: with `use_prev_action`, the action before as the env took it; None: an episode begins.
            prev_reward: with `use_prev_reward`, what the env paid for it.
            explore: sample (True) or take the deterministic action (False); None: as the config says.
            full_fetch: also return state outputs and `{"vf_preds", "action_logp", ...}`.

        Returns:
            The action, or (action, state after it, extra fetches) with `full_fetch` or a state.
        """
        actions, states, extra = self.workers.local_worker().compute_actions(
            [observation],
            policy_id,
            explore,
            states=[state] if state else None,
            **_batched(prev_action=prev_action, prev_reward=prev_reward, info=info),
        )
        if not full_fetch and not state:
            return actions[0]
        return actions[0], states[0], {name: value[0] for name, value in extra.items()}

    def compute_actions(
        self,
        observations: Mapping[Any, Any],
        state: Mapping[Any, Sequence[Any]] | None = None,
        policy_id: str = DEFAULT_POLICY_ID,
        full_fetch: bool = False,
        explore: bool | None = None,
        prev_action: Mapping[Any, Any] | None = None,
        prev_reward: Mapping[Any, float] | None = None,
    ) -> Any:
        """Actions for many raw observations in one forward pass, by the keys of `observations`.

        Args:
            observations: as the env gives them.
            state: by the same keys; a key that is missing begins an episode.
            explore, full_fetch: as in `compute_action`.
            prev_action, prev_reward: likewise, by the same keys.

        Returns:
            {key: action}, or that, {key: state after it} and the batched extra fetches with `full_fetch` or a state.
        """
        states = None
        if state:
            fresh = self.workers.local_worker().for_policy(policy_id).get_initial_state()
            states = [state.get(key, fresh) for key in observations]
        actions, states_out, extra = self.workers.local_worker().compute_actions(
            list(observations.values()),
            policy_id,
            explore,
            states=states,
            prev_action_batch=None if prev_action is None else [prev_action.get(key) for key in observations],
            prev_reward_batch=None if prev_reward is None else [prev_reward.get(key) for key in observations],
        )
        by_key = dict(zip(observations, actions, strict=True))
        if not full_fetch and not state:
            return by_key
        return by_key, dict(zip(observations, states_out, strict=True)), extra

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy | None:
        """The local worker's policy, or None where there is none of that id."""
        return self.workers.local_worker().get_policy(policy_id)

    def get_weights(self, policies: Sequence[str] | None = None) -> dict[str, Any]:
        """{policy id: {parameter name: array}}; None = all policies."""
        return self.workers.local_worker().get_weights(policies)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the local worker's weights, by policy id."""
        self.workers.local_worker().set_weights(weights)

    def export_policy_model(self, export_dir: str | Path, policy_id: str = DEFAULT_POLICY_ID) -> Path:
        """Write the policy with all that acting on raw observations needs; `ExportedPolicy.load` reads it.

        Raises:
            ConfigError: the network or the distribution is a class of the user's own, which a file cannot hold.
        """
        return self.workers.local_worker().export_policy(export_dir, policy_id)

    # Saving and restoring.

    def load_checkpoint(self, checkpoint_path: str | Path) -> None:
        """See `restore`."""
        state, meta = load_checkpoint(Path(checkpoint_path), self._name)
        self._check_spaces(meta, checkpoint_path)
        self.restore_from_object(state)
        if self.episodes_restarted:
            logger.warning("%s: the envs' own state is not in the checkpoint; their episodes restart.", checkpoint_path)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint_path: str | Path,
        config: Mapping[str, Any] | TrainerConfig | None = None,
        env: Any = None,
        logger_creator: LoggerCreator | bool | None = None,
        trust: bool = False,
    ) -> Trainer:
        """A trainer that goes on where a checkpoint was made.

        Args:
            checkpoint_path: the checkpoint directory.
            config: settings that differ from the saved ones; they win.
            env: in place of the saved one.
            logger_creator: as in the constructor.
            trust: also use functions that the checkpoint names as `module:name` (an env creator, an evaluation
                function). Without it only registered envs and classes of the expected kinds are used.

        Raises:
            CheckpointError: it is damaged or foreign, or names code that is not trusted.
            ConfigError: a callable of the config could not be stored and is not given here.
        """
        state, meta = load_checkpoint(Path(checkpoint_path), None if cls is Trainer else cls._name)
        try:
            algorithm: type[Trainer] = get_algorithm(meta["algorithm"]) if cls is Trainer else cls
        except ConfigError as error:
            raise CheckpointError(
                f"{checkpoint_path} was made by the algorithm {meta['algorithm']!r}, which is none of headwater's own: "
                "call from_checkpoint of its class rather than of Trainer."
            ) from error
        given = changes(config) if isinstance(config, TrainerConfig) else dict(config or {})
        overrides = given | ({} if env is None else {"env": env})
        merged = algorithm._default_config.from_dict(meta["config"], overrides)
        resolve_saved_references(merged, overrides, trust, Path(checkpoint_path))
        if "seed" not in overrides:
            merged.seed = meta["seed"]
        trainer = algorithm(merged, logger_creator=logger_creator)
        try:
            trainer._check_spaces(meta, checkpoint_path)
            trainer.__setstate__(state)
            trainer.workers.foreach_policy(lambda policy, _: policy.reset_coefficients(overrides))
        except BaseException:
            trainer.stop()
            raise
        return trainer

    def __getstate__(self) -> dict[str, Any]:
        return {
            "worker": self.workers.local_worker().get_state(),
            "plan": self.train_exec_impl.get_state(),
            "trainer": {
                **self._get_run_state(),
                "num_evaluations": self._num_evaluations,
                "barrier": self.config.checkpoint_barrier,
            },
        }

    def state_to_save(self) -> dict[str, Any]:
        """The whole state; weights that are not finite are not to be saved."""
        state = self.__getstate__()
        for policy_id, policy_state in state["worker"]["policies"].items():
            bad = [name for name, weight in policy_state["weights"].items() if not np.isfinite(weight).all()]
            if bad:
                raise CheckpointError(
                    f"Iteration {self.iteration} is not saved: {len(bad)} weights of {policy_id} hold NaN or infinite "
                    f"values ({', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''}). The policy has diverged: go on "
                    "from an earlier checkpoint with a lower lr, or with grad_clip set."
                )
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        own = state["trainer"]
        carried_on = self.workers.local_worker().set_state(state["worker"])
        self.train_exec_impl.set_state(state["plan"])
        self._num_evaluations = own["num_evaluations"]
        self._set_run_state(own, self.train_exec_impl.shared_metrics.counters["num_steps_sampled"])
        if own["barrier"]:
            self.workers.local_worker().sampler.restart(self.iteration)
        self.episodes_restarted = not carried_on and not own["barrier"]
        self.workers.sync_weights()

    def after_checkpoint(self) -> None:
        """Files of `output` are complete up to here; with `checkpoint_barrier`, new episodes begin as when resumed."""
        self.workers.local_worker().flush_output()
        if self.config.checkpoint_barrier:
            self.workers.local_worker().sampler.restart(self.iteration)

    def checkpoint_meta(self) -> dict[str, Any]:
        worker = self.workers.local_worker()
        carried_on = getattr(worker.env, "has_state", False) or self.config.checkpoint_barrier
        return {
            "algorithm": self._name,
            "config": self.config.to_dict(),
            "seed": self.seed,
            "env_id": self._env_id,
            "spaces": {
                policy_id: {kind: space_to_json(space) for kind, space in kinds.items()}
                for policy_id, kinds in worker.spaces.items()
            },
            "episodes": "carried on" if carried_on else "restart",
        }

    def _check_spaces(self, meta: Mapping[str, Any], path: str | Path) -> None:
        own, saved = self.workers.local_worker().spaces, meta["spaces"]
        if saved.keys() != own.keys():
            raise CheckpointError(
                f"{path} holds the policies {', '.join(saved)}, but this config has {', '.join(own)}. Give the same "
                "multiagent.policies."
            )
        wrong = [
            f"its {kind} space{_of(policy_id)} is {was}, that of {self._env_id!r} is {space}"
            for policy_id, kinds in own.items()
            for kind, space in kinds.items()
            if (was := space_from_json(saved[policy_id][kind])) != space
        ]
        if wrong:
            raise CheckpointError(
                f"{path} was trained on another env: {'; '.join(wrong)}. Give the env it was trained on."
            )

    def cleanup(self) -> None:
        """Stop workers, evaluation workers and whatever else was started."""
        for workers in (getattr(self, "workers", None), self.evaluation_workers):
            if workers is not None:
                workers.stop()

    def __repr__(self) -> str:
        return f"<{self._name} on {self._env_id!r}, iteration {self.iteration}>"


def _no_env(config: TrainerConfig, context: Any) -> NoEnv:
    return NoEnv(config.observation_space, config.action_space)


def _of(policy_id: str) -> str:
    return "" if policy_id == DEFAULT_POLICY_ID else f" of policy {policy_id!r}"


def _batched(**single: Any) -> dict[str, Any]:
    """The optional inputs of one row as batches of one, under the names that policies take."""
    return {f"{name}_batch": [value] for name, value in single.items() if value is not None}
