"""Action masks end to end: what is forbidden is never done, and what is reported is of what is allowed (case P19)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater import ExportedPolicy, PPOTrainer
from headwater.algorithms.ppo.config import PPOConfig
from headwater.envs.action_masks import choices_of
from headwater.errors import EnvError
from headwater.sampling.policy_encoder import policy_encoder
from tests.sampling.test_rollout_worker import make_worker

MIXED = spaces.Dict(
    {"z": spaces.MultiDiscrete([2, 3]), "force": spaces.Box(300, 500, (2,)), "a": spaces.Discrete(3, start=5)}
)
# Name -> action space, mask space, and how the flat row is given.
FORMS: dict[str, tuple[spaces.Space, spaces.Space, Any]] = {
    "discrete": (spaces.Discrete(5, start=2), spaces.MultiBinary(5), lambda row: row),
    "multi, flat": (spaces.MultiDiscrete([2, 3]), spaces.Box(0, 1, (5,)), lambda row: row.astype(np.float32)),
    "multi, by place": (
        spaces.MultiDiscrete([2, 3]),
        spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2, 2])]),
        lambda row: (row[:2], row[2:].astype(np.int64)),
    ),
    "dict, nested": (
        MIXED,
        spaces.Dict({"a": spaces.MultiBinary(3), "z": spaces.Box(0, 1, (5,), bool)}),
        lambda row: {"a": row[:3], "z": row[3:].astype(bool)},
    ),
    "dict, flat": (MIXED, spaces.MultiBinary(8), lambda row: row),
    "tuple": (
        spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 2])]),
        spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(4)]),
        lambda row: (row[:3], row[3:]),
    ),
}


class MaskedEnv(gym.Env):
    """Allows a random part of each choice, pays for the last choice allowed, and refuses what is forbidden.

    In the final observation nothing is allowed, as PettingZoo has it. `dead_at` is a step at which nothing is.
    """

    def __init__(self, form: str = "discrete", length: int = 6, dead_at: int | None = None) -> None:
        self.action_space, mask_space, self.given = FORMS[form]
        self.observation_space = spaces.Dict({"x": spaces.Box(0, 1, (2,)), "action_mask": mask_space})
        self.sizes = [choice.size for choice in choices_of(self.action_space)]
        self.length, self.dead_at = length, dead_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        chosen = np.concatenate(list(_choices(self.action_space, action)))
        rows = np.split(self.row, np.cumsum(self.sizes)[:-1])
        assert all(row[choice] for row, choice in zip(rows, chosen, strict=True)), f"{chosen} is forbidden by {rows}"
        reward = np.mean([choice == np.flatnonzero(row)[-1] for row, choice in zip(rows, chosen, strict=True)])
        self.t += 1
        return self._obs(), float(reward), self.t >= self.length, False, {}

    def _obs(self) -> Any:
        rows = []
        for size in self.sizes:
            row = self.np_random.integers(0, 2, size)
            row[self.np_random.integers(size)] = 1
            rows.append(row)
        self.row = np.concatenate(rows).astype(np.int8)
        if self.t in (self.length, self.dead_at):
            self.row = np.zeros_like(self.row)
        return {"x": self.np_random.random(2, np.float32), "action_mask": self.given(self.row)}


def _choices(space: spaces.Space, action: Any) -> Any:
    """The choices of an action, counted from 0, in the order of the mask."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _choices(space.spaces[key], action[key])
    elif isinstance(space, spaces.Tuple):
        for child, part in zip(space.spaces, action, strict=True):
            yield from _choices(child, part)
    elif not isinstance(space, spaces.Box):
        yield np.atleast_1d(action - space.start)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_forbidden_is_never_done(form: str, tmp_path: Any) -> None:
    """While learning, evaluating, exploring at random and by hand: the env raises where it is."""
    config = {
        "num_envs_per_worker": 4, "train_batch_size": 512, "sgd_minibatch_size": 128, "seed": 0, "lr": 1e-2,
        "env_config": {"form": form}, "observation_filter": "MeanStdFilter", "evaluation_num_episodes": 8,
        "exploration_config": {"random_timesteps": 256},
    }  # fmt: skip
    with PPOTrainer(config, env=MaskedEnv, logger_creator=False) as trainer:
        results = [trainer.train() for _ in range(5)]
        stats = results[-1]["info"]["learner"]["default_policy"]
        assert all(np.isfinite(value) for value in stats.values()) and stats["num_bad_updates"] == 0
        assert trainer.evaluate()["evaluation"]["episode_len_mean"] == 6
        exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path / "export"))
        env = MaskedEnv(form)
        observation, _ = env.reset(seed=3)
        for step in range(6):
            explore = step % 2 == 0
            if not explore:
                np.testing.assert_equal(
                    trainer.compute_action(observation, explore=False),
                    exported.compute_action(observation, explore=False),
                )
            observation, *_ = env.step(exported.compute_action(observation, explore=explore))
        with pytest.raises(EnvError, match=r"MaskedEnv.*\(observation 0\).*allows none of the \d choices for action"):
            trainer.compute_action(observation)


