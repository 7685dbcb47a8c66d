"""Acting on raw observations: the one chain behind `Trainer.compute_action` and behind exported policies.

    raw observations -> encoder -> filter -> policy -> action adapter -> actions as the env takes them

An export is a directory that holds the whole chain and needs neither a framework nor the trainer to be used: what
`Policy.export_model` writes (network, weights, distribution), and beside it `acting.json`

    {"format": "headwater-acting", "version": 1,
     "observation_space": ..., "action_space": ...,    the env's, as headwater.envs.space_json writes spaces
     "clip_actions": bool, "normalize_actions": bool,
     "use_prev_action": bool, "use_prev_reward": bool, "clip_rewards": null | bool | number,
     "observation_filter": "NoFilter" | "MeanStdFilter", "filter": its statistics,
     "timestep": int}                                  env steps of the run, which exploration follows
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headwater.envs.nested import Gather, as_row, make_gather, take_rows, tree_leaves
from headwater.envs.space_check import Mismatch, check_value
from headwater.envs.space_json import space_from_json, space_to_json
from headwater.errors import CheckpointError, ConfigError, HeadwaterError
from headwater.frameworks.numpy.policy import NumpyPolicy
from headwater.policy.encoded_space import num_features
from headwater.policy.policy import Policy
from headwater.sampling.filters import Filter, get_filter
from headwater.sampling.policy_encoder import PolicyEncoder, policy_encoder
from headwater.sampling.preprocessors import ActionAdapter, Encoder, get_action_adapter
from headwater.storage.files import replace_file

FORMAT, VERSION = "headwater-acting", 1
_FILE = "acting.json"


class ActingChain(NamedTuple):
    """All that stands between an env's observations and its actions; statistics are read, never changed."""

    encoder: Encoder
    obs_filter: Filter
    policy: Policy
    action_adapter: ActionAdapter
    gather: Gather
    env_id: str

    def compute_actions(
        self,
        observations: Sequence[Any],
        explore: bool | None = None,
        states: Sequence[Sequence[Any]] | None = None,
        prev_action_batch: Sequence[Any] | None = None,
        prev_reward_batch: Sequence[float | None] | None = None,
        **kwargs: Any,
    ) -> tuple[list[Any], list[list[NDArray]], dict[str, Any]]:
        """See `RolloutWorker.compute_actions`."""
        rows = self._encoded(observations, self._before(len(observations), prev_action_batch, prev_reward_batch))
        x = self.obs_filter(rows, update=False)
        parts = None if states is None else _stacked(states, len(observations))
        actions, parts, extra = self.policy.compute_actions(x, parts, explore=explore, **kwargs)
        env_actions = self.action_adapter.to_env(actions)
        indices = range(len(observations))
        return [take_rows(env_actions, i) for i in indices], [[part[i] for part in parts] for i in indices], extra

    def _before(
        self, num_rows: int, actions: Sequence[Any] | None, rewards: Sequence[float | None] | None
    ) -> NDArray[np.float32] | None:
        """The columns of the step before, of which None is what an episode's first row has."""
        encoder, space = self.encoder, self.action_adapter.space
        if not isinstance(encoder, PolicyEncoder):
            return None
        before = encoder.before(num_rows)
        known = [index for index, action in enumerate(actions or ()) if action is not None]
        try:
            if actions is not None and known:
                for index in known:
                    check_value(space, actions[index], "prev_action")
                batch = make_gather(space)([as_row(space, actions[index]) for index in known])
                before[known] += encoder.before(len(known), actions=self.action_adapter.from_env(batch))
            if rewards is not None:
                paid = np.array([0.0 if reward is None else reward for reward in rewards], np.float32)
                before += encoder.before(num_rows, rewards=paid)
        except (Mismatch, TypeError, ValueError, KeyError, IndexError) as error:
            raise HeadwaterError(
                f"{self.env_id}: the actions or rewards before do not fit: {type(error).__name__}: {error}. Give for "
                "each observation the action that was taken before it, as the env took it, and what the env paid for "
                "it; None where an episode begins."
            ) from error
        return before

    def _encoded(self, observations: Sequence[Any], before: NDArray[np.float32] | None) -> NDArray[Any]:
        space = self.encoder.original_space
        try:
            if not isinstance(space, spaces.Box):  # an integer out of its range would pass for another one's
                for observation in observations:
                    check_value(space, observation)
            batch = self.gather([as_row(space, observation) for observation in observations])
            if not all(np.isfinite(leaf).all() for leaf in tree_leaves(batch) if leaf.dtype.kind == "f"):
                raise ValueError("it holds NaN or infinite values")
            if not isinstance(self.encoder, PolicyEncoder):
                return self.encoder.encode(batch)
            rows = self.encoder.encode(batch, before)
        except (Mismatch, TypeError, ValueError, KeyError, IndexError) as error:
            raise HeadwaterError(
                f"{self.env_id}: an observation does not fit the env's space {space}: {type(error).__name__}: {error}. "
                "Give observations of the shape and kind that env.reset() and env.step() return; compute_actions takes "
                "many of them, compute_action one."
            ) from error
        self.encoder.check_masks(rows, noun="observation")
        return rows


def _stacked(states: Sequence[Sequence[Any]], rows: int) -> list[NDArray]:
    """A state for each of B observations as parts [B, ...]."""
    try:
        parts = [np.stack([np.asarray(part) for part in of_rows]) for of_rows in zip(*states, strict=True)]
        if len(states) == rows:
            return parts
        raise ValueError(f"there are {len(states)} states for {rows} observations")
    except ValueError as error:
        raise HeadwaterError(
            f"The states given do not fit together: {error}. Give each observation the list of parts that "
            "get_initial_state() returns, or that came out with the action before."
        ) from error


