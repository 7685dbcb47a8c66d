"""build_trainer: a Trainer class from its parts (config, policy, execution plan) and hooks between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headwater.config import TrainerConfig
from headwater.errors import ConfigError, TrainingError
from headwater.execution.iterators import LocalIterator
from headwater.execution.metric_ops import StandardMetricsReporting
from headwater.execution.rollout_ops import ConcatBatches, ParallelRollouts
from headwater.execution.train_ops import TrainOneStep
from headwater.policy.policy import Policy
from headwater.sampling.worker_set import WorkerSet
from headwater.trainer import Trainer

ExecutionPlan = Callable[[WorkerSet, Any], LocalIterator]


def default_execution_plan(workers: WorkerSet, config: TrainerConfig) -> LocalIterator:
    """Sample a train batch, learn from it once, report."""
    train_op = (
        ParallelRollouts(workers, mode="bulk_sync")
        .combine(ConcatBatches(config["train_batch_size"], config["multiagent"]["count_steps_by"]))
        .for_each(TrainOneStep(workers))
    )
    return StandardMetricsReporting(train_op, workers, config)


def build_trainer(
    name: str,
    *,
    default_config: TrainerConfig | type[TrainerConfig] | None = None,
    validate_config: Callable[[Any], None] | None = None,
    default_policy: type[Policy] | None = None,
    get_policy_class: Callable[[Any], type[Policy] | None] | None = None,
    validate_env: Callable[[Any, Any], None] | None = None,
    before_init: Callable[[Trainer], None] | None = None,
    after_init: Callable[[Trainer], None] | None = None,
    before_evaluate_fn: Callable[[Trainer], None] | None = None,
    mixins: Sequence[type] | None = None,
    execution_plan: ExecutionPlan = default_execution_plan,
) -> type[Trainer]:
    """A subclass of Trainer.

    When one is constructed: `validate_config` (may change the config), `get_policy_class`, `before_init`, the workers,
    the plan, `after_init`.

    Args:
        name: of the class and in run directories and checkpoints.
        default_config: what a user's config is merged over; its class says which settings there are.
        validate_config: raises where settings cannot work together.
        default_policy: the policy class where `get_policy_class` is absent or returns None.
        get_policy_class: config -> policy class.
        validate_env: (env, env_context), called wherever an env is made; raises where it does not suit the algorithm.
        before_init, after_init: called with the trainer around the making of workers and plan.
        before_evaluate_fn: called with the trainer before each evaluation, before its workers get the weights.
        mixins: further base classes; the first has the highest precedence.
        execution_plan: (workers, config) -> iterator over results.

    Example:
        >>> from headwater.algorithms.ppo.ppo import PPOTrainer
        >>> Patient = PPOTrainer.with_updates(name="Patient", before_init=lambda trainer: None)
        >>> Patient.__name__
        'Patient'
    """
    parts: dict[str, Any] = {key: value for key, value in locals().items() if key != "parts"}
    if default_config is None or isinstance(default_config, type):
        default_config = (default_config or TrainerConfig)()
    defaults = default_config

    class trainer_cls(*(mixins or ()), Trainer):  # type: ignore[misc]  # noqa: N801
        _name = name
        _default_config = defaults
        _validate_env = staticmethod(validate_env) if validate_env else None
        _before_evaluate_fn = staticmethod(before_evaluate_fn) if before_evaluate_fn else None

        def __init__(self, config: Any = None, env: Any = None, logger_creator: Any = None) -> None:
            Trainer.__init__(self, config, env, logger_creator)

        def _init(self, config: Any, env_creator: Callable[[Any], Any]) -> None:
            if validate_config is not None:
                validate_config(config)
            self._policy_class = self._find_policy_class(config)
            if before_init is not None:
                before_init(self)
            self.workers = self._make_workers(
                env_creator=env_creator,
                validate_env=validate_env,
                policy_class=self._policy_class,
                config=self._resolved_config(),
                num_workers=config["num_workers"],
                callbacks=self.callbacks,
            )
            self.train_exec_impl = _checked_plan(name, execution_plan(self.workers, config))
            if after_init is not None:
                after_init(self)

        def _find_policy_class(self, config: Any) -> type[Policy]:
            found = (get_policy_class(config) if get_policy_class is not None else None) or default_policy
            if found is None:
                raise ConfigError(
                    f"{name} has no policy class for this config: give build_trainer default_policy, or a "
                    "get_policy_class that returns one."
                )
            return found

        def step(self) -> dict[str, Any]:
            """One result of the execution plan."""
            return next(self.train_exec_impl)

        @staticmethod
        def with_updates(**overrides: Any) -> type[Trainer]:
            """A Trainer class built from the same parts, but for `overrides` (arguments of `build_trainer`)."""
            unknown = sorted(set(overrides) - set(parts))
            if unknown:
                raise ConfigError(
                    f"with_updates: build_trainer has no {', '.join(unknown)}; it has {', '.join(parts)}."
                )
            return build_trainer(**{**parts, **overrides})

    trainer_cls.__name__ = trainer_cls.__qualname__ = name
    return trainer_cls


def _checked_plan(name: str, plan: Iterable[dict[str, Any]]) -> LocalIterator:
    if not isinstance(plan, LocalIterator):
        raise TrainingError(f"{name}: the execution plan must be a LocalIterator over results, but {plan!r} came.")
    return plan
