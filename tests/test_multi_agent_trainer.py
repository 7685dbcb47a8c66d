"""Trainers of several agents and policies: learning, results, evaluation, checkpoints, export, the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.envs import MultiAgentCartPole
from headwater import ExportedPolicy, PPOTrainer
from headwater.config import PolicySpec
from headwater.envs.space_json import space_from_json
from headwater.errors import CheckpointError

TUNED = Path(__file__).parents[1] / "tuned"
TABLE = {"0": "left", "1": "left", "2": "right", "3": "right"}
TWO = {"policies": ["left", "right"], "policy_mapping_fn": TABLE}


def trainer_of(**changes: Any) -> PPOTrainer:
    config = {
        "num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2, "seed": 3,
        "multiagent": TWO, "checkpoint_barrier": True, **changes,
    }  # fmt: skip
    return PPOTrainer(config, env=MultiAgentCartPole, logger_creator=False)


@pytest.mark.parametrize("framework", ["torch", "tf2", "jax"])
def test_two_policies_learn_in_one_plan(framework: str) -> None:
    with trainer_of(framework=framework) as trainer:
        before = trainer.get_weights()
        result = trainer.train()
        after = trainer.get_weights()
    assert sorted(result["info"]["learner"]) == ["left", "right"]
    for policy_id in before:
        assert any(not np.array_equal(before[policy_id][name], after[policy_id][name]) for name in before[policy_id])
    info = result["info"]
    assert info["num_steps_sampled"] == info["num_steps_trained"] == result["timesteps_total"] == 64
    assert 64 < info["num_agent_steps_sampled"] == info["num_agent_steps_trained"] <= 256
    assert sorted(result["policy_reward_mean"]) == ["left", "right"]
    assert result["episode_reward_mean"] > 40 and "policy_left_reward" in result["hist_stats"]


def test_agent_steps_may_be_counted() -> None:
    with trainer_of(multiagent={**TWO, "count_steps_by": "agent_steps"}) as trainer:
        info = trainer.train()["info"]
    assert 64 <= info["num_agent_steps_trained"] < 80 and info["num_steps_sampled"] < 64


def test_only_those_to_train_learn() -> None:
    with trainer_of(multiagent={**TWO, "policies_to_train": ["right"]}) as trainer:
        before = trainer.get_weights(["left"])["left"]
        result = trainer.train()
        after = trainer.get_weights(["left"])["left"]
    assert list(result["info"]["learner"]) == ["right"] and sorted(result["policy_reward_mean"]) == ["left", "right"]
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_evaluation_runs_the_episodes_asked_for() -> None:
    with trainer_of(evaluation_interval=1, evaluation_num_episodes=5) as trainer:
        first = trainer.train()
        steps = first["timesteps_total"]
        evaluation = first["evaluation"]
    assert evaluation["episodes_this_iter"] == 5 and steps == 64
    assert sorted(evaluation["policy_reward_mean"]) == ["left", "right"]


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    settings = {"observation_filter": "MeanStdFilter", "kl_coeff": 0.2}
    with trainer_of(**settings) as trainer:
        for _ in range(2):
            trainer.train()
        path = trainer.save(tmp_path)
        expected = [trainer.train() for _ in range(2)]
        weights = trainer.get_weights()
    with PPOTrainer.from_checkpoint(path, logger_creator=False) as resumed:
        results = [resumed.train() for _ in range(2)]
        again = resumed.get_weights()
    for was, now in zip(expected, results, strict=True):
        assert was["info"]["learner"] == now["info"]["learner"]
        assert was["episode_reward_mean"] == now["episode_reward_mean"]
        assert was["timesteps_total"] == now["timesteps_total"]
    for policy_id, parameters in weights.items():
        assert all(np.array_equal(again[policy_id][name], value) for name, value in parameters.items())


def test_checkpoints_say_which_policies_they_hold(tmp_path: Path) -> None:
    with trainer_of() as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    with pytest.raises(CheckpointError, match="holds the policies left, right, but this config has only"):
        PPOTrainer.from_checkpoint(
            path, {"multiagent": {"policies": ["only"], "policy_mapping_fn": None}}, logger_creator=False
        )


def test_explicit_spaces_survive_a_checkpoint(tmp_path: Path) -> None:
    pole = MultiAgentCartPole()
    spec = PolicySpec(None, pole.observation_space, pole.action_space, {"gamma": 0.9})
    settings = {"policies": {"left": spec, "right": spec}, "policy_mapping_fn": TABLE}
    with trainer_of(multiagent=settings) as trainer:
        path = trainer.save(tmp_path)
        saved = json.loads(json.dumps(trainer.config.to_dict()))
    assert space_from_json(saved["multiagent"]["policies"]["left"][1]) == pole.observation_space
    with PPOTrainer.from_checkpoint(path, logger_creator=False) as resumed:
        assert resumed.get_policy("right").config.gamma == 0.9
        resumed.train()


def test_each_policy_acts_and_is_exported(tmp_path: Path) -> None:
    obs = [0.1, 0.0, -0.1, 0.0]
    with trainer_of() as trainer:
        actions = {
            policy_id: trainer.compute_action(obs, policy_id=policy_id, explore=False)
            for policy_id in ("left", "right")
        }
        for policy_id, action in actions.items():
            exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path / policy_id, policy_id))
            assert exported.compute_action(obs, explore=False) == action
        assert trainer.get_policy() is None and trainer.get_policy("left") is not None


def test_one_policy_for_all_agents_is_the_default() -> None:
    with trainer_of(multiagent={}) as trainer:
        result = trainer.train()
    assert list(result["info"]["learner"]) == ["default_policy"] and result["policy_reward_mean"] == {}


def test_memory_for_several_agents() -> None:
    with trainer_of(model={"memory": "lstm", "memory_size": 8, "max_seq_len": 5}) as trainer:
        stats = trainer.train()["info"]["learner"]["left"]
    assert np.isfinite(stats["total_loss"])


def test_from_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from headwater.cli.main import app

    result = CliRunner().invoke(app, [
        "train", "--config", str(TUNED / "multi_agent_cartpole.yaml"), "--stop-iters", "1",
        "--local-dir", str(tmp_path),
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    [rows] = list(tmp_path.rglob("result.jsonl"))
    assert sorted(json.loads(rows.read_text().splitlines()[-1])["info"]["learner"]) == ["left", "right"]


def test_two_policies_learn_to_balance() -> None:
    from headwater.cli.run_request import merge_nested, read_request

    request = read_request(TUNED / "multi_agent_cartpole.yaml", None, known=())
    best = -np.inf
    with PPOTrainer(merge_nested(request.config, {"seed": 1}), env=request.env, logger_creator=False) as trainer:
        while best < 150:
            result = trainer.train()
            assert result["timesteps_total"] < 200_000
            best = min(result["policy_reward_mean"].values())
