"""Runs whose experience goes to files, and comes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest

from headwater import PPOTrainer
from headwater.data.sample_batch import SampleBatch
from headwater.errors import ConfigError
from headwater.offline import InputReader, OfflineError, ParquetReader
from tests.test_multi_agent_trainer import TWO, MultiAgentCartPole

POLE = gym.make("CartPole-v1")
SPACES = {"observation_space": POLE.observation_space, "action_space": POLE.action_space}


def config(**changes: Any) -> dict[str, Any]:
    return {"num_envs_per_worker": 4, "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 0,
            "vectorization": "sync", **changes}  # fmt: skip


def recorded(tmp_path: Path, iterations: int = 3, **changes: Any) -> Path:
    """A directory with what a run sampled."""
    place = tmp_path / "experience"
    with PPOTrainer(config(output=str(place), **changes), env="CartPole-v1", logger_creator=False) as trainer:
        for _ in range(iterations):
            trainer.train()
    return place


def test_what_is_sampled_is_written_and_learned_from_again(tmp_path: Path) -> None:
    place = recorded(tmp_path)
    rows = ParquetReader(str(place), batch_rows=None, shuffle_seed=None, epochs=1)
    assert sum(batch.count for batch in rows) == 192
    settings = config(input=str(place), input_evaluation=["is", "wis"], **SPACES)
    with PPOTrainer(settings, logger_creator=False) as trainer:
        assert trainer.env_id == "no env"
        before = trainer.get_weights()["default_policy"]
        result = trainer.train()
        after = trainer.get_weights()["default_policy"]
        assert any(not np.array_equal(before[name], after[name]) for name in before)
        assert result["timesteps_total"] == 64 and np.isnan(result["episode_reward_mean"])
        assert set(result["off_policy_estimator"]) == {"is", "wis"}
        with pytest.raises(ConfigError, match="episodes of 'no env' come from outside"):
            trainer.evaluate()
    settings["evaluation_config"] = {"env": "CartPole-v1"}
    with PPOTrainer(
        {**settings, "evaluation_interval": 1, "evaluation_num_episodes": 2}, logger_creator=False
    ) as trainer:
        assert trainer.train()["evaluation"]["episodes_this_iter"] == 2
    settings["evaluation_config"] = {"env": "Acrobot-v1"}
    with (
        pytest.raises(ConfigError, match="evaluation_config.env: its spaces are"),
        PPOTrainer(settings, logger_creator=False) as trainer,
    ):
        trainer.evaluate()


def test_an_env_beside_files_is_evaluated_in(tmp_path: Path) -> None:
    settings = config(input=str(recorded(tmp_path)), evaluation_interval=1, evaluation_num_episodes=3)
    with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
        assert trainer.train()["evaluation"]["episodes_this_iter"] == 3


def test_a_mixture_of_files_and_the_env(tmp_path: Path) -> None:
    settings = config(input={str(recorded(tmp_path)): 0.5, "sampler": 0.5})
    with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
        for _ in range(4):
            result = trainer.train()
    assert result["episodes_total"] > 0 and result["timesteps_total"] >= 4 * 64


def test_rows_of_several_policies(tmp_path: Path) -> None:
    place = tmp_path / "experience"
    with PPOTrainer(config(output=str(place), multiagent=TWO), env=MultiAgentCartPole, logger_creator=False) as trainer:
        trainer.train()
    with PPOTrainer(config(input=str(place), multiagent=TWO), env=MultiAgentCartPole, logger_creator=False) as trainer:
        assert sorted(trainer.train()["info"]["learner"]) == ["left", "right"]


def test_minari_datasets_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    settings = config(output="minari:headwater/pole-v0", batch_mode="complete_episodes")
    with PPOTrainer(settings, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.train()
    dataset = minari.load_dataset("headwater/pole-v0")
    assert dataset.total_steps >= 64
    with PPOTrainer(config(input="minari:headwater/pole-v0", **SPACES), logger_creator=False) as trainer:
        assert np.isfinite(trainer.train()["info"]["learner"]["default_policy"]["total_loss"])


def test_a_resumed_run_reads_on_where_it_was(tmp_path: Path) -> None:
    settings = config(input=str(recorded(tmp_path)), **SPACES)
    with PPOTrainer(settings, logger_creator=False) as trainer:
        trainer.train()
        path = trainer.save(tmp_path / "checkpoint")
        trainer.train()
        expected = trainer.get_weights()["default_policy"]
    with PPOTrainer.from_checkpoint(path, logger_creator=False) as resumed:
        resumed.train()
        weights = resumed.get_weights()["default_policy"]
    assert all(np.array_equal(weights[name], value) for name, value in expected.items())


def test_a_reader_of_ones_own(tmp_path: Path) -> None:
    class Constant(InputReader):
        def next(self) -> SampleBatch:
            return SampleBatch({
                "obs": np.zeros((16, 4), np.float32), "new_obs": np.ones((16, 4), np.float32),
                "actions": np.zeros(16, np.int64), "rewards": np.ones(16, np.float32),
                "terminateds": np.zeros(16, bool), "truncateds": np.zeros(16, bool), "eps_id": np.zeros(16, np.int64),
            })  # fmt: skip

    seen: list[Any] = []

    def make(context: Any) -> InputReader:
        seen.append((context.worker_index, context.settings))
        return Constant()

    with PPOTrainer(config(input=make, input_config={"mine": 1}, **SPACES), logger_creator=False) as trainer:
        assert trainer.train()["timesteps_total"] == 64
    assert seen == [(0, {"mine": 1})]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OfflineError, match="nothing-here"):
        PPOTrainer(config(input=str(tmp_path / "nothing-here" / "*.parquet"), **SPACES), logger_creator=False)
    with pytest.raises(ConfigError, match="the setting observation_space must say"):
        PPOTrainer(config(input=str(tmp_path)), logger_creator=False)
    with pytest.raises(ConfigError, match="shuffle_buffer_size: is read with an `input` only"):
        PPOTrainer(config(shuffle_buffer_size=5), env="CartPole-v1", logger_creator=False)
    with pytest.raises(ConfigError, match="'logdir' is the run's directory"):
        PPOTrainer(config(output="logdir"), env="CartPole-v1", logger_creator=False)


def test_logdir_is_the_runs_directory(tmp_path: Path) -> None:
    with PPOTrainer(config(output="logdir", local_dir=str(tmp_path)), env="CartPole-v1") as trainer:
        trainer.train()
        directory = Path(trainer.logdir)
    assert list(directory.glob("output-*.parquet"))
