"""TrainerConfig: every common setting once, typed, bounded and documented; it also reads as a dict.

The names are those of the RLlib 1.x line; `former_settings.py` says what became of the names that are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from headwater import former_settings
from headwater.batch_plan import BatchPlan, solve
from headwater.callbacks import DefaultCallbacks
from headwater.config_values import (
    check_callbacks,
    check_clip_rewards,
    check_device,
    check_env,
    check_exploration,
    check_filters,
    check_fragment,
    check_framework,
    check_log_level,
    check_num_workers,
    check_reference,
    check_schedule,
    check_share,
)
from headwater.errors import ConfigError
from headwater.settings import (
    NOT_IMPORTABLE,
    Bool,
    Float,
    Int,
    OptionalFloat,
    OptionalInt,
    Problem,
    Settings,
    SettingsError,
    changes,
    copied,
    mark_set,
    plain,
    shown,
)

__all__ = ["BatchPlan", "ModelConfig", "OptimizerConfig", "TrainerConfig", "merge_config"]

Schedule = Annotated[Any, BeforeValidator(check_schedule)]
Reference = Annotated[Any, BeforeValidator(check_reference)]
Activation = Literal["tanh", "relu", "elu", "silu", "linear"]


class ModelConfig(Settings):
    """The networks of a policy, by shape; or a class of your own."""

    former: ClassVar[Mapping[str, str]] = former_settings.MODEL

    fcnet_hiddens: list[Annotated[Int, Field(ge=1)]] = Field(
        [64, 64], description="Widths of the dense hidden layers for vector observations. Wider fits more and acts slower."
    )
    fcnet_activation: Activation = Field("tanh", description="Activation after each dense hidden layer.")
    conv_filters: Annotated[list[list[int]] | None, BeforeValidator(check_filters)] = Field(
        None,
        description="Convolutions for images, [[channels, kernel, stride], ...]; None chooses by image size "
        "(for 84x84 the usual Atari stack).",
    )
    conv_activation: Activation = Field("relu", description="Activation after each convolution and dense layer behind it.")
    post_fcnet_hiddens: list[Annotated[Int, Field(ge=1)]] = Field(
        [512], description="Widths of the dense layers between the convolutions and the outputs; images only."
    )
    free_log_std: Bool = Field(
        True,
        description="Gaussian policies: log standard deviations are parameters of their own rather than outputs of the "
        "network that depend on the observation.",
    )
    vf_share_layers: Annotated[Any, BeforeValidator(check_share)] = Field(
        "auto",
        description="Whether policy and value function share the hidden layers; 'auto' shares for images only. Sharing is "
        "cheaper, but the value loss then pulls on the policy's features (see vf_loss_coeff).",
        json_schema_extra={"kind": "bool | 'auto'"},
    )
    orthogonal_init: Bool = Field(
        True, description="Orthogonal initial weights (gain by activation, 0.01 for the policy's output); else fan-in scaled."
    )
    custom_model: Reference = Field(
        None,
        description="Your model: a class, 'module:Class', or a name given to ModelCatalog.register_custom_model.",
        json_schema_extra={"kind": "class | 'module:Class' | name | None"},
    )
    custom_model_config: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for custom_model; any keys. Merged."
    )
    custom_action_dist: Reference = Field(
        None,
        description="Your action distribution: a class, 'module:Class', or a name given to "
        "ModelCatalog.register_custom_action_dist; None chooses by action space.",
        json_schema_extra={"kind": "class | 'module:Class' | name | None"},
    )


class OptimizerConfig(Settings):
    """The gradient step; its size is `lr`."""

    name: Literal["adam"] = Field("adam", description="Which optimizer.")
    eps: Float = Field(1e-5, gt=0, description="Adam's term against division by zero. Larger damps rarely moved weights.")
    beta1: Float = Field(0.9, ge=0, lt=1, description="Adam's decay of the gradient's mean. Larger averages longer.")
    beta2: Float = Field(0.999, ge=0, lt=1, description="Adam's decay of the gradient's square. Larger averages longer.")


class TrainerConfig(Settings):
    """The settings that all algorithms share.

    Example:
        >>> config = TrainerConfig(gamma=0.98, num_envs_per_worker=4)
        >>> config["gamma"], config.train_batch_size, config["lambda"]
        (0.98, 1024, 0.95)
        >>> print(config.batch_plan().text)
        train batch: 1024 rows = 1 round x 1 sampler x 4 envs x 256 steps
    """

    former: ClassVar[Mapping[str, str]] = former_settings.COMMON

    # The world.
    env: Annotated[Any, BeforeValidator(check_env)] = Field(
        None,
        description="The environment: a Gymnasium id, 'module:EnvId', a name given to register_env, an env class, or a "
        "function of the env context.",
        json_schema_extra={"kind": "id | 'module:EnvId' | class | callable"},
    )
    env_config: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for the env's constructor; any keys. Merged."
    )
    horizon: OptionalInt = Field(
        None, ge=1, description="Steps after which an episode is truncated (never terminated) and reset; None: the env decides."
    )
    vectorization: Literal["auto", "native", "sync", "async"] = Field(
        "auto",
        description="How the envs of one sampler are stepped: by the env's own vector version, as copies in this process, "
        "or as one process each (worth it from about a millisecond per step); 'auto': native where there is one, else sync.",
    )
    normalize_actions: Bool = Field(
        True, description="Box actions: the policy's [-1, 1] is stretched onto the env's bounds, and clipped to them."
    )
    clip_actions: Bool = Field(
        True, description="Box actions that are not normalised are clipped to the env's bounds before the env sees them."
    )
    clip_rewards: Annotated[bool | float | None, BeforeValidator(check_clip_rewards)] = Field(
        None,
        description="What is learned from: true: the reward's sign; a number c: clipped to [-c, c]; null or false: as it is. "
        "Reported returns are always raw.",
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = Field(
        "NoFilter", description="MeanStdFilter shifts and scales each observation feature by its running mean and deviation."
    )
    synchronize_filters: Bool = Field(
        True, description="Whether the evaluation's sampler takes over the training sampler's filter before it evaluates."
    )
    on_env_error: Literal["raise", "reset"] = Field(
        "raise", description="An env that raises: stop, or drop that sub-env's running episode, make it anew and go on."
    )
    max_env_errors_in_a_row: Int = Field(
        10, ge=1, description="With on_env_error or on_bad_values 'reset': errors of one sub-env without a good step between "
        "that stop the run.",
    )  # fmt: skip
    on_bad_values: Literal["raise", "reset"] = Field(
        "raise", description="NaN, infinite or out-of-space observations and rewards: stop, or drop the episode and reset."
    )
    check_env_steps: Bool = Field(
        False,
        description="Check each observation against its space at every step rather than at the first and every 100th; that "
        "all numbers are finite is always checked.",
    )

    # Sampling and the train batch.
    num_workers: Annotated[int, BeforeValidator(check_num_workers)] = Field(
        0, ge=0, description="Remote samplers. Only 0 (sample in this process) is available yet."
    )
    num_envs_per_worker: Int = Field(
        8, ge=1, description="Envs that each sampler steps together. More makes steps cheaper and batches less correlated."
    )
    rollout_fragment_length: Annotated[Any, BeforeValidator(check_fragment)] = Field(
        "auto",
        description="Steps of each env in one fragment; 'auto' follows from train_batch_size (one round). Longer fragments "
        "bootstrap less.",
        json_schema_extra={"kind": "int | 'auto'", "bounds": ">= 1"},
    )
    train_batch_size: Int = Field(
        1024,
        ge=1,
        description="Env steps per iteration, equal to rounds * max(1, num_workers) * num_envs_per_worker * "
        "rollout_fragment_length. Larger gives steadier and rarer updates.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        "truncate_episodes",
        description="Fragments of fixed length whose cut ends are bootstrapped, or whole episodes (at least the batch's rows).",
    )
    explore: Bool = Field(True, description="Sample actions; false takes the distribution's deterministic action.")
    exploration_config: Annotated[dict[str, Any], AfterValidator(check_exploration)] = Field(
        default_factory=lambda: {"type": "StochasticSampling"},
        description="How exploring is done: {'type': 'StochasticSampling', 'random_timesteps': 0}: first that many steps of "
        "uniformly random actions. Merged; replaced whole when its type changes.",
    )
    seed: OptionalInt = Field(
        None, ge=0, lt=2**63, description="Of all randomness: weights, actions, shuffles, and each env by its index. None: fresh."
    )

    # Learning.
    framework: Annotated[str, BeforeValidator(check_framework)] = Field(
        "torch", description="What learns. Only 'torch' is available yet.", json_schema_extra={"kind": "'torch'"}
    )
    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per step. Larger looks further ahead, with more variance.")
    lambda_: Float = Field(
        0.95, alias="lambda", ge=0, le=1, description="GAE's mix: 0 trusts the value function, 1 the observed returns."
    )
    lr: Float = Field(
        1e-3, ge=0, description="Step size of the optimizer, where lr_schedule is not set. Larger learns faster, less stably."
    )
    lr_schedule: Schedule = Field(
        None,
        description="Learning rate by env steps, in place of lr: [[timestep, value], ...] (linear between), or a dict of "
        "type linear, cosine or piecewise.",
        json_schema_extra={"kind": "schedule | None"},
    )
    grad_clip: OptionalFloat = Field(
        0.5, gt=0, description="The gradient is scaled down to this global norm; None: never. Smaller is steadier and slower."
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="The networks. Merged.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="The optimizer. Merged.")
    max_bad_updates_in_a_row: Int = Field(
        10, ge=1, description="Updates with a non-finite loss or gradient are skipped and counted; so many in a row stop the run."
    )

    # The machine.
    acting: Literal["auto", "numpy", "framework"] = Field(
        "auto",
        description="What computes actions while sampling: NumPy (faster for small dense networks on CPU) or the framework; "
        "'auto': by network and device.",
    )
    device: Annotated[str, BeforeValidator(check_device)] = Field(
        "auto",
        description="Where the policy learns: 'cpu', 'cuda' or 'cuda:<index>'; 'auto': a GPU only where the network is large "
        "enough to gain from it.",
        json_schema_extra={"kind": "'auto' | 'cpu' | 'cuda' | 'cuda:<index>'"},
    )
    torch_num_threads: Int = Field(
        1, ge=1, description="CPU threads of one operation. Small networks lose by more than one, large ones gain."
    )
    torch_compile: Bool = Field(
        False, description="Compile the update: a minute or so at the start, faster updates afterwards."
    )
    num_cpus_for_driver: Int = Field(1, ge=0, description="CPUs that the run asks for in default_resource_request.")
    num_cpus_per_worker: Int = Field(1, ge=0, description="CPUs that default_resource_request asks for per remote sampler.")
    memory: Int = Field(0, ge=0, description="Bytes of memory that default_resource_request asks for; 0: no demand.")
    object_store_memory: Int = Field(
        0, ge=0, description="Bytes of object store that default_resource_request asks for; 0: no demand."
    )

    # Hooks.
    callbacks: Annotated[Any, BeforeValidator(check_callbacks)] = Field(
        DefaultCallbacks,
        description="Your hooks: a subclass of DefaultCallbacks, an instance of one, or 'module:Class'.",
        json_schema_extra={"kind": "class | instance | 'module:Class'"},
    )

    # Results and files.
    metrics_smoothing_episodes: Int = Field(
        100, ge=1, description="Episodes that episode_reward_mean and its like are taken over."
    )
    min_iter_time_s: Float = Field(0.0, ge=0, description="Seconds that one train() lasts at least, doing several rounds.")
    timesteps_per_iteration: Int = Field(
        0, ge=0, description="Env steps that one train() makes at least, doing several rounds."
    )
    log_level: Annotated[str, BeforeValidator(check_log_level)] = Field(
        "WARN",
        description="Least severe log messages shown.",
        json_schema_extra={"kind": "'DEBUG' | 'INFO' | 'WARN' | 'ERROR'"},
    )
    log_sys_usage: Bool = Field(True, description="Add CPU and memory load of the machine to each result.")
    local_dir: str = Field("runs", min_length=1, description="Directory under which run directories are made.")
    tensorboard: Bool = Field(True, description="Write TensorBoard events into the run directory.")

    # Evaluation.
    evaluation_interval: OptionalInt = Field(
        None, ge=1, description="Evaluate after every so many iterations; None: only when asked to."
    )
    evaluation_num_episodes: Int = Field(10, ge=1, description="Episodes of one evaluation. More narrows the estimate.")
    evaluation_config: dict[str, Any] = Field(
        default_factory=lambda: {"explore": False},
        description="Settings that differ in evaluation; the keys of this config. Merged.",
    )
    custom_eval_function: Reference = Field(
        None,
        description="Evaluates in place of the built-in: function(trainer, evaluation_workers) -> dict of metrics.",
        json_schema_extra={"kind": "callable | 'module:name' | None"},
    )
    in_evaluation: Bool = Field(False, description="True in the config that evaluation samplers see; set by the library.")

    # Checkpoints.
    checkpoint_freq: Int = Field(0, ge=0, description="Checkpoint after every so many iterations; 0: only at the end.")
    checkpoint_at_end: Bool = Field(True, description="Checkpoint when the run ends or is interrupted.")
    keep_checkpoints_num: OptionalInt = Field(
        5, ge=1, description="Newest checkpoints that are kept, besides the best one; None: all."
    )
    checkpoint_score_attr: str = Field(
        "episode_reward_mean", min_length=1, description="Result key that says which checkpoint is best; with 'min-' before it, "
        "the smallest is.",
    )  # fmt: skip
    checkpoint_barrier: Bool = Field(
        False,
        description="All envs start new episodes after each checkpoint, so that a resumed run equals the one that went on "
        "even where envs cannot be saved.",
    )

    def check(self) -> Self:
        """Check all values again (containers may have been changed in place) and what cannot work together.

        Raises:
            ConfigError: listing every problem found.
        """
        problems: list[Problem] = []
        try:
            type(self)(**plain(self))
        except SettingsError as error:
            problems += error.problems
        problems += self.combination_problems() if not problems else []
        if problems:
            raise SettingsError(type(self).__name__, problems)
        return self

    def combination_problems(self) -> list[Problem]:
        """Settings that are each valid but cannot work together; subclasses add theirs."""
        problems = []
        if not self.in_evaluation:
            problems += self._evaluation_problems()
            try:
                self.batch_plan()
            except ConfigError as error:
                problems.append(Problem("", str(error)))
        if self.acting == "numpy" and self.device.startswith("cuda"):
            problems.append(Problem("acting", "'numpy' reads weights in main memory: it needs device 'cpu'"))
        if self.num_workers == 0 and self.num_cpus_per_worker != 1:
            problems.append(
                Problem("num_cpus_per_worker", "has no effect without remote samplers, which are not available yet: leave it out")
            )
        return problems

    def _evaluation_problems(self) -> list[Problem]:
        forced = sorted(_FORCED_IN_EVALUATION & set(self.evaluation_config))
        problems = [Problem(f"evaluation_config.{key}", "is set by the evaluation itself: leave it out") for key in forced]
        if not problems:
            try:
                self.for_evaluation()
            except SettingsError as error:
                problems = [Problem(f"evaluation_config.{path}", text) for path, text in error.problems]
        return problems

    def batch_plan(self, num_envs: int | None = None) -> BatchPlan:
        """How this config's train batches come about.

        Args:
            num_envs: width of a native vector env that sets its own; else `num_envs_per_worker`.

        Raises:
            ConfigError: the sizes do not fit; names the nearest that do.
        """
        try:
            return solve(
                self.train_batch_size,
                self.num_workers,
                num_envs or self.num_envs_per_worker,
                self.rollout_fragment_length,
                exact=self.batch_mode == "truncate_episodes",
            )
        except ValueError as error:
            raise ConfigError(f"train_batch_size: {error}") from None

    def for_evaluation(self) -> Self:
        """The config that evaluation samplers see: `evaluation_config` merged in, whole episodes, in_evaluation true."""
        merged = _merged_values(plain(self), self.evaluation_config)
        merged |= {"batch_mode": "complete_episodes", "rollout_fragment_length": 1, "in_evaluation": True}
        return type(self)(**merged)

    def checkpoint_score(self) -> tuple[str, Literal["max", "min"]]:
        """The result key that ranks checkpoints, and whether the largest or the smallest is best."""
        if self.checkpoint_score_attr.startswith("min-"):
            return self.checkpoint_score_attr.removeprefix("min-"), "min"
        return self.checkpoint_score_attr, "max"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, resolve: bool = False) -> Self:
        """The config that `to_dict` wrote, with `overrides` merged in.

        Args:
            data: JSON values, for instance of a checkpoint.
            overrides: settings given now; they win, and are how a callable that could not be stored is given again.
            resolve: import what `module:name` references name. False leaves the strings: whoever uses them decides.

        Raises:
            ConfigError: also for a callable that could not be stored and is not among the overrides.
        """
        merged = _merged_values(copied(data), overrides or {})
        lost = list(_lost(merged))
        if lost:
            raise SettingsError(cls.__name__, [
                Problem(path, f"was {text}, which could not be stored: give it again in the config") for path, text in lost
            ])  # fmt: skip
        config = cls(**merged)
        if resolve:
            config._resolve_references()
        return config

    def references(self) -> dict[str, str]:
        """Settings that name code to import as `module:name`, by their path (the env's among them)."""
        found = {path: getattr(owner, name) for path, owner, name in self._reference_fields()} | {"env": self.env}
        return {path: value for path, value in found.items() if isinstance(value, str) and ":" in value}

    def _reference_fields(self) -> list[tuple[str, Settings, str]]:
        own = [(name, self, name) for name in ("callbacks", "custom_eval_function")]
        return own + [(f"model.{name}", self.model, name) for name in ("custom_model", "custom_action_dist")]

    def _resolve_references(self) -> None:
        from headwater.registry import resolve_reference

        for _, owner, name in self._reference_fields():
            value = getattr(owner, name)
            if isinstance(value, str) and ":" in value:
                setattr(owner, name, resolve_reference(value))


_FORCED_IN_EVALUATION = {
    "batch_mode", "rollout_fragment_length", "in_evaluation", "evaluation_config", "evaluation_interval",
    "evaluation_num_episodes", "custom_eval_function",
}  # fmt: skip
_MERGED = ("env_config", "model", "optimizer", "evaluation_config", "exploration_config")


def merge_config(default: TrainerConfig, user: Mapping[str, Any] | TrainerConfig | None) -> TrainerConfig:
    """`default` overlaid by what the user set, checked; neither is changed.

    The dicts env_config, model, optimizer, evaluation_config and exploration_config merge key by key, to their depth,
    except that an exploration_config with another "type" replaces the default's. Of a config object only what was set
    counts.

    Raises:
        ConfigError: see `TrainerConfig.check`.
    """
    cls = type(default)
    if isinstance(user, TrainerConfig):
        cls = type(user) if isinstance(default, type(user)) is False and issubclass(type(user), cls) else cls
        given = changes(user)
    elif user is None or isinstance(user, Mapping):
        given = {("lambda" if key == "lambda_" else key): _as_changes(value) for key, value in (user or {}).items()}
    else:
        raise ConfigError(f"config: must be a dict or a {cls.__name__}, but {shown(user)} came")
    config = cls(**_merged_values(plain(default), given))
    mark_set(config, _merged_values(changes(default), given))
    config.check()
    return config


def _as_changes(value: Any) -> Any:
    return changes(value) if isinstance(value, Settings) else value


def _merged_values(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in given.items():
        old = merged.get(key)
        if key in _MERGED and isinstance(old, Mapping) and isinstance(value, Mapping):
            replace = key == "exploration_config" and value.get("type", old.get("type")) != old.get("type")
            merged[key] = copied(value) if replace else merge_dicts(old, value)
        else:
            merged[key] = copied(value)
    return merged


def merge_dicts(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: `base` overlaid by `given`, dicts inside dicts likewise."""
    merged = {key: copied(value) for key, value in base.items()}
    for key, value in given.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = merge_dicts(merged[key], value) if both else copied(value)
    return merged


def _lost(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping):
        if set(value) == {NOT_IMPORTABLE}:
            yield path, value[NOT_IMPORTABLE]
            return
        for key, item in value.items():
            yield from _lost(item, f"{path}.{key}" if path else str(key))
