"""TrainerConfig: every common setting once, typed, bounded and documented; it also reads as a dict.

The names are those of the RLlib 1.x line; `settings/former.py` says what became of the names that are not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from headwater.callbacks import DefaultCallbacks
from headwater.errors import ConfigError
from headwater.settings import former as former_names
from headwater.settings import values
from headwater.settings.batch_plan import BatchPlan, solve
from headwater.settings.merging import merge_config, merged_values, restored_values
from headwater.settings.multi_agent import MultiAgentConfig, PolicySpec
from headwater.settings.networks import ModelConfig, OptimizerConfig, Reference
from headwater.settings.number_types import Bool, Float, Int, OptionalFloat, OptionalInt
from headwater.settings.problems import Problem, SettingsError
from headwater.settings.schedule_data import check_schedule
from headwater.settings.settings import Settings, plain

__all__ = [
    "BatchPlan", "ModelConfig", "MultiAgentConfig", "OptimizerConfig", "PolicySpec", "Schedule", "TrainerConfig",
    "merge_config",
]  # fmt: skip

DEFAULT_POLICY_ID = "default_policy"

Schedule = Annotated[Any, BeforeValidator(check_schedule)]

_SET_BY_EVALUATION = {
    "batch_mode", "rollout_fragment_length", "in_evaluation", "evaluation_config", "evaluation_interval",
    "evaluation_num_episodes", "custom_eval_function", "input", "output",
}  # fmt: skip
# A policy evaluated with others of these would be another policy, or in a world that it was not trained for.
_AS_IN_TRAINING = {"model", "observation_filter", "normalize_actions", "action_mask_from_info"}


class TrainerConfig(Settings):
    """The settings that all algorithms share.

    Example:
        >>> config = TrainerConfig(gamma=0.98, num_envs_per_worker=4)
        >>> config["gamma"], config.train_batch_size, config["lambda"]
        (0.98, 1024, 0.95)
        >>> print(config.batch_plan().text)
        train batch: 1024 rows = 1 round x 1 sampler x 4 envs x 256 steps
    """

    former: ClassVar[Mapping[str, str]] = former_names.COMMON

    # The world.
    env: Annotated[Any, BeforeValidator(values.check_env)] = Field(
        default=None,
        description="The environment: a Gymnasium id, 'module:EnvId', a name given to register_env, an env class, or a "
        "function of the env context.",
        json_schema_extra={"kind": "id | 'module:EnvId' | class | callable"},
    )
    env_config: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for the env's constructor; any keys. Merged."
    )
    horizon: OptionalInt = Field(
        default=None,
        ge=1,
        description="Steps after which an episode is truncated (never terminated) and reset; None: the env decides.",
    )
    vectorization: Literal["auto", "native", "sync", "async"] = Field(
        default="auto",
        description="How the envs of one sampler are stepped: by the env's own vector version, as copies in this "
        "process, or as one process each (worth it from about a millisecond per step); 'auto': native "
        "where there is one, else sync.",
    )
    remote_worker_envs: Bool = Field(
        default=False,
        description="Each env is a Ray actor, stepped whenever it is ready: for slow envs of uneven speed. Needs the "
        "extra 'ray'.",
    )
    remote_env_batch_wait_ms: Int = Field(
        default=0,
        ge=0,
        description="With remote_worker_envs: how long one that is ready waits for others to be acted on together. "
        "More makes fewer, larger forward passes.",
    )
    sample_timeout_s: Float = Field(
        default=300.0,
        gt=0,
        description="With remote_worker_envs: an env actor that has not answered for so long is replaced, its episode "
        "dropped.",
    )
    action_mask_from_info: Bool = Field(
        default=False,
        description="The env's info has an 'action_mask' at each reset and step: what it forbids is never done. An "
        "observation that is a Dict with the key 'action_mask' needs no setting.",
    )
    normalize_actions: Bool = Field(
        default=True,
        description="Box actions: the policy's [-1, 1] is stretched onto the env's bounds, and clipped to them.",
    )
    clip_actions: Bool = Field(
        default=True,
        description="Box actions that are not normalised are clipped to the env's bounds before the env sees them.",
    )
    clip_rewards: Annotated[bool | float | None, BeforeValidator(values.check_clip_rewards)] = Field(
        default=None,
        description="What is learned from: true: the reward's sign; a number c: clipped to [-c, c]; null or false: as "
        "it is. Reported returns are always raw.",
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = Field(
        default="NoFilter",
        description="MeanStdFilter shifts and scales each observation feature by its running mean and deviation.",
    )
    synchronize_filters: Bool = Field(
        default=True,
        description="Whether the evaluation's sampler takes over the training sampler's filter before it evaluates; "
        "false: it gathers statistics of its own, which checkpoints do not hold.",
    )
    on_env_error: Literal["raise", "reset"] = Field(
        default="raise",
        description="An env that raises: stop, or drop that sub-env's running episode, make it anew and go on.",
    )
    max_env_errors_in_a_row: Int = Field(
        default=10,
        ge=1,
        description="With on_env_error or on_bad_values 'reset': faults of one sub-env without a whole episode between "
        "that stop the run.",
    )
    on_bad_values: Literal["raise", "reset"] = Field(
        default="raise",
        description="NaN, infinite or out-of-space observations and rewards: stop, or drop the episode and reset.",
    )
    env_hang_warn_s: OptionalFloat = Field(
        default=60.0,
        gt=0,
        description="Seconds after which a warning shows where an env that has not come back is; None: never.",
    )
    check_env_steps: Bool = Field(
        default=False,
        description="Check each observation against its space at every step rather than at the first and every 100th; "
        "that all numbers are finite is always checked.",
    )

    # Sampling and the train batch.
    num_workers: Annotated[int, BeforeValidator(values.check_num_workers)] = Field(
        default=0, ge=0, description="Remote samplers. Only 0 (sample in this process) is available yet."
    )
    num_envs_per_worker: Int = Field(
        default=8,
        ge=1,
        description="Envs that each sampler steps together. More makes steps cheaper and batches less correlated.",
    )
    rollout_fragment_length: Annotated[Any, BeforeValidator(values.check_fragment)] = Field(
        default="auto",
        description="Steps of each env in one fragment; 'auto' follows from train_batch_size (one round). Longer "
        "fragments bootstrap less.",
        json_schema_extra={"kind": "int | 'auto'", "bounds": ">= 1"},
    )
    train_batch_size: Int = Field(
        default=1024,
        ge=1,
        description="Env steps per iteration, equal to rounds * max(1, num_workers) * num_envs_per_worker * "
        "rollout_fragment_length. Larger gives steadier and rarer updates.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        default="truncate_episodes",
        description="Fragments of fixed length whose cut ends are bootstrapped, or whole episodes (at least the "
        "batch's rows).",
    )
    explore: Bool = Field(
        default=True, description="Sample actions; false takes the distribution's deterministic action."
    )
    exploration_config: Annotated[dict[str, Any], AfterValidator(values.check_exploration)] = Field(
        default_factory=lambda: {"type": "StochasticSampling"},
        description="How exploring is done: {'type': 'StochasticSampling', 'random_timesteps': 0}: first that many "
        "steps of uniformly random actions. Merged; replaced whole when its type changes.",
    )
    seed: OptionalInt = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Of all randomness: weights, actions, shuffles, and each env by its index. None: fresh.",
    )

    # Learning.
    framework: Annotated[str, BeforeValidator(values.check_framework)] = Field(
        default="torch",
        description="What learns: 'torch', 'tf2' (TensorFlow 2; 'tf' and 'tfe' mean the same) or 'jax'. All learn "
        "alike, and go on from each other's checkpoints.",
        json_schema_extra={"kind": "'torch' | 'tf2' | 'jax'"},
    )
    gamma: Float = Field(
        default=0.99, ge=0, le=1, description="Discount per step. Larger looks further ahead, with more variance."
    )
    lambda_: Float = Field(
        default=0.95,
        alias="lambda",
        ge=0,
        le=1,
        description="GAE's mix: 0 trusts the value function, 1 the observed returns.",
    )
    lr: Float = Field(
        default=5e-4,
        ge=0,
        description="Step size of the optimizer, where lr_schedule is not set. Larger learns faster, less stably.",
    )
    lr_schedule: Schedule = Field(
        default=None,
        description="Learning rate by env steps, in place of lr: [[timestep, value], ...] (linear between), or a dict "
        "of type linear, cosine or piecewise.",
        json_schema_extra={"kind": "schedule | None"},
    )
    grad_clip: OptionalFloat = Field(
        default=0.5,
        gt=0,
        description="The gradient is scaled down to this global norm; None: never. Smaller is steadier and slower.",
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="The networks. Merged.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="The optimizer. Merged.")
    max_bad_updates_in_a_row: Int = Field(
        default=10,
        ge=1,
        description="Updates with a non-finite loss or gradient are skipped and counted; so many in a row stop the "
        "run.",
    )

    # Experience from elsewhere.
    input: Annotated[Any, BeforeValidator(values.check_input)] = Field(
        default="sampler",
        description="Where experience comes from: 'sampler', the env; a file, directory, glob or list of Parquet "
        "files; 'minari:ID'; {source: share}; or a function of an IOContext that gives an InputReader or external env.",
        json_schema_extra={"kind": "'sampler' | path | [path, ...] | 'minari:ID' | {source: share} | callable"},
    )
    input_config: dict[str, Any] = Field(
        default_factory=dict,
        description="How files are read: batch_rows, shuffle (true), epochs (for ever); any keys for a function's own "
        "reader.",
    )
    input_evaluation: list[Any] = Field(
        default_factory=list,
        description="Off-policy estimates of the policy from what is read: 'is' (importance sampling), 'wis' "
        "(weighted), or classes; into the result's off_policy_estimator.",
        json_schema_extra={"kind": "['is', 'wis', class, ...]"},
    )
    postprocess_inputs: Bool = Field(
        default=False,
        description="Compute the advantages of all rows that are read anew; false: only of those that have none.",
    )
    shuffle_buffer_size: Int = Field(
        default=0, ge=0, description="Rows that are read ahead, from which batches are drawn; 0: in the files' order."
    )
    observation_space: Annotated[Any, BeforeValidator(values.check_space)] = Field(
        default=None,
        description="Of the agents, where experience comes from elsewhere and there is no env to ask.",
        json_schema_extra={"kind": "Space | None"},
    )
    action_space: Annotated[Any, BeforeValidator(values.check_space)] = Field(
        default=None, description="Likewise.", json_schema_extra={"kind": "Space | None"}
    )
    output: Annotated[Any, BeforeValidator(values.check_output)] = Field(
        default=None,
        description="Where all that is sampled is written: a directory or 'logdir' (Parquet), 'minari:ID', or a "
        "function of an IOContext that gives an OutputWriter; None: nowhere.",
        json_schema_extra={"kind": "path | 'logdir' | 'minari:ID' | callable | None"},
    )
    output_config: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the writer.")
    output_compress_columns: list[str] = Field(
        default_factory=lambda: ["obs", "new_obs"],
        description="Columns that are compressed; the others are written as they are.",
    )
    output_max_file_size: Int = Field(
        default=64 * 1024 * 1024, ge=1, description="Bytes after which a new file begins, about."
    )

    # Several agents.
    multiagent: MultiAgentConfig = Field(
        default_factory=MultiAgentConfig, description="Policies, who is played by which, and which learn. Merged."
    )

    # The machine.
    acting: Literal["auto", "numpy", "framework"] = Field(
        default="auto",
        description="What computes actions while sampling: NumPy (faster for small dense networks on CPU) or the "
        "framework; 'auto': by network and device.",
    )
    device: Annotated[str, BeforeValidator(values.check_device)] = Field(
        default="auto",
        description="Where the policy learns: 'cpu', 'cuda' or 'cuda:<index>', in every framework; 'auto': a GPU only "
        "where there is one and the network is large enough to gain from it.",
        json_schema_extra={"kind": "'auto' | 'cpu' | 'cuda' | 'cuda:<index>'"},
    )
    num_threads: Int = Field(
        default=1,
        ge=1,
        description="CPU threads of one operation, in the framework and in NumPy. Small networks lose by more than "
        "one, large ones gain.",
    )
    compile: Annotated[bool | str, BeforeValidator(values.check_bool_or_auto)] = Field(
        default="auto",
        description="Compile the update: some seconds in tf2 and jax, a minute in torch, then faster updates; false: "
        "step by step, as a debugger wants it. 'auto': tf2 and jax do, torch does not.",
        json_schema_extra={"kind": "bool | 'auto'"},
    )
    num_cpus_for_driver: Int = Field(
        default=1, ge=0, description="CPUs that the run asks for in default_resource_request."
    )
    num_cpus_per_worker: Int = Field(
        default=1, ge=0, description="CPUs that default_resource_request asks for per remote sampler."
    )
    memory: Int = Field(
        default=0, ge=0, description="Bytes of memory that default_resource_request asks for; 0: no demand."
    )
    object_store_memory: Int = Field(
        default=0, ge=0, description="Bytes of object store that default_resource_request asks for; 0: no demand."
    )

    # Hooks.
    callbacks: Annotated[Any, BeforeValidator(values.check_callbacks)] = Field(
        default=DefaultCallbacks,
        description="Your hooks: a subclass of DefaultCallbacks, an instance of one, or 'module:Class'.",
        json_schema_extra={"kind": "class | instance | 'module:Class'"},
    )

    # Results and files.
    metrics_smoothing_episodes: Int = Field(
        default=100, ge=1, description="Episodes that episode_reward_mean and its like are taken over."
    )
    min_iter_time_s: Float = Field(
        default=0.0,
        ge=0,
        description="Seconds between two results at least, doing several rounds; the first comes at once.",
    )
    timesteps_per_iteration: Int = Field(
        default=0, ge=0, description="Env steps that one train() makes at least, doing several rounds."
    )
    log_level: Annotated[str, BeforeValidator(values.check_log_level)] = Field(
        default="WARN",
        description="Least severe log messages shown.",
        json_schema_extra={"kind": "'DEBUG' | 'INFO' | 'WARN' | 'ERROR'"},
    )
    log_sys_usage: Bool = Field(default=True, description="Add CPU and memory load of the machine to each result.")
    local_dir: str = Field(default="runs", min_length=1, description="Directory under which run directories are made.")
    tensorboard: Bool = Field(default=True, description="Write TensorBoard events into the run directory.")
    tensorboard_tags: Literal["rllib", "sb3", "cleanrl"] = Field(
        default="rllib", description="Whose names TensorBoard's curves bear, so that old dashboards fit."
    )

    # Evaluation.
    evaluation_interval: OptionalInt = Field(
        default=None, ge=1, description="Evaluate after every so many iterations; None: only when asked to."
    )
    evaluation_num_episodes: Int = Field(
        default=10, ge=1, description="Episodes of one evaluation. More narrows the estimate."
    )
    evaluation_config: dict[str, Any] = Field(
        default_factory=lambda: {"explore": False},
        description="Settings that differ in evaluation; the keys of this config. Merged.",
    )
    custom_eval_function: Reference = Field(
        default=None,
        description="Evaluates in place of the built-in: function(trainer, evaluation_workers) -> dict of metrics.",
        json_schema_extra={"kind": "callable | 'module:name' | None"},
    )
    in_evaluation: Bool = Field(
        default=False, description="True in the config that evaluation samplers see; set by the library."
    )

    # Checkpoints.
    checkpoint_freq: Int = Field(
        default=0, ge=0, description="Checkpoint after every so many iterations; 0: only at the end."
    )
    checkpoint_at_end: Bool = Field(default=True, description="Checkpoint when the run ends or is interrupted.")
    keep_checkpoints_num: OptionalInt = Field(
        default=5, ge=1, description="Newest checkpoints that are kept, besides the best one; None: all."
    )
    checkpoint_score_attr: str = Field(
        default="episode_reward_mean",
        min_length=1,
        description="Result key that says which checkpoint is best; with 'min-' before it, the smallest is.",
    )
    checkpoint_barrier: Bool = Field(
        default=False,
        description="All envs start new episodes after each checkpoint, so that a resumed run equals the one that went "
        "on even where envs cannot be saved.",
    )

    def check(self) -> Self:
        """Check all values again (containers may have been changed in place) and what cannot work together.

        Raises:
            ConfigError: listing every problem found.
        """
        type(self)(**plain(self))
        problems = self.combination_problems()
        if problems:
            raise SettingsError(type(self).__name__, problems)
        return self

    def combination_problems(self) -> list[Problem]:
        """Settings that are each valid but cannot work together; subclasses add theirs."""
        problems = []
        if not self.in_evaluation:
            try:
                self.batch_plan()
            except ConfigError as error:
                problems.append(Problem("", str(error)))
            problems += self._evaluation_problems()
        problems += [
            Problem(f"optimizer.{key}", f"is not read by {self.optimizer.name!r}: leave it out, or choose another")
            for key in self.optimizer.unread()
        ]
        if self.action_mask_from_info and self.vectorization == "native":
            text = "'native' gives the infos of all envs at once, which action_mask_from_info does not read: set 'sync'"
            problems.append(Problem("vectorization", text))
        problems += self._multi_agent_problems()
        if self.input == "sampler":
            problems += [
                Problem(key, "is read with an `input` only: leave it out, or say what to read")
                for key in ("input_config", "input_evaluation", "postprocess_inputs", "shuffle_buffer_size")
                if self[key]
            ]
        if self.acting == "numpy" and self.device.startswith("cuda"):
            problems.append(Problem("acting", "'numpy' reads the weights in main memory: it needs device 'cpu'"))
        if self.num_workers == 0 and self.num_cpus_per_worker != 1:
            text = "means nothing without remote samplers, which are not available in this version yet: leave it out"
            problems.append(Problem("num_cpus_per_worker", text))
        return problems

    def _multi_agent_problems(self) -> list[Problem]:
        given, policies = self.multiagent, self.multiagent.policies
        problems = []
        named = [*(given.policies_to_train or ())]
        if isinstance(given.policy_mapping_fn, dict):
            named += given.policy_mapping_fn.values()
        unknown = sorted({str(name) for name in named if name not in (policies or (DEFAULT_POLICY_ID,))})
        if unknown:
            text = f"names {', '.join(unknown)}, but the policies are {', '.join(policies) or DEFAULT_POLICY_ID}"
            problems.append(Problem("multiagent", text))
        for policy_id in policies:
            try:
                self.for_policy(policy_id)
            except ConfigError as error:
                problems.append(Problem(f"multiagent.policies.{policy_id}", str(error)))
        if self.remote_worker_envs and self.vectorization not in ("auto", "sync"):
            text = "is not read with remote_worker_envs: each env is an actor. Leave it out"
            problems.append(Problem("vectorization", text))
        return problems

    def for_policy(self, policy_id: str) -> Self:
        """The config that a policy sees: what its PolicySpec overrides is merged in."""
        spec = self.multiagent.policies.get(policy_id)
        if spec is None or not spec.config:
            return self
        merged = type(self)(**merged_values(plain(self) | {"multiagent": {}}, spec.config))
        problems = [] if spec.config is None else merged.combination_problems()
        if problems:
            raise SettingsError(type(self).__name__, problems)
        return merged

    def _evaluation_problems(self) -> list[Problem]:
        set_anyway = sorted(_SET_BY_EVALUATION & set(self.evaluation_config))
        problems = [
            Problem(f"evaluation_config.{key}", "is not free in evaluation: leave it out") for key in set_anyway
        ]
        problems += [
            Problem(f"evaluation_config.{key}", "is as in training: leave it out (env and env_config may differ)")
            for key in sorted(_AS_IN_TRAINING & set(self.evaluation_config))
        ]
        try:
            self.for_evaluation()
        except SettingsError as error:
            problems += [problem.under("evaluation_config") for problem in error.problems]
        return problems

    def batch_plan(self, num_envs: int | None = None) -> BatchPlan:
        """How this config's train batches come about.

        Args:
            num_envs: width of a native vector env that sets its own; else `num_envs_per_worker`.

        Raises:
            ConfigError: the sizes do not fit; names the nearest that do.
        """
        envs = self.num_envs_per_worker if num_envs is None else num_envs
        exact = self.batch_mode == "truncate_episodes"
        try:
            return solve(self.train_batch_size, self.num_workers, envs, self.rollout_fragment_length, exact)
        except ValueError as error:
            raise ConfigError(f"train_batch_size: {error}") from None

    def for_evaluation(self) -> Self:
        """The config that evaluation samplers see: evaluation_config merged in, whole episodes, in_evaluation true."""
        fixed = {
            "batch_mode": "complete_episodes", "rollout_fragment_length": 1, "in_evaluation": True,
            "input": "sampler", "output": None,
        }  # fmt: skip
        return type(self)(**(merged_values(plain(self), self.evaluation_config) | fixed))

    def checkpoint_score(self) -> tuple[str, Literal["max", "min"]]:
        """The result key that ranks checkpoints, and whether the largest or the smallest is best."""
        if self.checkpoint_score_attr.startswith("min-"):
            return self.checkpoint_score_attr.removeprefix("min-"), "min"
        return self.checkpoint_score_attr, "max"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], overrides: Any = None, resolve: bool = False) -> Self:
        """The config that `to_dict` wrote, with `overrides` merged in.

        Args:
            data: JSON values, for instance of a checkpoint.
            overrides: settings given now (dict or config); they win, and are how to give again what was not stored.
            resolve: import what `module:name` names. False leaves the strings (see `references`): whoever uses them
                decides whether their source is trusted.

        Raises:
            ConfigError: also for a callable that could not be stored and is not among the overrides.
        """
        config = cls(**restored_values(data, overrides, cls))
        return config.resolved() if resolve else config

    def references(self) -> dict[str, str]:
        """The settings that name code to import, as `module:name`, by their path; the env's among them."""
        named = {path: owner.get(name) for path, owner, name in self._naming_code()} | {
            "env": self.env,
            "evaluation_config.env": self.evaluation_config.get("env"),
        }
        return {path: str(value) for path, value in named.items() if _names_code(path, value)}

    def resolved(self) -> Self:
        """A copy that has what `references` names itself, imported; the env's creator resolves its own.

        Raises:
            ConfigError: a module or a name in it is not there.
        """
        from headwater.registry import resolve_reference

        twin = self.copy()
        for _, owner, name in twin._naming_code():
            value = owner.get(name)
            if _names_code(name, value):
                owner[name] = resolve_reference(str(value))
        return twin

    def _naming_code(self) -> list[tuple[str, Settings | dict[str, Any], str]]:
        return [
            ("callbacks", self, "callbacks"),
            ("custom_eval_function", self, "custom_eval_function"),
            ("model.custom_model", self.model, "custom_model"),
            ("model.custom_action_dist", self.model, "custom_action_dist"),
            ("model.custom_preprocessor", self.model, "custom_preprocessor"),
            ("evaluation_config.callbacks", self.evaluation_config, "callbacks"),
            ("input", self, "input"),
            ("output", self, "output"),
            ("multiagent.policy_mapping_fn", self.multiagent, "policy_mapping_fn"),
            ("multiagent.observation_fn", self.multiagent, "observation_fn"),
        ]


def _names_code(setting: str, value: Any) -> bool:
    """Whether a setting's value is `module:name`; of files only what cannot be a path or a dataset's name."""
    if not (isinstance(value, str) and ":" in value):
        return False
    return setting not in ("input", "output") or bool(re.fullmatch(r"(?!minari:)[\w.]+:[A-Za-z_][\w.]*", value))
