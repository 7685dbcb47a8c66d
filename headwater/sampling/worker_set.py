"""WorkerSet: the local worker, and its remote twins where there are any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.config import TrainerConfig
from headwater.engines import Engine, InlineEngine
from headwater.policy.policy import Policy
from headwater.sampling.rollout_worker import RolloutWorker


class WorkerSet:
    """The workers of one config.

    Args:
        env_creator: makes one env from an `EnvContext`.
        validate_env: called with (env, env_context) wherever an env is made.
        policy_class: of the default policy.
        trainer_config: the whole config.
        num_workers: remote workers.
        logdir: the run's directory.
        env_id: for messages.
        callbacks: an instance for the local worker; default: made from the config.
    """

    def __init__(
        self,
        *,
        env_creator: Callable[[Any], Any],
        policy_class: type[Policy],
        trainer_config: TrainerConfig,
        validate_env: Callable[[Any, Any], None] | None = None,
        num_workers: int = 0,
        logdir: Path | str | None = None,
        env_id: str = "env",
        callbacks: Any = None,
    ) -> None:
        self.config = trainer_config
        self.logdir = logdir
        self.engine: Engine = InlineEngine()
        self._remote_workers: list[Any] = []
        self._local_worker = RolloutWorker(
            env_creator=env_creator,
            policy_class=policy_class,
            config=trainer_config,
            env_id=env_id,
            validate_env=validate_env,
            num_workers=num_workers,
            callbacks=callbacks,
            log_dir=logdir,
        )

    def local_worker(self) -> RolloutWorker:
        """The worker in this process: the one that learns."""
        return self._local_worker

    def remote_workers(self) -> list[Any]:
        """Handles of the workers in other processes."""
        return self._remote_workers

    def sync_weights(self) -> None:
        """Send the local worker's weights to all remote ones."""
        if self._remote_workers:
            weights = self.engine.put(self._local_worker.get_weights())
            self.engine.gather(self._remote_workers, "set_weights", weights)

    def foreach_worker(self, function: Callable[[Any], Any]) -> list[Any]:
        """`function(worker)` in each worker; the local one's result first."""
        return [function(self._local_worker), *self.engine.gather(self._remote_workers, "apply", function)]

    def foreach_worker_with_index(self, function: Callable[[Any, int], Any]) -> list[Any]:
        """`function(worker, index)` in each worker; the local one has index 0."""
        return self.foreach_worker(lambda worker: function(worker, worker.worker_index))

    def foreach_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for each policy of each worker."""
        return [result for results in self.foreach_worker(lambda w: w.foreach_policy(function)) for result in results]

    def trainable_policies(self) -> list[str]:
        """Ids of the policies that are trained."""
        return list(self._local_worker.policies_to_train)

    def foreach_trainable_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for each trained policy of each worker."""
        results = self.foreach_worker(lambda w: w.foreach_trainable_policy(function))
        return [result for part in results for result in part]

    def stop(self) -> None:
        """Close all workers' envs."""
        self._local_worker.stop()
