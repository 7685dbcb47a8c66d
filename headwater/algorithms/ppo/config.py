"""PPOConfig: what PPO adds to the common settings, with defaults that learn CartPole-v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from headwater.config import BatchPlan, Schedule, TrainerConfig
from headwater.settings import former as former_names
from headwater.settings.batch_plan import counted
from headwater.settings.number_types import Bool, Float, Int, OptionalFloat
from headwater.settings.problems import Problem


class PPOConfig(TrainerConfig):
    """Settings of proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    Example:
        >>> print(PPOConfig(train_batch_size=2048).batch_plan().updates)
        6 epochs x 16 minibatches of 128 = 96 updates
    """

    former: ClassVar[Mapping[str, str]] = {**former_names.COMMON, **former_names.PPO}

    sgd_minibatch_size: Int = Field(
        default=128,
        ge=0,
        description="Rows of one update, about: an epoch is split evenly. 0: the whole batch. Larger is steadier.",
    )
    num_sgd_iter: Int = Field(
        default=6,
        ge=1,
        description="Epochs over each train batch. More learns more from it and strays further from what sampled it.",
    )
    clip_param: Float = Field(
        default=0.2,
        gt=0,
        description="How far the probability ratio may move from 1 before its gain is cut. Larger: bolder updates.",
    )
    vf_loss_coeff: Float = Field(
        default=0.5,
        ge=0,
        description="Weight of the value loss. Matters most where policy and value function share layers.",
    )
    vf_clip_param: OptionalFloat = Field(
        default=None,
        gt=0,
        description="How far a value prediction may move per batch, in units of return; None: freely.",
    )
    entropy_coeff: Float = Field(
        default=0.0,
        ge=0,
        description="Bonus for entropy, where entropy_coeff_schedule is not set. Larger keeps exploring longer.",
    )
    entropy_coeff_schedule: Schedule = Field(
        default=None,
        description="entropy_coeff by env steps, in place of it; forms as lr_schedule.",
        json_schema_extra={"kind": "schedule | None"},
    )
    kl_coeff: Float = Field(
        default=0.0,
        ge=0,
        description="Initial weight of the KL penalty, adapted after each batch to hold the KL near kl_target; 0: no "
        "penalty.",
    )
    kl_target: Float = Field(
        default=0.01, gt=0, description="KL divergence per batch that kl_coeff aims at. Larger: bolder updates."
    )
    use_critic: Bool = Field(
        default=True, description="Subtract a learned value from the returns; false: returns only."
    )
    use_gae: Bool = Field(
        default=True, description="Generalised advantage estimation; false: discounted returns less the value."
    )
    standardize_advantages: Bool = Field(
        default=True, description="Scale the train batch's advantages to mean 0 and deviation 1."
    )

    def combination_problems(self) -> list[Problem]:
        problems = super().combination_problems()
        if self.sgd_minibatch_size > self.train_batch_size:
            problems.append(Problem(
                "sgd_minibatch_size",
                f"must be at most train_batch_size, {self.train_batch_size}, but {self.sgd_minibatch_size} came "
                "(0 takes the whole batch)",
            ))  # fmt: skip
        if self.batch_mode == "truncate_episodes" and not self.use_gae:
            problems.append(Problem(
                "use_gae", "false needs whole episodes: set batch_mode to 'complete_episodes', or use_gae to true"
            ))  # fmt: skip
        if self.use_gae and not self.use_critic:
            problems.append(Problem("use_critic", "false leaves GAE without values: set use_gae to false as well"))
        return problems

    def batch_plan(self, num_envs: int | None = None) -> BatchPlan:
        plan = super().batch_plan(num_envs)
        parts = max(1, round(plan.train_batch_size / (self.sgd_minibatch_size or plan.train_batch_size)))
        rows, over = divmod(plan.train_batch_size, parts)
        size = f"{'' if plan.exact and not over else 'about '}{rows}"
        return plan.with_updates(
            f"{counted(self.num_sgd_iter, 'epoch')} x {counted(parts, 'minibatch', 'es')} of {size} = "
            f"{counted(self.num_sgd_iter * parts, 'update')}"
        )


DEFAULT_CONFIG = PPOConfig()


def validate_config(config: PPOConfig | Mapping[str, Any]) -> None:
    """Refuse combinations of settings that PPO cannot work with.

    Raises:
        ConfigError: naming each.
    """
    (config if isinstance(config, PPOConfig) else PPOConfig(**config)).check()
