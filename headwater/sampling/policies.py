"""Which policies a worker has, for what spaces, and who is played by which: the config's `multiagent`, resolved.

config.multiagent + env -> {policy id: ResolvedPolicy}; policy_mapping_fn -> a function of agent id and episode
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gymnasium import spaces

from headwater.config import DEFAULT_POLICY_ID, PolicySpec, TrainerConfig
from headwater.envs.base_env import AGENT_ID, BaseEnv
from headwater.envs.space_json import as_space
from headwater.errors import ConfigError
from headwater.policy.policy import Policy
from headwater.registry import resolve_reference
from headwater.sampling.multi_agent_episode import MultiAgentEpisode


class ResolvedPolicy(NamedTuple):
    """What a policy is made of."""

    policy_class: type[Policy]
    observation_space: spaces.Space  # as the agents observe it
    action_space: spaces.Space
    config: TrainerConfig  # with the policy's own settings


def single_policy(
    env: Any, policy_class: type[Policy], config: TrainerConfig, env_id: str
) -> dict[str, ResolvedPolicy]:
    """The one policy of an env of single agents.

    Raises:
        ConfigError: there are several.
    """
    policies = config.multiagent.policies
    if len(policies) > 1:
        raise ConfigError(
            f"multiagent.policies: {', '.join(policies)} are several policies, but env {env_id!r} has a single agent. "
            "Give one, or an env of several agents (a MultiAgentEnv or one of PettingZoo's)."
        )
    policy_id, spec = next(iter(policies.items()), (DEFAULT_POLICY_ID, PolicySpec()))
    return {
        policy_id: ResolvedPolicy(
            _class_of(spec, policy_class, policy_id),
            as_space(spec.observation_space) or env.observation_space,
            as_space(spec.action_space) or env.action_space,
            config.for_policy(policy_id),
        )
    }


def resolve_policies(
    env: BaseEnv, policy_class: type[Policy], config: TrainerConfig, mapping: Callable[..., str]
) -> dict[str, ResolvedPolicy]:
    """The policies of a BaseEnv, in sorted order of their ids.

    Raises:
        ConfigError: the spaces of one are not known, or those of its agents differ.
    """
    policies = config.multiagent.policies or {DEFAULT_POLICY_ID: PolicySpec()}
    resolved = {}
    for policy_id in sorted(policies):
        spec = policies[policy_id]
        observation_space, action_space = as_space(spec.observation_space), as_space(spec.action_space)
        if observation_space is None or action_space is None:
            agents = _agents_of(policy_id, env, mapping)
            if observation_space is None:
                observation_space = _common_space(
                    policy_id, "observation", agents, env.observation_space_of, env.env_id
                )
            if action_space is None:
                action_space = _common_space(policy_id, "action", agents, env.action_space_of, env.env_id)
        cls = _class_of(spec, policy_class, policy_id)
        resolved[policy_id] = ResolvedPolicy(cls, observation_space, action_space, config.for_policy(policy_id))
    return resolved


def make_mapping(config: TrainerConfig, worker: Any) -> Callable[[Any, MultiAgentEpisode | None], str]:
    """(agent id, episode) -> policy id, from the setting policy_mapping_fn; the answer is not checked.

    A function may take the agent's id alone, the episode as well, and the worker under that name.
    """
    given = config.multiagent.policy_mapping_fn
    policies = list(config.multiagent.policies) or [DEFAULT_POLICY_ID]
    if given is None:
        return lambda agent_id, episode: policies[0] if len(policies) == 1 else str(agent_id)
    if isinstance(given, Mapping):
        return _by_table(given)
    function: Any = resolve_reference(given) if isinstance(given, str) else given
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_episode = (
        len(positional) > 1 and positional[1].name != "worker" or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    )
    extra = {"worker": worker} if takes_all or "worker" in names else {}
    if takes_episode:
        return lambda agent_id, episode: function(agent_id, episode, **extra)
    if takes_all or "episode" in names:
        return lambda agent_id, episode: function(agent_id, episode=episode, **extra)
    return lambda agent_id, episode: function(agent_id, **extra)


def _by_table(table: Mapping[Any, str]) -> Callable[[Any, Any], str]:
    by_text = {str(agent_id): policy_id for agent_id, policy_id in table.items()}  # ids of files are text

    def mapped(agent_id: Any, episode: Any) -> str:
        try:
            return by_text[str(agent_id)]
        except KeyError:
            raise ConfigError(
                f"multiagent.policy_mapping_fn has no entry for agent {agent_id!r}; it has {', '.join(by_text)}."
            ) from None

    return mapped


def _class_of(spec: PolicySpec, policy_class: type[Policy], policy_id: str) -> type[Policy]:
    cls = spec.policy_class
    if cls is None:
        return policy_class
    if isinstance(cls, str):
        cls = resolve_reference(cls)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise ConfigError(f"multiagent.policies.{policy_id}: its policy_class {cls!r} does not derive from Policy.")
    return cls


def _agents_of(policy_id: str, env: BaseEnv, mapping: Callable[..., str]) -> list[Any]:
    """Agents that tell a policy's spaces: those that are mapped to it, where that can be asked before an episode."""
    if env.possible_agents is None:
        return [AGENT_ID]
    mapped = []
    for agent_id in env.possible_agents:
        try:
            if mapping(agent_id, None) == policy_id:
                mapped.append(agent_id)
        except Exception:  # it needs an episode
            return list(env.possible_agents)
    return mapped or list(env.possible_agents)


def _common_space(
    policy_id: str, kind: str, agents: list[Any], space_of: Callable[[Any], spaces.Space], env_id: str
) -> spaces.Space:
    first = space_of(agents[0])
    for agent_id in agents[1:]:
        if space_of(agent_id) != first:
            raise ConfigError(
                f"multiagent.policies.{policy_id}: the agents {agents[0]!r} and {agent_id!r} of env {env_id!r} have "
                f"different {kind} spaces, {first} and {space_of(agent_id)}. Give each kind a policy of its own, and "
                "policy_mapping_fn as {agent id: policy id}; or give the policy's spaces in its PolicySpec."
            )
    return first
