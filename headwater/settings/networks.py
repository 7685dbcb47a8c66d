"""ModelConfig and OptimizerConfig: what a policy is made of and how it steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from headwater.settings import former as former_names
from headwater.settings.number_types import Bool, Float, Int
from headwater.settings.settings import Settings
from headwater.settings.values import check_filters, check_reference, check_share

Reference = Annotated[Any, BeforeValidator(check_reference)]
Activation = Literal["tanh", "relu", "elu", "silu", "linear"]


class ModelConfig(Settings):
    """The networks of a policy, by shape; or a class of your own."""

    former: ClassVar[Mapping[str, str]] = former_names.MODEL

    fcnet_hiddens: list[Annotated[Int, Field(ge=1)]] = Field(
        default=[64, 64],
        description="Widths of the dense hidden layers for vector observations. Wider fits more and acts slower.",
    )
    fcnet_activation: Activation = Field(default="tanh", description="Activation after each dense hidden layer.")
    conv_filters: Annotated[list[list[int]] | None, BeforeValidator(check_filters)] = Field(
        default=None,
        description="Convolutions for images, [[channels, kernel, stride], ...]; None chooses by image size (for 84x84 "
        "the usual Atari stack).",
    )
    conv_activation: Activation = Field(
        default="relu", description="Activation after each convolution and dense layer behind it."
    )
    post_fcnet_hiddens: list[Annotated[Int, Field(ge=1)]] = Field(
        default=[512], description="Widths of the dense layers between the convolutions and the outputs; images only."
    )
    free_log_std: Bool = Field(
        default=True,
        description="Gaussian policies: log standard deviations are parameters of their own rather than outputs of the "
        "network that depend on the observation.",
    )
    vf_share_layers: Annotated[Any, BeforeValidator(check_share)] = Field(
        default="auto",
        description="Whether policy and value function share the hidden layers and the memory; 'auto' shares with "
        "images and with memory only. Sharing is cheaper, but the value loss then pulls on the policy's features (see "
        "vf_loss_coeff).",
        json_schema_extra={"kind": "bool | 'auto'"},
    )
    memory: Literal["lstm", "gru", "attention"] | None = Field(
        default=None,
        description="What remembers earlier steps of an episode, between the hidden layers and the outputs: an LSTM, a "
        "GRU, or causal attention over the last attention_window steps (GTrXL); None: nothing, for observations that "
        "tell all.",
    )
    memory_size: Int = Field(
        default=64, ge=1, description="Width of the memory: units of the LSTM or GRU, features of the attention."
    )
    max_seq_len: Int = Field(
        default=32,
        ge=1,
        description="With memory: steps through which a gradient flows back; fragments are cut into sequences of at "
        "most so many. Longer learns longer dependencies and costs more per row.",
    )
    attention_window: Int = Field(default=32, ge=1, description="Steps back that attention sees, beside the present.")
    attention_blocks: Int = Field(default=1, ge=1, description="Attention blocks one after the other.")
    attention_heads: Int = Field(default=2, ge=1, description="Heads of each block; memory_size is a multiple of it.")
    use_prev_action: Bool = Field(
        default=False, description="The policy also sees the action before (zeros at an episode's start)."
    )
    use_prev_reward: Bool = Field(
        default=False, description="The policy also sees the reward before, as learned from (0 at an episode's start)."
    )
    orthogonal_init: Bool = Field(
        default=True,
        description="Orthogonal initial weights (gain by activation, 0.01 for the policy's output); else Glorot "
        "uniform ones times the same gain.",
    )
    custom_model: Reference = Field(
        default=None,
        description="Your model: a class, 'module:Class', or a name given to ModelCatalog.register_custom_model.",
        json_schema_extra={"kind": "class | 'module:Class' | name | None"},
    )
    custom_model_config: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for custom_model; any keys. Merged."
    )
    custom_action_dist: Reference = Field(
        default=None,
        description="Your action distribution: a class, 'module:Class', or a name given to "
        "ModelCatalog.register_custom_action_dist; None chooses by action space.",
        json_schema_extra={"kind": "class | 'module:Class' | name | None"},
    )


class OptimizerConfig(Settings):
    """The gradient step; its size is `lr`."""

    name: Literal["adam"] = Field(default="adam", description="Which optimizer.")
    eps: Float = Field(
        default=1e-5, gt=0, description="Adam's term against division by zero. Larger damps rarely moved weights."
    )
    beta1: Float = Field(
        default=0.9, ge=0, lt=1, description="Adam's decay of the gradient's mean. Larger averages longer."
    )
    beta2: Float = Field(
        default=0.999, ge=0, lt=1, description="Adam's decay of the gradient's square. Larger averages longer."
    )
