"""PPO: its policy classes, its execution plan and its Trainer (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from headwater.algorithms.ppo.config import DEFAULT_CONFIG, PPOConfig, validate_config
from headwater.algorithms.ppo.loss import ppo_loss
from headwater.data.advantages import gae, returns
from headwater.data.sample_batch import SampleBatch
from headwater.execution.iterators import LocalIterator
from headwater.execution.metric_ops import StandardMetricsReporting
from headwater.execution.rollout_ops import ConcatBatches, ParallelRollouts, SelectExperiences, StandardizeFields
from headwater.execution.train_ops import KeepInfo, TrainOneStep
from headwater.execution.weight_sync import SyncWeights
from headwater.policy.policy import Policy
from headwater.policy.policy_template import build_policy
from headwater.sampling.trajectory import Trajectory
from headwater.sampling.worker_set import WorkerSet
from headwater.trainer_template import build_trainer

__all__ = [
    "DEFAULT_CONFIG",
    "PPOConfig",
    "PPOTrainer",
    "UpdateKL",
    "execution_plan",
    "get_policy_class",
    "validate_config",
]

logger = logging.getLogger(__name__)


def postprocess_ppo(policy: Policy, trajectory: Trajectory) -> None:
    """Add what the loss reads: action_logp, vf_preds, advantages and value_targets, all `[T, N]` float32."""
    config = policy.config
    logp = policy.logp(trajectory.rows(SampleBatch.ACTION_DIST_INPUTS), trajectory.rows(SampleBatch.ACTIONS))
    trajectory.add(SampleBatch.ACTION_LOGP, trajectory.from_rows(logp))
    rewards, cuts = trajectory[SampleBatch.REWARDS], trajectory.cuts
    if config.use_critic:
        values = trajectory.values(policy)
        next_values = trajectory.next_values(values, policy)
        if config.use_gae:
            advantages, targets = gae(rewards, values, next_values, cuts, config.gamma, config.lambda_)
        else:
            targets = returns(rewards, next_values, cuts, config.gamma)
            advantages = targets - values
    else:
        # Without a critic the episodes are whole, so that there is nothing to bootstrap but what a time limit cut off.
        values = next_values = targets = np.zeros_like(rewards)
        advantages = returns(rewards, next_values, cuts, config.gamma)
    trajectory.add(SampleBatch.VF_PREDS, values)
    trajectory.add(SampleBatch.ADVANTAGES, advantages)
    trajectory.add(SampleBatch.VALUE_TARGETS, targets)


class AdaptiveKL:
    """The KL penalty's coefficient, adapted after each batch (Schulman et al. 2017, section 4)."""

    coefficients: dict[str, float]
    config: PPOConfig

    @property
    def kl_coeff(self) -> float:
        """The present coefficient."""
        return self.coefficients["kl_coeff"]

    def update_kl(self, sampled_kl: float) -> float:
        """Half as much again where the KL was more than twice its target, half of it where less than half."""
        if sampled_kl > 2.0 * self.config.kl_target:
            self.coefficients["kl_coeff"] *= 1.5
        elif sampled_kl < 0.5 * self.config.kl_target:
            self.coefficients["kl_coeff"] *= 0.5
        return self.coefficients["kl_coeff"]


def get_policy_class(config: PPOConfig) -> type[Policy]:
    """PPO's policy for `config["framework"]`."""
    return policy_class(config.framework)


def policy_class(framework: str) -> type[Policy]:
    """PPO's policy in one framework; the class is made when first asked for, and imports the framework."""
    if framework not in _POLICY_CLASSES:
        _POLICY_CLASSES[framework] = build_policy(
            {of: name for name, of in _POLICY_NAMES.items()}[framework],
            framework=framework,
            loss=ppo_loss,
            postprocess=postprocess_ppo,
            coefficients=("kl_coeff", "entropy_coeff"),
            mixins=(AdaptiveKL,),
        )
    return _POLICY_CLASSES[framework]


