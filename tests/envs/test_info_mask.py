"""Masks that envs give in their infos: Gymnasium's Taxi, and what goes wrong."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headwater import PPOTrainer
from headwater.config import TrainerConfig
from headwater.envs.env_context import EnvContext
from headwater.envs.info_mask import MaskFromInfo
from headwater.envs.vector_env import make_vector_env
from headwater.errors import ConfigError, EnvError
from headwater.registry import env_creator_for
from tests.toy_envs import CounterEnv, counter_vector

TAXI = max((name for name in gym.registry if name.startswith("Taxi-v")), default="")


class InfoMaskEnv(CounterEnv):
    """Two actions; allowed is the one of the step's parity. `silent` are the steps whose infos have no mask."""

    def __init__(self, length: int = 4, silent: tuple[int, ...] = (), entries: int = 2) -> None:
        super().__init__(length)
        self.silent, self.entries = silent, entries

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = super().reset(**kwargs)
        return observation, self._info()

    def step(self, action: Any) -> Any:
        assert action == self.t % 2, "forbidden"
        *result, _ = super().step(action)
        return *result, self._info()

    def _info(self) -> dict[str, Any]:
        allowed = np.arange(self.entries) == self.t % 2
        return {"other": 1} if self.t in self.silent else {"action_mask": allowed}


def test_taxi_takes_no_wasted_step() -> None:
    """Taxi masks the steps that change nothing; the one who keeps to the mask never takes any."""
    env = MaskFromInfo(gym.make(TAXI), TAXI)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    settings = {"action_mask_from_info": True, "num_envs_per_worker": 4, "train_batch_size": 400, "seed": 0}
    with PPOTrainer({**settings, "sgd_minibatch_size": 100}, env=TAXI, logger_creator=False) as trainer:
        result = trainer.train()
        batch = trainer.workers.local_worker().sample()
        action = trainer.compute_action(observation, explore=False)
    masks = batch["obs"][:, -6:]
    assert masks.sum(1).min() >= 1 and masks.sum(1).max() < 6
    assert (masks[np.arange(len(masks)), batch["actions"]] == 1).all()
    assert observation["action_mask"][action] == 1
    entropy = result["info"]["learner"]["default_policy"]["entropy"]
    assert entropy < np.log(masks.sum(1)).mean() + 0.1  # that of what is allowed, not log(6)


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
def test_the_mask_becomes_a_part_of_the_observation(vectorization: str) -> None:
    settings = {"action_mask_from_info": True, "vectorization": vectorization, "num_envs_per_worker": 2, "seed": 0}
    config = {**settings, "train_batch_size": 64, "sgd_minibatch_size": 64}
    with PPOTrainer(config, env=InfoMaskEnv, logger_creator=False) as trainer:
        batch = trainer.workers.local_worker().sample()
        trainer.train()
        assert trainer.evaluate()["evaluation"]["episode_len_mean"] == 4
    assert (batch["actions"] == batch["obs"][:, 0] % 2).all()


def test_the_last_step_of_an_episode_may_be_without_one() -> None:
    env = MaskFromInfo(InfoMaskEnv(length=2, silent=(2,)), "env")
    env.reset()
    env.step(0)
    observation, _, _, truncated, _ = env.step(1)
    assert truncated and not observation["action_mask"].any()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"silent": (0,)}, r"info of reset\(\) has no 'action_mask', only \['other'\]"),
        ({"silent": (2,)}, "info of step 2 of an episode has no 'action_mask'"),
        ({"entries": 3}, r"wrong action mask: action has 2 choices, but its mask has 3 entries"),
    ],
)
def test_infos_without_a_mask_are_errors(kwargs: dict[str, Any], message: str) -> None:
    config = {"action_mask_from_info": True, "train_batch_size": 64, "sgd_minibatch_size": 64}
    with (
        pytest.raises(EnvError, match=f"InfoMaskEnv.*{message}"),
        PPOTrainer({**config, "env_config": kwargs}, env=InfoMaskEnv, logger_creator=False) as trainer,
    ):
        trainer.train()


def test_vector_envs_are_refused() -> None:
    with pytest.raises(ConfigError, match="vectorization.*action_mask_from_info.*'sync'"):
        TrainerConfig(action_mask_from_info=True, vectorization="native").check()
    config = TrainerConfig(action_mask_from_info=True, num_envs_per_worker=2)
    env_id, creator = env_creator_for(lambda context: counter_vector(gym.vector.AutoresetMode.NEXT_STEP, 2))
    with pytest.raises(ConfigError, match="returned a vector env"):
        make_vector_env(creator, env_id, 2, config, EnvContext())


def test_auto_takes_copies_where_there_is_a_native_vector_env() -> None:
    env_id, creator = env_creator_for("CartPole-v1")
    config = TrainerConfig(action_mask_from_info=True)
    env = make_vector_env(creator, env_id, 2, config, EnvContext())
    with pytest.raises(EnvError, match=r"CartPole-v1.*has no 'action_mask'"):
        env.reset()
    env.close()


def test_continuous_actions_have_nothing_to_mask() -> None:
    with pytest.raises(ConfigError, match="nothing to mask"):
        MaskFromInfo(gym.make("Pendulum-v1"), "Pendulum-v1")


def test_a_masked_env_can_be_saved() -> None:
    """With an env that can: the copies go on where they were."""
    config = TrainerConfig(action_mask_from_info=True)
    env_id, creator = env_creator_for(SavedMaskEnv)
    env, other = (make_vector_env(creator, env_id, 2, config, EnvContext(), seeds=[1, 2]) for _ in range(2))
    env.reset()
    env.step(np.array([0, 0]))
    obs = other.set_state(env.get_state())
    assert obs["observation"].ravel().tolist() == [1, 1] and obs["action_mask"].tolist() == [[0, 1]] * 2
    assert other.step(np.array([1, 1])).obs["observation"].ravel().tolist() == [2, 2]


class SavedMaskEnv(InfoMaskEnv):
    def get_state(self) -> dict[str, Any]:
        return {"t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t = state["t"]


def test_spaces() -> None:
    env = MaskFromInfo(InfoMaskEnv(), "env")
    assert env.observation_space["action_mask"] == spaces.Box(0, 1, (2,), np.int8)
