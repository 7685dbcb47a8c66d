"""Advantage-weighted regression (Peng et al. 2019, arXiv:1910.00177), made up for the tests: config, loss and plan."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headwater import build_policy, build_trainer
from headwater.config import Schedule, TrainerConfig
from headwater.data.advantages import gae
from headwater.execution.metric_ops import StandardMetricsReporting
from headwater.execution.rollout_ops import ConcatBatches, ParallelRollouts, StandardizeFields
from headwater.execution.train_ops import TrainOneStep
from headwater.settings.number_types import Float, Int


class AWRConfig(TrainerConfig):
    """Weights are exp(advantage / temperature)."""

    temperature: Float = Field(default=1.0, gt=0, description="Larger tells good actions from bad ones less.")
    temperature_schedule: Schedule = Field(default=None, description="The temperature by env steps.")
    num_epochs: Int = Field(default=4, ge=1, description="Passes over each batch.")


def awr_loss(
    ops: Any, dist: Any, old_dist: Any, values: Any, batch: Any, coeffs: Any, config: Any
) -> tuple[Any, dict[str, Any]]:
    weights = ops.exp(ops.clip(batch["advantages"] / coeffs["temperature"], None, 3.0))
    regression = -ops.mean(weights * dist.logp(batch["actions"]))
    value_loss = ops.mean(ops.square(values - batch["value_targets"]))
    return regression + 0.5 * value_loss, {"regression_loss": regression, "vf_loss": value_loss}


def postprocess(policy: Any, trajectory: Any) -> None:
    values = trajectory.values(policy)
    following, config = trajectory.next_values(values, policy), policy.config
    advantages, targets = gae(trajectory["rewards"], values, following, trajectory.cuts, config.gamma, config["lambda"])
    trajectory.add("advantages", advantages)
    trajectory.add("value_targets", targets)


def awr_policy(config: AWRConfig) -> type:
    return build_policy(
        "AWRPolicy", framework=config.framework, loss=awr_loss, postprocess=postprocess, coefficients=["temperature"]
    )


def awr_plan(workers: Any, config: AWRConfig) -> Any:
    rollouts = ParallelRollouts(workers, mode="bulk_sync").combine(ConcatBatches(config.train_batch_size))
    train = TrainOneStep(workers, num_sgd_iter=config.num_epochs, sgd_minibatch_size=64)
    return StandardMetricsReporting(
        rollouts.for_each(StandardizeFields(["advantages"])).for_each(train), workers, config
    )


AWRTrainer = build_trainer("AWR", default_config=AWRConfig, get_policy_class=awr_policy, execution_plan=awr_plan)
