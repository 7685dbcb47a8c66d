"""Workers whose samples go to files, as the trainer's do: with the successors of the rows."""

from __future__ import annotations

from typing import Any

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
from headwater.data.sample_batch import SampleBatch
from headwater.registry import env_creator_for
from headwater.sampling.rollout_worker import RolloutWorker


def make_worker(env: Any = "CartPole-v1", **settings: Any) -> RolloutWorker:
    base = {"num_envs_per_worker": 4, "train_batch_size": 256, "sgd_minibatch_size": 64, "seed": 0}
    config = PPOConfig(**{**base, **settings})
    env_id, creator = env_creator_for(env)
    return RolloutWorker(env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config)


def sample(worker: RolloutWorker) -> SampleBatch:
    """A fragment with `new_obs`, postprocessed; in sequences for a policy with memory."""
    trajectory = worker.sampler.sample()
    trajectory.add(SampleBatch.NEW_OBS, trajectory.new_obs())
    next(iter(worker.policy_map.values())).postprocess_trajectory(trajectory)
    return trajectory.fold(trajectory.to_batch())
