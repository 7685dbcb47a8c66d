"""Policies that leave their trainer: raw observations in, env actions out, the same as everywhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headwater import ExportedPolicy, PPOTrainer
from headwater.errors import CheckpointError, HeadwaterError

SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "seed": 3}

OBSERVATIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-5.0, 50.0, (3,), np.float32),
    "nested": spaces.Dict(
        {"z": spaces.MultiDiscrete([2, 3]), "a": spaces.Box(-1, 9, (2, 2)), "d": spaces.Discrete(4, start=-1)}
    ),
    "image": spaces.Box(0, 255, (12, 10), np.uint8),
}
ACTIONS: dict[str, spaces.Space] = {
    "stretched": spaces.Box(np.array([300, -np.inf, 0], np.float32), np.array([500, np.inf, np.inf], np.float32)),
    "integers": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "nested": spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(-0.1, 0.1, (2,))]),
}


class SpacesEnv(gym.Env):
    """Observes samples of its space, whatever is done."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 9, False, {}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.allclose(a, b, atol=1e-4)) and np.shape(a) == np.shape(b)


@pytest.mark.parametrize(
    ("obs", "action", "settings"),
    [
        ("box", "stretched", {"observation_filter": "MeanStdFilter"}),
        ("box", "stretched", {"observation_filter": "MeanStdFilter", "acting": "framework"}),
        ("box", "stretched", {"normalize_actions": False, "clip_actions": True}),
        ("nested", "integers", {"observation_filter": "MeanStdFilter"}),
        ("nested", "nested", {"model": {"free_log_std": True}}),
        ("image", "integers", {"model": {"conv_filters": [[4, [4, 4], 2]], "fcnet_hiddens": [8]}}),
    ],
)
def test_it_acts_as_the_trainer_does(obs: str, action: str, settings: dict[str, Any], tmp_path: Path) -> None:
    env = SpacesEnv(OBSERVATIONS[obs], ACTIONS[action])
    with PPOTrainer({**SMALL, **settings}, env=lambda context: env_of(obs, action), logger_creator=False) as trainer:
        trainer.train()
        exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path / "out"), seed=1)
        assert (exported.observation_space, exported.action_space) == (env.observation_space, env.action_space)
        env.observation_space.seed(4)
        observations = [env.observation_space.sample() for _ in range(100)]
        expected = [trainer.compute_action(observation, explore=False) for observation in observations]
        for size in (1, 7, 100):
            actions: list[Any] = []
            for start in range(0, 100, size):
                actions += exported.compute_actions(observations[start : start + size], explore=False)
            assert all(equal(mine, theirs) for mine, theirs in zip(actions, expected, strict=True))
        assert all(env.action_space.contains(exported.compute_action(o)) for o in observations)
        before = trainer.workers.local_worker().filters["default_policy"].get_state()
        again = exported.chain.obs_filter.get_state()
        assert json.dumps(before, default=np.ndarray.tolist) == json.dumps(again, default=np.ndarray.tolist)


def env_of(obs: str, action: str) -> SpacesEnv:
    return SpacesEnv(OBSERVATIONS[obs], ACTIONS[action])


def test_after_the_random_beginning_it_does_not_begin_anew(tmp_path: Path) -> None:
    settings = {"exploration_config": {"random_timesteps": 60}, "lr": 0.0}
    with PPOTrainer({**SMALL, **settings}, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.train()
        weights = trainer.get_weights()["default_policy"]
        bias = np.array([-50.0, 50.0], np.float32)
        trainer.set_weights({"default_policy": {**weights, "policy/out/bias": bias}})
        exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path))
    assert set(exported.compute_actions([np.zeros(4)] * 200, explore=True)) == {1}


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from headwater import ExportedPolicy
print(int(ExportedPolicy.load(sys.argv[1]).compute_action([0.1, 0.2, 0.3, 0.4], explore=False)))
"""


def test_it_needs_no_framework(tmp_path: Path) -> None:
    settings = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.train()
        trainer.export_policy_model(tmp_path)
        expected = trainer.compute_action(np.array([0.1, 0.2, 0.3, 0.4], np.float32), explore=False)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == expected


def replaced(old: str, new: str) -> Callable[[Path], Any]:
    def damage(directory: Path) -> None:
        text = (directory / "acting.json").read_text()
        assert old in text
        (directory / "acting.json").write_text(text.replace(old, new))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "acting.json").unlink(),
        lambda directory: (directory / "acting.json").write_text("{"),
        lambda directory: (directory / "acting.json").write_text("[" * 100000),
        lambda directory: (directory / "policy.json").unlink(),
        replaced("headwater-acting", "another"),
        replaced('"version": 1', '"version": 2'),
        replaced('"MeanStdFilter"', '"os:system"'),
        replaced('"MeanStdFilter"', '"NoFilter"'),
        replaced('"mean": [', '"mean": [1.0, '),
        replaced('"n": 2,', '"n": 3,'),
    ],
)
def test_damaged_exports_are_refused(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    settings = {**SMALL, "observation_filter": "MeanStdFilter"}
    with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.export_policy_model(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        ExportedPolicy.load(tmp_path)


@pytest.mark.parametrize(
    ("obs", "value"),
    [
        ("box", np.zeros(4)),
        ("box", np.zeros((2, 3))),
        ("box", [0.0, np.nan, 0.0]),
        ("box", "up"),
        ("box", None),
        ("nested", {"z": [0, 0]}),
        ("nested", {"z": [0, 0], "a": np.zeros((2, 2)), "d": 9}),
        ("nested", {"z": [0, 0], "a": np.zeros((2, 2)), "d": -2}),  # would be the last of another part
        ("nested", {"z": [0, 0], "a": np.zeros((2, 2)), "d": 0.7}),
        ("nested", {"z": [2, 0], "a": np.zeros((2, 2)), "d": 0}),
        ("nested", 3),
    ],
)
def test_observations_that_do_not_fit_are_refused_by_the_trainer_too(obs: str, value: Any) -> None:
    with (
        PPOTrainer(SMALL, env=lambda context: env_of(obs, "integers"), logger_creator=False) as trainer,
        pytest.raises(HeadwaterError, match="does not fit the env's space"),
    ):
        trainer.compute_action(value)