def test_twenty_thousand_steps_and_what_is_learned() -> None:
    config = {"num_envs_per_worker": 8, "train_batch_size": 2000, "sgd_minibatch_size": 250, "seed": 0, "lr": 3e-3}
    with PPOTrainer(config, env=MaskedEnv, logger_creator=False) as trainer:
        first = trainer.train()
        for _ in range(9):
            result = trainer.train()
    assert result["timesteps_total"] == 20000
    assert result["episode_reward_mean"] > 5 > first["episode_reward_mean"]  # of 6


VECTORS: dict[str, Any] = {
    "copies": lambda context: MaskedEnv(),
    **{
        mode.name.lower(): lambda context, mode=mode: SyncVectorEnv([MaskedEnv] * 2, autoreset_mode=mode)
        for mode in AutoresetMode
    },
}


@pytest.mark.parametrize("mode", VECTORS)
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_where_nobody_acts_nothing_need_be_allowed(mode: str, batch_mode: str) -> None:
    worker = make_worker(VECTORS[mode], 2, rows=40, batch_mode=batch_mode)
    for _ in range(3):
        masks = worker.sample()["obs"][:, 2:]
        assert masks.any(1).all()
    assert [episode.episode_length for episode in worker.sample_episodes(5)] == [6] * 5
    worker.stop()


@pytest.mark.parametrize("mode", [name for name in VECTORS if name != "disabled"])
def test_where_nothing_is_allowed_but_somebody_must_act(mode: str) -> None:
    envs = {
        "copies": lambda context: MaskedEnv(dead_at=4 if context.vector_index else None),
        **{
            name.name.lower(): lambda context, name=name: SyncVectorEnv(
                [MaskedEnv, lambda: MaskedEnv(dead_at=4)], autoreset_mode=name
            )
            for name in AutoresetMode
        },
    }
    worker = make_worker(envs[mode], 2, rows=40)
    with pytest.raises(EnvError, match=r"sub-env 1.*none of the 5 choices for action. Allow at least one"):
        worker.sample()
    worker.stop()


def test_the_choice_that_lacks_is_named() -> None:
    space, mask_space, given = FORMS["dict, nested"]
    seen = spaces.Dict({"x": spaces.Box(0, 1, (2,)), "action_mask": mask_space})
    encoder: Any = policy_encoder(seen, space, PPOConfig(), "Toy-v0")
    masks = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 1, 0, 0, 0]], np.int8)
    nested = [given(row) for row in masks]
    batch = {"a": np.stack([mask["a"] for mask in nested]), "z": np.stack([mask["z"] for mask in nested])}
    rows = encoder.encode({"x": np.zeros((2, 2), np.float32), "action_mask": batch})
    assert rows[:, 2:].tolist() == masks.tolist()
    with pytest.raises(EnvError, match=r"'Toy-v0' \(sub-env 1\).*none of the 3 choices for action\['z'\]\[1\]"):
        encoder.check_masks(rows)
    encoder.check_masks(rows[:1])
    encoder.check_masks(rows, idle=np.array([False, True]))
    assert (rows[:, 2:] == 1).all()


@pytest.mark.parametrize("mode", VECTORS)
def test_masks_beside_memory_and_the_step_before(mode: str) -> None:
    """Padded rows of sequences allow nothing, which spoils no statistic."""
    model = {"memory": "gru", "memory_size": 16, "max_seq_len": 4, "use_prev_action": True, "use_prev_reward": True}
    config = {"num_envs_per_worker": 2, "train_batch_size": 256, "sgd_minibatch_size": 64, "seed": 0, "model": model}
    with PPOTrainer(config, env=VECTORS[mode], logger_creator=False) as trainer:
        for _ in range(3):
            stats = trainer.train()["info"]["learner"]["default_policy"]
        assert all(np.isfinite(value) for value in stats.values()) and stats["num_bad_updates"] == 0
        assert 0 < stats["entropy"] < np.log(5)
        assert trainer.evaluate()["evaluation"]["episode_len_mean"] == 6
        env = MaskedEnv()
        observation, _ = env.reset(seed=1)
        state, action, reward = trainer.get_policy().get_initial_state(), None, None
        for _ in range(6):
            action, state, _ = trainer.compute_action(observation, state, prev_action=action, prev_reward=reward)
            observation, reward, *_ = env.step(action)
