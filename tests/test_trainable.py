"""Saving a run and going on with it: complete, exact, refused where it does not fit, and never trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater
from headwater import PPOTrainer, Trainer
from headwater.algorithms.ppo.ppo import PPOConfig
from headwater.callbacks import DefaultCallbacks
from headwater.errors import CheckpointError, ConfigError, TrainingError
from tests.toy_envs import CounterEnv, LinearCritic, RandomLengthEnv
from tests.trainers import SMALL, flat_weights, without_times

ROOT = Path(headwater.__file__).parent.parent


GO_ON = """
import json, sys
import numpy as np
from headwater import Trainer
trainer = Trainer.from_checkpoint(sys.argv[1], logger_creator=False)
for _ in range(3):
    result = trainer.train()
weights = np.concatenate([w.ravel() for w in trainer.get_weights()["default_policy"].values()])
np.save(sys.argv[2], weights)
policy = trainer.get_policy()
stats = result["info"]["learner"]["default_policy"]
print(json.dumps([result["timesteps_total"], result["episodes_total"], result["episode_reward_mean"],
                  policy.coefficients["kl_coeff"], stats["cur_lr"], trainer.iteration]))
"""


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"vectorization": "native"}),
        ("CartPole-v1", {"vectorization": "sync", "observation_filter": "MeanStdFilter"}),
        ("CartPole-v1", {"batch_mode": "complete_episodes"}),
        ("Pendulum-v1", {"kl_coeff": 0.3}),
        ("CartPole-v1", {"exploration_config": {"random_timesteps": 500}, "observation_filter": "MeanStdFilter"}),
        ("Acrobot-v1", {"lr_schedule": [[0, 1e-3], [1000, 1e-4]], "entropy_coeff_schedule": [[0, 0.1], [500, 0.0]]}),
        ("MountainCarContinuous-v0", {}),
        ("tests.toy_envs:RandomLengthEnv", {"checkpoint_barrier": True}),
    ],
)
def test_a_resumed_run_equals_one_that_went_on(
    env: str, settings: dict[str, Any], tmp_path: Path, made: list[Trainer]
) -> None:
    trainer = PPOTrainer({**SMALL, **settings}, env=env, logger_creator=False)
    made.append(trainer)
    for _ in range(3):
        trainer.train()
    path = Path(trainer.save(tmp_path))
    for _ in range(3):
        result = trainer.train()
    moved = path.rename(tmp_path / "moved")
    out = tmp_path / "weights.npy"
    command = [sys.executable, "-c", GO_ON, str(moved), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(flat_weights(trainer), np.load(out))
    policy = trainer.get_policy()
    expected = [
        result["timesteps_total"], result["episodes_total"], result["episode_reward_mean"],
        policy.coefficients["kl_coeff"], result["info"]["learner"]["default_policy"]["cur_lr"], 6,
    ]  # fmt: skip
    np.testing.assert_array_equal(json.loads(done.stdout), expected)


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(made: list[Trainer]) -> None:
    runs = []
    for seed in (3, 3, 4):
        trainer = PPOTrainer({**SMALL, "seed": seed}, env="CartPole-v1", logger_creator=False)
        made.append(trainer)
        results = [without_times(trainer.train()) for _ in range(2)]
        runs.append((results, flat_weights(trainer)))
    assert runs[0][0] == runs[1][0] and runs[0][0] != runs[2][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_envs_that_cannot_be_saved_restart_and_the_checkpoint_says_so(
    tmp_path: Path, made: list[Trainer], caplog: pytest.LogCaptureFixture
) -> None:
    made.append(PPOTrainer(SMALL, env=RandomLengthEnv, logger_creator=False))
    made[0].train()
    path = made[0].save(tmp_path)
    assert json.loads((Path(path) / "checkpoint.json").read_text())
    with caplog.at_level("WARNING"):
        made.append(Trainer.from_checkpoint(path, logger_creator=False))
        made[1].restore(path)
    assert made[1].episodes_restarted and "restart" in caplog.text
    assert made[1].train()["timesteps_total"] == 2 * 128


def test_a_restored_trainer_saves_where_it_is_and_knows_its_score(tmp_path: Path, made: list[Trainer]) -> None:
    config = {**SMALL, "keep_checkpoints_num": 1, "local_dir": str(tmp_path), "tensorboard": False}
    made.append(PPOTrainer(config, env="CartPole-v1"))
    made[0].train()
    first = made[0].save(tmp_path / "kept")
    score = made[0].train()["episode_reward_mean"]
    second = made[0].save()
    made[0].restore(second)
    assert made[0].save() == second
    best = json.loads((Path(second).parent / "best.json").read_text(encoding="utf-8"))
    assert best["checkpoint"] == Path(second).name and best["score"] == score
    made[0].train()
    made[0].save()
    made[0].restore(first)
    assert Path(made[0].save()).name == "checkpoint_000001" and Path(made[0].save()).is_dir()


def test_settings_given_at_restore_win(tmp_path: Path, made: list[Trainer]) -> None:
    made.append(PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False))
    made[0].train()
    path = made[0].save(tmp_path)
    made.append(PPOTrainer.from_checkpoint(path, {"lr": 0.005, "gamma": 0.5, "clip_param": 0.4}, logger_creator=False))
    result = made[1].train()
    assert result["info"]["learner"]["default_policy"]["cur_lr"] == pytest.approx(0.005)
    assert made[1].config.gamma == 0.5 and made[1].config.clip_param == 0.4


def test_the_kl_coefficient_is_in_the_checkpoint(tmp_path: Path, made: list[Trainer]) -> None:
    made.append(PPOTrainer({**SMALL, "kl_coeff": 0.2}, env="CartPole-v1", logger_creator=False))
    made[0].get_policy().coefficients["kl_coeff"] = 7.0
    path = made[0].save(tmp_path)
    made.append(Trainer.from_checkpoint(path, logger_creator=False))
    assert made[1].get_policy().coefficients["kl_coeff"] == 7.0
    made.append(Trainer.from_checkpoint(path, {"kl_coeff": 0.5}, logger_creator=False))
    assert made[2].get_policy().coefficients["kl_coeff"] == 0.5


def test_another_envs_checkpoint_is_refused(tmp_path: Path, made: list[Trainer]) -> None:
    made.append(PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False))
    made.append(PPOTrainer(SMALL, env="Acrobot-v1", logger_creator=False))
    with pytest.raises(CheckpointError, match="observation space.*action space"):
        made[1].restore(made[0].save(tmp_path))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_never_saved(bad: float, tmp_path: Path, made: list[Trainer]) -> None:
    settings = {"checkpoint_freq": 1, "local_dir": str(tmp_path), "model": {"custom_model": LinearCritic}}
    made.append(PPOTrainer({**SMALL, **settings}, env="CartPole-v1"))
    made[0].train()
    saved = set(tmp_path.rglob("checkpoint_*"))
    assert len(saved) >= 1
    made[0].get_policy().model.outputs.data[1] = bad  # set_weights would refuse it
    for save in (made[0].save, lambda: made[0].save(tmp_path / "mine"), lambda: made[0].save_checkpoint(tmp_path)):
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            save()
    assert set(tmp_path.rglob("checkpoint_*")) == saved


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {"model": {"fcnet_hiddens": [8]}}, "policy/dense_0/kernel"),
        ("CartPole-v1", {"observation_filter": "MeanStdFilter"}, "observation_filter"),
        ("CartPole-v1", {"num_envs_per_worker": 2}, "num_envs_per_worker"),
        ("Acrobot-v1", {}, "observation space"),
    ],
)
def test_a_trainer_is_as_it_was_after_a_restore_that_failed(
    env: str, settings: dict[str, Any], message: str, tmp_path: Path, made: list[Trainer]
) -> None:
    made += [PPOTrainer({**SMALL, **settings}, env=env, logger_creator=False) for _ in range(2)]
    made.append(PPOTrainer({**SMALL, "seed": 8, "kl_coeff": 0.7}, env="CartPole-v1", logger_creator=False))
    results = [trainer.train() for trainer in made]
    path = made[2].save(tmp_path)
    with pytest.raises(headwater.HeadwaterError, match=message):
        made[0].restore(path)
    assert made[0].iteration == 1 and made[0].get_policy().coefficients == made[1].get_policy().coefficients
    for _ in range(2):
        results = [trainer.train() for trainer in made[:2]]
    assert without_times(results[0]) == without_times(results[1])
    np.testing.assert_array_equal(flat_weights(made[0]), flat_weights(made[1]))


def make_counter(context: Any) -> CounterEnv:
    return CounterEnv()


def test_a_checkpoint_alone_calls_no_function(tmp_path: Path, made: list[Trainer]) -> None:
    made.append(PPOTrainer(SMALL, env=make_counter, logger_creator=False))
    path = made[0].save(tmp_path)
    with pytest.raises(CheckpointError, match="make_counter.*trust"):
        Trainer.from_checkpoint(path, logger_creator=False)
    for options in ({"trust": True}, {"env": make_counter}):
        made.append(Trainer.from_checkpoint(path, logger_creator=False, **options))
    made.append(PPOTrainer(SMALL, env=lambda context: CounterEnv(), logger_creator=False))
    path = made[-1].save(tmp_path / "other")
    with pytest.raises(ConfigError, match="env"):
        Trainer.from_checkpoint(path, logger_creator=False)


@pytest.mark.parametrize("explore", [False, True])
def test_evaluations_after_a_resume_are_those_of_a_run_that_went_on(
    explore: bool, tmp_path: Path, made: list[Trainer]
) -> None:
    settings = {
        "evaluation_config": {"explore": explore}, "evaluation_num_episodes": 6, "observation_filter": "MeanStdFilter"
    }  # fmt: skip
    made.append(PPOTrainer({**SMALL, **settings}, env="CartPole-v1", logger_creator=False))
    made[0].train()
    made[0].evaluate()
    made.append(Trainer.from_checkpoint(made[0].save(tmp_path), logger_creator=False))
    rounds = [[trainer.evaluate()["evaluation"]["hist_stats"] for _ in range(2)] for trainer in made]
    assert rounds[0] == rounds[1] and rounds[0][0] != rounds[0][1]


@pytest.mark.parametrize("reference", ["os:system", "subprocess:Popen", "headwater.registry:resolve_reference"])
@pytest.mark.parametrize(
    "setting", ["env", "callbacks", "custom_eval_function", "evaluation_config.callbacks", "model.custom_model"]
)
def test_a_hostile_reference_is_refused(reference: str, setting: str, tmp_path: Path) -> None:
    from headwater.saved_references import resolve_saved_references

    group, _, name = setting.rpartition(".")
    hostile = {group: {name: reference}} if group else {setting: reference}
    config = PPOConfig.from_dict(PPOConfig(env="CartPole-v1").to_dict(), hostile)
    # Another setting of the group, given anew, says nothing about this one.
    given = {"evaluation_config": {"explore": True}, "model": {"fcnet_hiddens": [8]}}
    with pytest.raises(CheckpointError, match=reference):
        resolve_saved_references(config, given, False, tmp_path)


class QuietCallbacks(DefaultCallbacks):
    pass


def test_what_is_given_anew_beside_a_checkpoint_is_used(tmp_path: Path, made: list[Trainer]) -> None:
    config = {**SMALL, "evaluation_config": {"callbacks": QuietCallbacks}}
    made.append(PPOTrainer(config, env="CartPole-v1", logger_creator=False))
    path = made[0].save(tmp_path)
    made.append(Trainer.from_checkpoint(path, logger_creator=False))
    assert made[1].config.evaluation_config["callbacks"] is QuietCallbacks
    made.append(Trainer.from_checkpoint(path, PPOConfig(lr=0.5), logger_creator=False))
    assert made[2].config.lr == 0.5 and made[2].config.train_batch_size == SMALL["train_batch_size"]


def test_a_stopped_trainer_refuses_to_train(made: list[Trainer]) -> None:
    made.append(PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False))
    made[0].train()
    made[0].stop()
    for call in (made[0].train, made[0].evaluate):
        with pytest.raises(TrainingError, match="was stopped.*from_checkpoint"):
            call()
    assert made[0].compute_action(np.zeros(4, np.float32)) in (0, 1)


def test_a_resumed_episode_does_not_begin_again(tmp_path: Path, made: list[Trainer]) -> None:
    class Watch(DefaultCallbacks):
        started: list[int] = []
        ended: list[float] = []

        def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
            self.started.append(episode.length)

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            episode.custom_metrics["steps"] = episode.custom_metrics.get("steps", 0) + 1

        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            self.ended.append(episode.custom_metrics["steps"] - episode.length)

    settings = {**SMALL, "callbacks": Watch()}
    made.append(PPOTrainer(settings, env="CartPole-v1", logger_creator=False))
    made[0].train()
    path = made[0].save(tmp_path)
    made.append(PPOTrainer.from_checkpoint(path, {"callbacks": Watch()}, logger_creator=False))
    made[1].train()
    assert set(Watch.started) == {0} and set(Watch.ended) == {0}
