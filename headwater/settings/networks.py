"""ModelConfig and OptimizerConfig: what a policy is made of and how it steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from headwater.settings import former as former_names
from headwater.settings.number_types import Bool, Int, OptionalFloat
from headwater.settings.settings import Settings
from headwater.settings.values import check_bool_or_auto, check_filters, check_reference

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
    vf_share_layers: Annotated[Any, BeforeValidator(check_bool_or_auto)] = Field(
        default="auto",
        description="Whether policy and value function share the hidden layers and the memory; 'auto' shares with "
        "images only. Sharing is cheaper, but the value loss then pulls on the policy's features (see vf_loss_coeff).",
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
    custom_preprocessor: Reference = Field(
        default=None,
        description="Your encoding of observations: a class derived from headwater.sampling.preprocessors.Encoder, its "
        "'module:Class', or a name given to ModelCatalog.register_custom_preprocessor; made with the observation "
        "space, without its action mask. None encodes by space.",
        json_schema_extra={"kind": "class | 'module:Class' | name | None"},
    )


# What each optimizer reads, and from where it starts.
OPTIMIZER_DEFAULTS: dict[str, dict[str, float]] = {
    "adam": {"eps": 1e-5, "beta1": 0.9, "beta2": 0.999},
    "sgd": {"momentum": 0.0},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0},
}


class OptimizerConfig(Settings):
    """The gradient step; its size is `lr`. Settings at None have the chosen optimizer's own default."""

    name: Literal["adam", "sgd", "rmsprop"] = Field(
        default="adam",
        description="Which optimizer: Adam, stochastic gradient descent with momentum, or RMSprop; by torch's formulas "
        "in every framework.",
    )
    eps: OptionalFloat = Field(
        default=None,
        gt=0,
        description="adam (1e-5), rmsprop (1e-8): term against division by zero. Larger damps rarely moved weights.",
    )
    beta1: OptionalFloat = Field(
        default=None, ge=0, lt=1, description="adam (0.9): decay of the gradient's mean. Larger averages longer."
    )
    beta2: OptionalFloat = Field(
        default=None, ge=0, lt=1, description="adam (0.999): decay of the gradient's square. Larger averages longer."
    )
    momentum: OptionalFloat = Field(
        default=None,
        ge=0,
        lt=1,
        description="sgd, rmsprop (0): share of the step before that is taken again. Larger is faster and swings more.",
    )
    alpha: OptionalFloat = Field(
        default=None, ge=0, lt=1, description="rmsprop (0.99): decay of the gradient's square. Larger averages longer."
    )

    def unread(self) -> list[str]:
        """The settings that are given but not read by the chosen optimizer."""
        read = OPTIMIZER_DEFAULTS[self.name]
        return [key for key, value in self.items() if key != "name" and value is not None and key not in read]