class ExportedPolicy:
    """A trained policy without its trainer or framework: raw observations in, actions for the env out.

    Example:
        >>> import tempfile
        >>> from headwater import PPOTrainer
        >>> with PPOTrainer({"seed": 0}, env="CartPole-v1", logger_creator=False) as trainer:
        ...     path = trainer.export_policy_model(tempfile.mkdtemp())
        >>> ExportedPolicy.load(path).compute_action([0.0, 0.1, 0.0, -0.1], explore=False) in (0, 1)
        True
    """

    def __init__(self, chain: ActingChain) -> None:
        self.chain = chain

    @property
    def observation_space(self) -> Any:
        """The env's."""
        return self.chain.encoder.original_space

    @property
    def action_space(self) -> Any:
        """The env's."""
        return self.chain.action_adapter.space

    @classmethod
    def load(cls, path: str | Path, seed: int | None = None) -> ExportedPolicy:
        """The policy that `Trainer.export_policy_model` wrote to the directory `path`.

        Args:
            seed: of the actions that are sampled.

        Raises:
            CheckpointError: what is there is no such export, or is damaged.
        """
        policy = NumpyPolicy.load(path, seed)
        try:
            content = json.loads((Path(path) / _FILE).read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"it has not the format {FORMAT!r}")
            if content["version"] != VERSION:
                raise ValueError(f"it has version {content['version']!r}, and this headwater reads {VERSION}")
            action_space = space_from_json(content["action_space"])
            adapter = get_action_adapter(
                action_space,
                clip_actions=bool(content["clip_actions"]),
                normalize_actions=bool(content["normalize_actions"]),
            )
            model = {name: bool(content[name]) for name in ("use_prev_action", "use_prev_reward")}
            view = {"model": model | {"custom_preprocessor": None}, "clip_rewards": content["clip_rewards"]}
            encoder = policy_encoder(space_from_json(content["observation_space"]), action_space, view, str(path))
            if encoder.space != policy.observation_space or adapter.space != policy.action_space:
                raise ValueError("its spaces are not those of policy.json")
            features = num_features(encoder.space)
            obs_filter = get_filter(str(content["observation_filter"]), encoder.space.shape, features)
            if content["filter"].keys() != obs_filter.get_state().keys():
                raise ValueError(f"its filter is no {content['observation_filter']}")
            obs_filter.set_state(content["filter"])
            policy.on_global_var_update({"timestep": int(content["timestep"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, HeadwaterError) as error:
            raise CheckpointError(
                f"{Path(path) / _FILE} cannot be read: {type(error).__name__}: {error}. Give the directory that "
                "Trainer.export_policy_model(path) wrote."
            ) from error
        gather = make_gather(encoder.original_space)
        return cls(ActingChain(encoder, obs_filter, policy, adapter, gather, str(path)))

    def get_initial_state(self) -> list[NDArray]:
        """What a policy with memory remembers before an episode's first step; [] without memory."""
        return self.chain.policy.get_initial_state()

    def compute_action(
        self,
        observation: Any,
        explore: bool | None = None,
        state: Sequence[Any] | None = None,
        prev_action: Any = None,
        prev_reward: float | None = None,
    ) -> Any:
        """The action for one observation as the env gives it.

        Args:
            observation: as the env gives it.
            explore: None: as in training.
            state: of a policy with memory, as the call for the episode's step before returned it; None: it begins.
            prev_action, prev_reward: as of `Trainer.compute_action`.

        Returns:
            The action, or with a state (action, state after it, extra fetches), as of `Trainer.compute_action`.
        """
        actions, states, extra = self.chain.compute_actions(
            [observation], explore, [state] if state else None, [prev_action], [prev_reward]
        )
        if not state:
            return actions[0]
        return actions[0], states[0], {name: value[0] for name, value in extra.items()}

    def compute_actions(
        self,
        observations: Sequence[Any],
        explore: bool | None = None,
        states: Sequence[Sequence[Any]] | None = None,
        prev_actions: Sequence[Any] | None = None,
        prev_rewards: Sequence[float | None] | None = None,
    ) -> Any:
        """An action for each of many observations, in one forward pass.

        Returns:
            B actions, or with a state for each observation (B actions, B states after them, extra fetches).
        """
        result = self.chain.compute_actions(observations, explore, states, prev_actions, prev_rewards)
        return result[0] if states is None else result


def write_exported_policy(path: str | Path, chain: ActingChain, config: Any) -> Path:
    """Write the chain to the directory `path`, made where it is missing.

    Args:
        config: of the run that trained the policy.

    Raises:
        ConfigError: the network, the distribution or the preprocessor is a class of the user's own, which a file cannot
            hold.
    """
    preprocessor = config["model"]["custom_preprocessor"]
    if preprocessor is not None:
        raise ConfigError(
            f"export: model.custom_preprocessor is code of your own ({preprocessor!r}), which an export cannot hold. "
            "policy.export_model(path) writes the part behind it, which acts on encoded observations."
        )
    directory = Path(chain.policy.export_model(path))
    content = {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(chain.encoder.original_space),
        "action_space": space_to_json(chain.action_adapter.space),
        "clip_actions": bool(config["clip_actions"]),
        "normalize_actions": bool(config["normalize_actions"]),
        "use_prev_action": bool(config["model"]["use_prev_action"]),
        "use_prev_reward": bool(config["model"]["use_prev_reward"]),
        "clip_rewards": config["clip_rewards"],
        "observation_filter": config["observation_filter"],
        "filter": chain.obs_filter.get_state(),
        "timestep": chain.policy.global_timestep,
    }
    text = json.dumps(content, allow_nan=False, default=np.ndarray.tolist)
    replace_file(directory / _FILE, (text + "\n").encode())
    return directory