_POLICY_CLASSES: dict[str, type[Policy]] = {}
_POLICY_NAMES = {"PPOTorchPolicy": "torch", "PPOTFPolicy": "tf2", "PPOJAXPolicy": "jax"}


class UpdateKL:
    """Adapt each trained policy's KL coefficient to the KL that its last batch came to."""

    takes = dict
    gives = dict

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers

    def __call__(self, info: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        def update(policy: Any, policy_id: str) -> None:
            if policy_id not in info:
                if policy.kl_coeff:  # 0 is no penalty, which nothing adapts
                    logger.warning("No data for %s: its KL coefficient stays at %g.", policy_id, policy.kl_coeff)
            else:
                policy.update_kl(info[policy_id]["kl"])

        self._workers.local_worker().foreach_trainable_policy(update)
        return info


def warn_about_bad_reward_scales(
    config: PPOConfig, result: dict[str, Any], warned: set[str] | None = None
) -> dict[str, Any]:
    """Warn where the scale of the rewards defeats the value function; the result passes unchanged.

    Args:
        config: PPO's.
        result: of an iteration.
        warned: what was warned of before, and is not again; added to.
    """
    warned = set() if warned is None else warned
    if result["policy_reward_mean"]:
        return result
    for policy_id, stats in result["info"]["learner"].items():
        scaled = config.vf_loss_coeff * stats.get("vf_loss", 0.0)
        if config.model.vf_share_layers is True and scaled > 100 and "vf_loss" not in warned:
            warned.add("vf_loss")
            logger.warning(
                "%s: the value loss (%.4g, vf_loss_coeff included) drowns the policy's in the shared layers: lower "
                "vf_loss_coeff, or set model.vf_share_layers to false.",
                policy_id,
                scaled,
            )
    mean, clip = result["episode_reward_mean"], config.vf_clip_param
    if clip is not None and mean == mean and round(abs(mean) / clip) > 200 and "vf_clip_param" not in warned:
        warned.add("vf_clip_param")
        logger.warning(
            "The mean return %.4g is more than 200 times vf_clip_param (%.4g): the value function will be long in "
            "reaching it. Raise vf_clip_param, set it to null, or scale the rewards.",
            mean,
            clip,
        )
    return result


class WarnAboutBadRewardScales:
    """The plan's step for `warn_about_bad_reward_scales`; warns once of each."""

    takes = dict
    gives = dict

    def __init__(self, config: PPOConfig) -> None:
        self._config = config
        self._warned: set[str] = set()

    def __call__(self, result: dict[str, Any]) -> dict[str, Any]:
        return warn_about_bad_reward_scales(self._config, result, self._warned)


def execution_plan(workers: WorkerSet, config: PPOConfig) -> LocalIterator:
    """Sample a train batch with the present weights, run SGD on it, adapt the KL coefficient, report."""
    rollouts = (
        ParallelRollouts(workers, mode="bulk_sync")
        .for_each(SelectExperiences(workers.trainable_policies()))
        .combine(ConcatBatches(config["train_batch_size"], config["multiagent"]["count_steps_by"]))
    )
    if config.standardize_advantages:
        rollouts = rollouts.for_each(StandardizeFields([SampleBatch.ADVANTAGES]))
    train_op = (
        rollouts.for_each(
            TrainOneStep(workers, num_sgd_iter=config["num_sgd_iter"], sgd_minibatch_size=config["sgd_minibatch_size"])
        )
        .for_each(SyncWeights(workers))
        .for_each(KeepInfo())
        .for_each(UpdateKL(workers))
    )
    return StandardMetricsReporting(train_op, workers, config).for_each(WarnAboutBadRewardScales(config))


PPOTrainer = build_trainer(
    "PPO",
    default_config=DEFAULT_CONFIG,
    validate_config=validate_config,
    get_policy_class=get_policy_class,
    execution_plan=execution_plan,
)


def __getattr__(name: str) -> Any:
    """PPOTorchPolicy, PPOTFPolicy and PPOJAXPolicy, each made when first asked for."""
    if name in _POLICY_NAMES:
        return policy_class(_POLICY_NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
