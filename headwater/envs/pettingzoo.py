"""PettingZoo's two kinds of env as a `MultiAgentEnv`: all agents at once (parallel), or one after the other (AEC).

    "pettingzoo:pistonball_v6" -> make_pettingzoo -> PettingZooParallel or PettingZooAEC

Masks of actions stay where the env has them in its observations. Where they are in infos only, the observations become
`{"observation": the env's, "action_mask": the mask as one flat row}`, as with `action_mask_from_info`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from headwater.envs.action_masks import ACTION_MASK, MaskMismatch, flat_mask, num_choices
from headwater.envs.base_env import ALL_DONE, PerAgent
from headwater.envs.multi_agent_env import MultiAgentEnv, StepReturn
from headwater.errors import EnvError, HeadwaterError, require

# Where envs are, by the name of their family.
_FAMILIES = {
    **{name: f"pettingzoo.{name}" for name in ("classic", "butterfly", "sisl", "atari", "mpe")},
    "mpe2": "mpe2",
}
_ENV_NAME = re.compile(r"\w+_v\d+")


class _PettingZoo(MultiAgentEnv):
    """What both kinds share: spaces by agent, masks out of infos, names."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.name = str((getattr(env, "metadata", None) or {}).get("name", type(env).__name__))
        self.possible_agents = getattr(env, "possible_agents", None)
        self._masks_in_infos: bool | None = None  # not known before the first reset
        self._maskable: dict[Any, bool] = {}

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def get_observation_space(self, agent_id: Any) -> spaces.Space:
        space = self._space("observation_space", agent_id)
        if not self._can_mask(agent_id) or not self._finds_masks():
            return space
        mask = spaces.Box(0, 1, (num_choices(self.get_action_space(agent_id)),), np.int8)
        return spaces.Dict({"observation": space, ACTION_MASK: mask})

    def get_action_space(self, agent_id: Any) -> spaces.Space:
        return self._space("action_space", agent_id)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _space(self, kind: str, agent_id: Any) -> spaces.Space:
        try:
            return getattr(self._env, kind)(agent_id)
        except Exception as error:
            raise EnvError(
                f"Env {self.name!r}: {kind}({agent_id!r}) raised {type(error).__name__}: {error}. Let it give the "
                "space of every agent that may appear."
            ) from error

    def _can_mask(self, agent_id: Any) -> bool:
        """Whether a mask in the infos of an agent would have to be put into its observations."""
        known = self._maskable.get(agent_id)
        if known is None:
            space = self._space("observation_space", agent_id)
            is_masked = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
            known = not is_masked and num_choices(self.get_action_space(agent_id)) > 0
            self._maskable[agent_id] = known
        return known

    def _finds_masks(self) -> bool:
        """Whether masks are in infos; asks the env by a reset where there was none."""
        if self._masks_in_infos is None:
            try:
                self.reset()
            except HeadwaterError:
                raise
            except Exception as error:
                raise EnvError(
                    f"Env {self.name!r}: reset() raised {type(error).__name__}: {error}. Mend the env."
                ) from error
        return bool(self._masks_in_infos)

    def _look_for_masks(self, infos: PerAgent) -> None:
        self._masks_in_infos = any(
            ACTION_MASK in info and self._can_mask(agent) for agent, info in infos.items() if info is not None
        )

    def _with_mask(self, agent_id: Any, obs: Any, info: Any, ended: bool) -> Any:
        """An observation together with the mask in its info; one that ends an episode may lack it."""
        if not self._can_mask(agent_id):
            return obs
        space = self.get_action_space(agent_id)
        mask = (info or {}).get(ACTION_MASK)
        if mask is None:
            if not ended:
                raise EnvError(
                    f"Env {self.name!r}: the info of agent {agent_id!r} has no 'action_mask', though there were masks "
                    "in infos before. Give one to every agent that is to act."
                )
            return {"observation": obs, ACTION_MASK: np.zeros(num_choices(space), np.int8)}
        try:
            return {"observation": obs, ACTION_MASK: flat_mask(space, mask)}
        except MaskMismatch as mismatch:
            raise EnvError(
                f"Env {self.name!r}: the info of agent {agent_id!r} has a wrong action mask: {mismatch}."
            ) from None


