"""MultiAgentConfig: which policies there are, who is played by which, and which of them learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from headwater.settings.number_types import shown
from headwater.settings.settings import Settings
from headwater.settings.values import check_reference

Reference = Annotated[Any, BeforeValidator(check_reference)]

# What the samplers, the plan or the run read: one value for all policies.
_NOT_A_POLICYS = {
    "env", "env_config", "horizon", "vectorization", "on_env_error", "on_bad_values", "max_env_errors_in_a_row",
    "num_workers", "num_envs_per_worker", "rollout_fragment_length", "train_batch_size", "batch_mode", "framework",
    "seed", "num_sgd_iter", "sgd_minibatch_size", "standardize_advantages", "callbacks", "multiagent", "num_threads",
    "evaluation_interval", "evaluation_config", "evaluation_num_episodes", "synchronize_filters",
}  # fmt: skip


class PolicySpec(NamedTuple):
    """What sets a policy apart from the others; None takes the algorithm's class, and the agents' spaces.

    Attributes:
        policy_class: a Policy class.
        observation_space: of its agents, as they observe it.
        action_space: of its agents.
        config: settings in which it differs from the config.
    """

    policy_class: Any = None
    observation_space: Any = None
    action_space: Any = None
    config: Mapping[str, Any] = {}


def check_policies(value: Any) -> dict[str, PolicySpec]:
    """{policy id: PolicySpec}, of ids alone or of ids with what the 1.x line takes."""
    if isinstance(value, (list, tuple, set, frozenset)):
        value = dict.fromkeys(sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a list of policy ids, or a dict {{id: PolicySpec}}, but {shown(value)} came")
    return {_check_id(policy_id): _check_spec(policy_id, spec) for policy_id, spec in value.items()}


def _check_id(policy_id: Any) -> str:
    if not (isinstance(policy_id, str) and policy_id):
        raise ValueError(f"policy ids are non-empty strings, but {shown(policy_id)} came")
    return policy_id


def _check_spec(policy_id: str, spec: Any) -> PolicySpec:
    if spec is None:
        return PolicySpec()
    if isinstance(spec, Mapping):
        unknown = sorted(set(spec) - set(PolicySpec._fields))
        if unknown:
            raise ValueError(f"{policy_id}: a PolicySpec has {', '.join(PolicySpec._fields)}, but {unknown} came")
        spec = PolicySpec(**spec)
    elif isinstance(spec, (list, tuple)) and len(spec) == len(PolicySpec._fields):
        spec = PolicySpec(*spec)
    else:
        raise ValueError(
            f"{policy_id}: must be a PolicySpec, (class, observation space, action space, config), or null, but "
            f"{shown(spec)} came"
        )
    overrides = {} if spec.config is None else spec.config
    if not isinstance(overrides, Mapping):
        raise ValueError(f"{policy_id}: its config must be a dict of settings, but {shown(overrides)} came")
    common = sorted(set(overrides) & _NOT_A_POLICYS)
    if common:
        raise ValueError(f"{policy_id}: {', '.join(common)} cannot differ between policies: set it for all of them")
    return spec._replace(config=dict(overrides))


def check_mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return check_reference(value)


class MultiAgentConfig(Settings):
    """Several agents and policies. Without policies given, all agents are played by the one default policy."""

    policies: Annotated[Any, BeforeValidator(check_policies)] = Field(
        default_factory=dict,
        description="The policies: a list of ids, or {id: PolicySpec(policy_class, observation_space, action_space, "
        "config)}. None in a spec takes the algorithm's class and the agents' spaces; its config overrides settings.",
        json_schema_extra={"kind": "[id, ...] | {id: PolicySpec | None}"},
    )
    policy_mapping_fn: Annotated[Any, BeforeValidator(check_mapping)] = Field(
        default=None,
        description="Who is played by which policy: {agent id: policy id}, or a function (agent_id, episode, worker) "
        "-> policy id, asked once per agent and episode. None: the only policy, else the one named as the agent.",
        json_schema_extra={"kind": "{agent id: policy id} | callable | 'module:name' | None"},
    )
    policies_to_train: list[str] | None = Field(
        default=None, description="Ids of the policies that learn; None: all. The others act as they are."
    )
    observation_fn: Reference = Field(
        default=None,
        description="Changes what agents observe, before encoding: function(agent_obs, worker, base_env, policies, "
        "episode) -> {agent id: observation}. The policies' observation_space says what comes out.",
        json_schema_extra={"kind": "callable | 'module:name' | None"},
    )
    count_steps_by: Literal["env_steps", "agent_steps"] = Field(
        default="env_steps",
        description="What fragment and batch sizes count: steps of the env, however many agents act in each, or steps "
        "of agents.",
    )
    replay_mode: Literal["independent", "lockstep"] = Field(
        default="independent",
        description="For algorithms with replay: whether the policies' rows are replayed each on their own, or those "
        "of one env step together.",
    )
