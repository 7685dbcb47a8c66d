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
        description="Whether policy and value function share the hidden layers; 'auto' shares for images only. Sharing "
        "is cheaper, but the value loss then pulls on the policy's features (see vf_loss_coeff).",
        json_schema_extra={"kind": "bool | 'auto'"},
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