class PettingZooParallel(_PettingZoo):
    """A `pettingzoo.ParallelEnv`: all agents that live act together.

    An agent that ends leaves with its final observation; one that appears later observes from then on. The episode is
    over when no agent is left.

    Args:
        env: the env; its dicts are passed on as they are.

    Example:
        >>> from mpe2 import simple_spread_v3
        >>> env = PettingZooParallel(simple_spread_v3.parallel_env(N=2, max_cycles=1))
        >>> obs, infos = env.reset(seed=1)
        >>> obs, rewards, terminateds, truncateds, infos = env.step({"agent_0": 0, "agent_1": 3})
        >>> terminateds["__all__"], truncateds
        (False, {'agent_0': True, 'agent_1': True, '__all__': True})
        >>> env.close()
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._gone: set[Any] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        obs, infos = self._env.reset(seed=seed, options=options)
        self._gone = set()
        if self._masks_in_infos is None:
            self._look_for_masks(infos)
        if self._masks_in_infos:
            obs = {agent: self._with_mask(agent, value, infos.get(agent), False) for agent, value in obs.items()}
        return obs, infos

    def step(self, actions: PerAgent) -> StepReturn:
        env = self._env
        obs, rewards, terminateds, truncateds, infos = env.step(actions)
        if not (any(terminateds.values()) or any(truncateds.values())) and env.agents:
            terminateds, truncateds = {ALL_DONE: False}, {ALL_DONE: False}
        else:
            obs, terminateds, truncateds = self._ended(obs, terminateds, truncateds)
        if self._masks_in_infos:
            obs = {
                agent: self._with_mask(agent, value, infos.get(agent), agent in self._gone)
                for agent, value in obs.items()
            }
        return obs, rewards, terminateds, truncateds, infos

    def _ended(self, obs: PerAgent, terminateds: PerAgent, truncateds: PerAgent) -> tuple[PerAgent, PerAgent, PerAgent]:
        """A step in which agents end: each of them once, also where the env goes on naming them."""
        gone = self._gone
        if gone:
            obs, terminateds, truncateds = (
                {agent: value for agent, value in part.items() if agent not in gone}
                for part in (obs, terminateds, truncateds)
            )
        terminateds = {agent: True for agent, flag in terminateds.items() if flag}
        truncateds = {agent: True for agent, flag in truncateds.items() if flag}
        gone.update(terminateds, truncateds)
        over = gone.issuperset(self._env.agents)
        terminateds[ALL_DONE] = over and (bool(terminateds) or not truncateds)
        truncateds[ALL_DONE] = over and not terminateds[ALL_DONE]
        return obs, terminateds, truncateds


class PettingZooAEC(_PettingZoo):
    """A `pettingzoo.AECEnv`: one agent acts at a time; the observations name whose turn it is.

    A step returns what all agents were paid up to the next turn. Agents that end do so with their final observation;
    that PettingZoo wants a step of theirs is seen to here.

    Args:
        env: the env. Its `rewards` are set to 0 once they are read.

    Example:
        >>> from pettingzoo.classic import tictactoe_v3
        >>> env = PettingZooAEC(tictactoe_v3.env())
        >>> obs, infos = env.reset(seed=1)
        >>> for square in (0, 3, 1, 4, 2):  # two rows, of which the first player's is complete first
        ...     (player,) = obs
        ...     obs, rewards, terminateds, truncateds, infos = env.step({player: square})
        >>> rewards, terminateds["__all__"]
        ({'player_1': 1.0, 'player_2': -1.0}, True)
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        env = self._env
        env.reset(seed=seed, options=options)
        if self._masks_in_infos is None:
            self._look_for_masks(env.infos)
        _forget_rewards(env)
        agent = env.agent_selection
        return {agent: self._observed(agent, False)}, {agent: env.infos[agent]}

    def step(self, actions: PerAgent) -> StepReturn:
        env = self._env
        agent = env.agent_selection if env.agents else None
        if agent is None or len(actions) != 1 or agent not in actions:
            turn = "nobody's, as the episode is over: call reset()" if agent is None else f"agent {agent!r}'s"
            raise EnvError(f"Env {self.name!r}: actions came for {list(actions)}, but the turn is {turn}.")
        obs: PerAgent = {}
        rewards: PerAgent = {}
        terminateds: PerAgent = {}
        truncateds: PerAgent = {}
        infos: PerAgent = {}
        env.step(actions[agent])
        _pay(env, rewards)
        while env.agents:
            agent = env.agent_selection
            infos[agent] = env.infos[agent]
            terminated, truncated = env.terminations[agent], env.truncations[agent]
            obs[agent] = self._observed(agent, terminated or truncated)
            if not (terminated or truncated):
                break
            (terminateds if terminated else truncateds)[agent] = True
            env.step(None)
            _pay(env, rewards)
        over = not env.agents
        terminateds[ALL_DONE] = over and (bool(terminateds) or not truncateds)
        truncateds[ALL_DONE] = over and not terminateds[ALL_DONE]
        return obs, rewards, terminateds, truncateds, infos

    def _observed(self, agent_id: Any, ended: bool) -> Any:
        obs = self._env.observe(agent_id)
        if not self._masks_in_infos:
            return obs
        return self._with_mask(agent_id, obs, self._env.infos[agent_id], ended)


