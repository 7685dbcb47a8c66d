"""Workers without envs or networks: enough of their methods for plans to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwater.data import SampleBatch
from headwater.engines import InlineEngine
from headwater.sampling.metrics import RolloutMetrics


class FakePolicy:
    """Learns by counting."""

    def __init__(self) -> None:
        self.learned: list[tuple[int, int, int]] = []
        self.target_updates = 0

    def learn_on_batch(self, batch: SampleBatch, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0) -> dict:
        self.learned.append((batch.count, num_sgd_iter, sgd_minibatch_size))
        return {"total_loss": 1.0 / len(self.learned)}

    def update_target(self) -> None:
        self.target_updates += 1


class FakeWorker:
    """Samples `rows` numbered rows at a time; an episode ends every `episode_length` rows, its reward is its length."""

    def __init__(self, index: int = 0, rows: int = 4, episode_length: int = 6) -> None:
        self.index = index
        self.rows = rows
        self.episode_length = episode_length
        self.samples = 0
        self.weights = 0
        self.timestep = 0
        self.policy = FakePolicy()
        self.policies_to_train = ["default_policy"]
        self.applied: list[Any] = []
        self._episodes: list[RolloutMetrics] = []

    def sample(self) -> SampleBatch:
        start = self.samples * self.rows
        self.samples += 1
        for _ in range((start + self.rows) // self.episode_length - start // self.episode_length):
            self._episodes.append(RolloutMetrics(self.episode_length, float(self.episode_length)))
        rows = np.arange(start, start + self.rows)
        return SampleBatch(
            {
                "obs": rows.astype(np.float32)[:, None],
                "advantages": rows.astype(np.float32),
                "worker": np.full(self.rows, self.index),
                "weights": np.full(self.rows, self.weights),
            }
        )

    def apply(self, fn: Any, *args: Any) -> Any:
        return fn(self, *args)

    def get_metrics(self) -> list[RolloutMetrics]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def get_estimates(self) -> dict[str, dict[str, float]]:
        return {}

    def perf_stats(self) -> dict[str, float]:
        return {"mean_env_wait_ms": 1.0 + self.index, "mean_inference_ms": 2.0}

    def learn_on_batch(
        self, batch: Any, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0, policies: Sequence[str] = ()
    ) -> dict[str, Any]:
        return {
            policy_id: self.get_policy(policy_id).learn_on_batch(part, num_sgd_iter, sgd_minibatch_size)
            for policy_id, part in batch.as_multi_agent().policy_batches.items()
            if policy_id in (policies or self.policies_to_train) and part.count
        }

    def get_policy(self, policy_id: str) -> FakePolicy:
        return self.policy

    def get_weights(self, policies: list[str] | None = None) -> int:
        return self.weights

    def set_weights(self, weights: int, global_vars: dict[str, int] | None = None) -> None:
        self.weights = weights
        if global_vars:
            self.set_global_vars(global_vars)

    def set_global_vars(self, global_vars: dict[str, int]) -> None:
        self.timestep = global_vars["timestep"]

    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        return {"w": np.array([batch["obs"].mean()])}, {"loss": 0.5}

    def apply_gradients(self, gradients: dict[str, np.ndarray]) -> None:
        self.applied.append(gradients)
        self.weights += 1


class FakeWorkerSet:
    """A local worker and, by choice, twins of it in this process."""

    def __init__(self, num_workers: int = 0, **kwargs: Any) -> None:
        self.engine = InlineEngine()
        self._local = FakeWorker(**kwargs)
        self._remote = [FakeWorker(index=i + 1, **kwargs) for i in range(num_workers)]

    def local_worker(self) -> FakeWorker:
        return self._local

    def remote_workers(self) -> list[FakeWorker]:
        return self._remote

    def trainable_policies(self) -> list[str]:
        return ["default_policy"]


CONFIG = {"timesteps_per_iteration": 0, "min_iter_time_s": 0, "metrics_smoothing_episodes": 100}