def _pay(env: Any, rewards: PerAgent) -> None:
    """Add what the last step paid, to whomever."""
    for agent, reward in env.rewards.items():
        if reward:
            rewards[agent] = rewards.get(agent, 0.0) + reward
    _forget_rewards(env)


def _forget_rewards(env: Any) -> None:
    # Not every env clears its rewards in steps that pay nothing, nor in the steps of agents that ended.
    rewards = env.rewards
    for agent in rewards:
        rewards[agent] = 0


def is_pettingzoo(env: Any) -> bool:
    """Whether this is an env of PettingZoo's, of either kind. Imports nothing."""
    module = sys.modules.get("pettingzoo")
    return module is not None and isinstance(env, (module.AECEnv, module.ParallelEnv))


def from_pettingzoo(env: Any) -> MultiAgentEnv:
    """A PettingZoo env as a `MultiAgentEnv`.

    Raises:
        EnvError: it is none.
    """
    if not is_pettingzoo(env):
        raise EnvError(
            f"from_pettingzoo: a {type(env).__module__}.{type(env).__qualname__} came, expected a "
            "pettingzoo.ParallelEnv or a pettingzoo.AECEnv. Derive the env from one of these."
        )
    is_parallel = isinstance(env, sys.modules["pettingzoo"].ParallelEnv)
    return PettingZooParallel(env) if is_parallel else PettingZooAEC(env)


def make_pettingzoo(name: str, *, aec: bool = False, **kwargs: Any) -> MultiAgentEnv:
    """Make one of PettingZoo's own envs, or of MPE2's.

    Args:
        name: "pistonball_v6", or with its family "butterfly/pistonball_v6".
        aec: let agents act one after the other even where the env could let them act together.
        kwargs: of the env.

    Raises:
        EnvError: there is no such env, it needs something that is not installed, or it does not take `kwargs`.

    Example:
        >>> make_pettingzoo("tictactoe_v3").possible_agents
        ['player_1', 'player_2']
    """
    require("pettingzoo", "pettingzoo")
    family, _, short = name.rpartition("/")
    known = dict(_env_modules(family))
    if short not in known:
        raise EnvError(_unknown(name, family, short, known))
    path = known[short]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of making envs without PettingZoo's registry
            module = importlib.import_module(path)
    except ImportError as error:
        package = path.split(".")
        extra = f"'pettingzoo[{package[1]}]'" if package[0] == "pettingzoo" else package[0]
        raise EnvError(
            f"Env 'pettingzoo:{name}' needs what is not installed: {error}. Install it with: pip install {extra}"
        ) from error
    make = getattr(module, "env" if aec else "parallel_env", None) or module.env
    try:
        return from_pettingzoo(make(**kwargs))
    except HeadwaterError:
        raise
    except Exception as error:
        raise EnvError(
            f"Env 'pettingzoo:{name}' could not be made with the settings {kwargs!r}: {type(error).__name__}: {error}."
        ) from error


def _env_modules(family: str = "") -> Iterator[tuple[str, str]]:
    """Names of envs and the modules that hold them. Imports none of them."""
    for name, path in _FAMILIES.items():
        if family and not (family == name or (family == "mpe" and name == "mpe2")):
            continue
        spec = importlib.util.find_spec(path)
        for found in pkgutil.iter_modules((spec and spec.submodule_search_locations) or []):
            if _ENV_NAME.fullmatch(found.name):
                yield found.name, f"{path}.{found.name}"


def _unknown(name: str, family: str, short: str, known: dict[str, str]) -> str:
    if family and family not in _FAMILIES:
        near = difflib.get_close_matches(family, _FAMILIES, n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return (
            f"Env 'pettingzoo:{name}': there is no family {family!r} of envs.{hint} There are {', '.join(_FAMILIES)}; "
            "the name alone will do."
        )
    other_versions = [each for each in known if each.rpartition("_v")[0] == short.rpartition("_v")[0] or each == short]
    near = other_versions or difflib.get_close_matches(short, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    where = f"PettingZoo's family {family}" if family else "PettingZoo"
    absent = "" if importlib.util.find_spec("mpe2") else " The mpe family is a package of its own: pip install mpe2."
    return (
        f"There is no env 'pettingzoo:{name}' in {where}.{hint}{absent} For an env of your own give 'module:name' of a "
        "function that makes it."
    )
