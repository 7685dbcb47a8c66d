"""The Trainer: iterations and their results, evaluation, acting, hooks, callbacks, faults."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import headwater
from headwater import PPOTrainer, Trainer, build_trainer
from headwater.algorithms.ppo.ppo import DEFAULT_CONFIG, get_policy_class
from headwater.callbacks import DefaultCallbacks
from headwater.errors import CheckpointError, ConfigError, EnvError, TrainingError
from tests.toy_envs import CounterEnv, RandomLengthEnv
from tests.trainers import SMALL, flat_weights

# Results.

KEYS = {
    "episode_reward_max", "episode_reward_min", "episode_reward_mean", "episode_len_mean", "episodes_this_iter",
    "policy_reward_min", "policy_reward_max", "policy_reward_mean", "custom_metrics", "hist_stats", "sampler_perf",
    "off_policy_estimator", "num_healthy_workers", "timesteps_total", "timers", "info", "done", "episodes_total",
    "training_iteration", "experiment_id", "date", "timestamp", "time_this_iter_s", "time_total_s", "pid", "hostname",
    "config", "time_since_restore", "timesteps_since_restore", "iterations_since_restore",
}  # fmt: skip


def test_the_result_has_the_same_keys_from_the_first_row(made: list[Trainer]) -> None:
    made.append(PPOTrainer(SMALL, env=lambda context: CounterEnv(50), logger_creator=False))
    first, second = made[0].train(), made[0].train()
    assert set(first) >= KEYS and set(first) == set(second)
    assert math.isnan(first["episode_reward_mean"]) and second["episode_reward_mean"] == 50.0
    assert second["training_iteration"] == 2 and second["timesteps_total"] == 256
    assert second["timesteps_this_iter"] == 128
    assert second["info"]["num_steps_trained"] == second["info"]["num_steps_sampled"] == 256
    assert {
        "kl",
        "entropy",
        "policy_loss",
        "vf_loss",
        "total_loss",
        "vf_explained_var",
        "cur_lr",
        "cur_kl_coeff",
    } <= set(second["info"]["learner"]["default_policy"])
    assert {"sample_time_ms", "learn_time_ms", "sample_throughput", "learn_throughput"} <= set(second["timers"])


def test_the_plan_is_printed_and_checked() -> None:
    with PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False) as trainer:
        drawing = str(trainer.train_exec_impl)
    for operator in ("ParallelRollouts", "ConcatBatches", "StandardizeFields", "TrainOneStep", "UpdateKL"):
        assert operator in drawing


# Evaluation.


def test_evaluation_is_due_every_interval_and_leaves_training_alone(made: list[Trainer]) -> None:
    seen = []

    class Watch(DefaultCallbacks):
        def on_train_result(self, *, trainer: Any, result: dict[str, Any], **kwargs: Any) -> None:
            seen.append("evaluation" in result)

    settings = {"evaluation_interval": 2, "evaluation_num_episodes": 5, "callbacks": Watch}
    made.append(PPOTrainer({**SMALL, **settings}, env="CartPole-v1", logger_creator=False))
    made.append(PPOTrainer(SMALL, env="CartPole-v1", logger_creator=False))
    for _ in range(4):
        with_it, without = made[0].train(), made[1].train()
    assert seen == [False, True, False, True]
    assert len(with_it["evaluation"]["hist_stats"]["episode_reward"]) == 5
    assert with_it["timesteps_total"] == without["timesteps_total"]
    np.testing.assert_array_equal(flat_weights(made[0]), flat_weights(made[1]))


def test_evaluation_by_hand_runs_fresh_episodes(made: list[Trainer]) -> None:
    RandomLengthEnv.log.clear()
    settings = {"evaluation_num_episodes": 5, "observation_filter": "MeanStdFilter"}
    made.append(PPOTrainer({**SMALL, **settings}, env=RandomLengthEnv, logger_creator=False))
    made[0].train()
    [obs_filter] = made[0].workers.local_worker().filters.values()
    count = obs_filter.rs.n
    lengths = []
    for _ in range(3):
        RandomLengthEnv.log.clear()
        evaluation = made[0].evaluate()["evaluation"]
        assert RandomLengthEnv.log.count(("end", "")) == 5
        lengths.append(tuple(evaluation["hist_stats"]["episode_lengths"]))
        assert evaluation["episode_reward_std"] == pytest.approx(np.std(evaluation["hist_stats"]["episode_reward"]))
    assert len(set(lengths)) == 3 and obs_filter.rs.n == count


def test_evaluation_sees_through_the_training_filter_and_leaves_it_alone(made: list[Trainer]) -> None:
    settings = {"evaluation_interval": 1, "evaluation_num_episodes": 5, "observation_filter": "MeanStdFilter"}
    made.append(PPOTrainer({**SMALL, **settings}, env="CartPole-v1", logger_creator=False))
    for iteration in range(1, 4):
        result = made[0].train()
        evaluator = made[0].evaluation_workers.local_worker()  # type: ignore[union-attr]
        rows = []
        for worker in (made[0].workers.local_worker(), evaluator):
            [obs_filter] = worker.filters.values()
            rows.append(obs_filter(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), update=False))
            assert obs_filter.rs.n == result["timesteps_total"] >= 128 * iteration
        np.testing.assert_array_equal(*rows)
        observation = np.array([0.1, -0.2, 0.3, -0.4], np.float32)
        outputs = [
            worker.compute_actions([observation])[2]["action_dist_inputs"]
            for worker in (made[0].workers.local_worker(), evaluator)
        ]
        np.testing.assert_array_equal(*outputs)


def test_weights_are_synced_to_sets_and_to_single_workers(made: list[Trainer]) -> None:
    made.extend(PPOTrainer({**SMALL, "seed": seed}, env="CartPole-v1", logger_creator=False) for seed in (1, 2, 3))
    first, second, third = made
    first._sync_weights_to_workers(worker_set=second.workers, workers=[third.workers.local_worker()])
    for trainer in (second, third):
        np.testing.assert_array_equal(flat_weights(trainer), flat_weights(first))


def test_a_custom_evaluation_must_return_metrics(made: list[Trainer]) -> None:
    for returned in ({}, None, 3):
        made.append(
            PPOTrainer(
                {**SMALL, "custom_eval_function": lambda t, w, r=returned: r}, env="CartPole-v1", logger_creator=False
            )
        )
        with pytest.raises(TrainingError, match="custom_eval_function"):
            made[-1].evaluate()
    settings = {"custom_eval_function": lambda trainer, workers: {"mine": workers.local_worker().config.in_evaluation}}
    made.append(PPOTrainer({**SMALL, **settings}, env="CartPole-v1", logger_creator=False))
    assert made[-1].evaluate() == {"evaluation": {"mine": True}}


def evaluate_by_name(trainer: Trainer, workers: Any) -> dict[str, Any]:
    return {"mine": 2}


def test_a_custom_evaluation_may_be_named(made: list[Trainer]) -> None:
    def make(reference: str) -> Trainer:
        return PPOTrainer({**SMALL, "custom_eval_function": reference}, env="CartPole-v1", logger_creator=False)

    made.append(make(f"{__name__}:evaluate_by_name"))
    assert made[0].evaluate() == {"evaluation": {"mine": 2}}
    for reference in ("math:nothing", "math:pi", "evaluate_by_name"):
        with pytest.raises(ConfigError, match=f"custom_eval_function|{reference}"):
            make(reference)


# Acting.


def test_one_action_equals_the_same_row_of_many(made: list[Trainer]) -> None:
    made.append(PPOTrainer({**SMALL, "observation_filter": "MeanStdFilter"}, env="CartPole-v1", logger_creator=False))
    made[0].train()
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    many = made[0].compute_actions(dict(enumerate(observations)), explore=False)
    for i, observation in enumerate(observations):
        action, state, extra = made[0].compute_action(observation, explore=False, full_fetch=True)
        assert action == many[i] and state == []
        assert {"vf_preds", "action_dist_inputs", "action_logp", "action_prob"} <= set(extra)
    assert made[0].get_policy("nobody") is None and made[0].get_weights([]) == {}
    with pytest.raises(ConfigError, match="nobody"):
        made[0].compute_action(observations[0], policy_id="nobody")
    with pytest.raises(headwater.HeadwaterError, match="shape"):
        made[0].compute_action(observations)


# build_trainer.


def test_hooks_run_in_order_and_mixins_come_first() -> None:
    calls: list[str] = []

    class Curriculum:
        level = 0

        def step(self) -> dict[str, Any]:
            calls.append("mixin")
            return super().step()  # type: ignore[misc]

    Mine = PPOTrainer.with_updates(
        name="Mine",
        validate_config=lambda config: calls.append("validate_config"),
        get_policy_class=lambda config: calls.append("get_policy_class") or get_policy_class(config),
        validate_env=lambda env, context: calls.append(f"validate_env {context.vector_index}"),
        before_init=lambda trainer: calls.append(f"before_init {hasattr(trainer, 'workers')}"),
        after_init=lambda trainer: calls.append(f"after_init {hasattr(trainer, 'train_exec_impl')}"),
        before_evaluate_fn=lambda trainer: calls.append("before_evaluate"),
        mixins=[Curriculum],
    )
    settings = {**SMALL, "num_envs_per_worker": 2, "vectorization": "sync"}
    with Mine(settings, env="CartPole-v1", logger_creator=False) as trainer:
        assert calls == [
            "validate_config", "get_policy_class", "before_init False", "validate_env 0", "validate_env 1",
            "after_init True",
        ]  # fmt: skip
        trainer.evaluate()
        assert (
            calls[6:] == ["before_evaluate", "validate_env 0", "validate_env 1"] or calls[6:][-1] == "before_evaluate"
        )
    assert Mine.__mro__[1] is Curriculum and Mine.__name__ == "Mine" and issubclass(Mine, Trainer)
    with pytest.raises(ConfigError, match="exec_plan"):
        PPOTrainer.with_updates(exec_plan=None)


def test_the_default_plan_trains() -> None:
    Plain = build_trainer("Plain", default_config=DEFAULT_CONFIG, get_policy_class=get_policy_class)
    with Plain(SMALL, env="CartPole-v1", logger_creator=False) as trainer:
        assert trainer.train()["info"]["num_steps_trained"] >= 128


def test_an_algorithm_of_ones_own_goes_on_by_its_class(tmp_path: Path, made: list[Trainer]) -> None:
    Mine = PPOTrainer.with_updates(name="Mine")
    made.append(Mine(SMALL, env="CartPole-v1", logger_creator=False))
    path = made[0].save(tmp_path)
    with pytest.raises(CheckpointError, match="'Mine'.*its class"):
        Trainer.from_checkpoint(path, logger_creator=False)
    made.append(Mine.from_checkpoint(path, logger_creator=False))
    assert made[1].train()["training_iteration"] == 1


def test_a_trainer_without_a_policy_class_says_so() -> None:
    with pytest.raises(ConfigError, match="default_policy"):
        build_trainer("Empty", default_config=DEFAULT_CONFIG)(SMALL, env="CartPole-v1", logger_creator=False)


def test_bad_envs_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="invalid env specification"):
        PPOTrainer(SMALL, logger_creator=False)
    with pytest.raises(EnvError, match="CartPole-v1"):
        PPOTrainer(SMALL, env="CartPoel-v1", logger_creator=False)
    with pytest.raises(EnvError, match="no lava"):
        PPOTrainer.with_updates(validate_env=_refuse)(SMALL, env="CartPole-v1", logger_creator=False)


def _refuse(env: Any, context: Any) -> None:
    raise ValueError("no lava")


def test_in_evaluation_is_the_librarys_to_set() -> None:
    with pytest.raises(ConfigError, match="in_evaluation.*leave it out"):
        PPOTrainer({**SMALL, "in_evaluation": True}, env="CartPole-v1", logger_creator=False)


def test_resources_add_up() -> None:
    request = PPOTrainer.default_resource_request({"num_cpus_for_driver": 2, "device": "cpu", "memory": 5})
    assert request.cpu == 2 and request.gpu == 0 and request.memory == 5 and request.extra_cpu == 0


# Callbacks.


def test_callbacks_see_episodes_batches_and_results(made: list[Trainer]) -> None:
    calls: dict[str, list[Any]] = {}

    class Watch(DefaultCallbacks):
        def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
            episode.user_data["steps"] = 0
            calls.setdefault("start", []).append((env_index, episode.length))

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            episode.user_data["steps"] += 1
            assert episode.length == episode.user_data["steps"] == episode.last_raw_obs_for()[0]
            assert episode.last_observation_for()[0] == episode.length - 1

        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            calls.setdefault("end", []).append((episode.length, episode.total_reward))
            episode.custom_metrics["double"] = 2 * episode.length
            episode.hist_data["lengths"] = [episode.length]

        def on_postprocess_trajectory(self, *, postprocessed_batch: Any, **kwargs: Any) -> None:
            postprocessed_batch["rewards"][:] += 1.0

        def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
            calls.setdefault("rewards", []).append(set(samples["rewards"]))

        def on_learn_on_batch(self, *, train_batch: Any, **kwargs: Any) -> None:
            calls.setdefault("learn", []).append(train_batch.count)

        def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
            result["mine"] = 1

    made.append(PPOTrainer({**SMALL, "callbacks": Watch}, env=lambda context: CounterEnv(8), logger_creator=False))
    result = made[0].train()
    assert calls["start"][:4] == [(0, 0), (1, 0), (2, 0), (3, 0)] and len(calls["start"]) == 4 + 16
    assert calls["end"] == [(8, 8.0)] * 16
    assert calls["rewards"] == [{2.0}] and calls["learn"] == [128] and result["mine"] == 1
    assert result["custom_metrics"] == {"double_mean": 16.0, "double_min": 16, "double_max": 16}
    assert result["hist_stats"]["lengths"] == [8] * 16


# Faults.


class HugeRewards(CounterEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 1e38, *rest


@pytest.mark.parametrize("name, value", [("custom_metrics", "high"), ("hist_data", ["low"]), ("hist_data", 3)])
def test_a_callback_that_sets_no_number_is_named_and_spoils_nothing(
    name: str, value: Any, tmp_path: Path, made: list[Trainer]
) -> None:
    class Spoils(DefaultCallbacks):
        episodes = 0

        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            self.episodes += 1
            if self.episodes == 2:
                getattr(episode, name)["mine"] = value

    made.append(PPOTrainer({**SMALL, "callbacks": Spoils}, env=lambda context: CounterEnv(5), logger_creator=False))
    with pytest.raises(TrainingError, match=rf"episode.{name}\['mine'\] must be"):
        made[0].train()
    assert made[0].train()["training_iteration"] == 1 and Path(made[0].save(tmp_path)).is_dir()


def test_bad_updates_are_skipped_counted_and_end_the_run(made: list[Trainer]) -> None:
    settings = {**SMALL, "max_bad_updates_in_a_row": 3, "standardize_advantages": False, "clip_rewards": None}
    made.append(PPOTrainer(settings, env=lambda context: HugeRewards(8), logger_creator=False))
    before = flat_weights(made[0])
    with pytest.raises(TrainingError):
        for _ in range(5):
            made[0].train()
    np.testing.assert_array_equal(flat_weights(made[0]), before)
    assert np.isfinite(before).all()


class MaskedModel(torch.nn.Module):
    """Allows only the actions that the observation's last three numbers say, by logits of minus infinity."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: Any, name: str) -> None:
        super().__init__()
        self.policy, self.value = torch.nn.Linear(4, num_outputs), torch.nn.Linear(4, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        masked = torch.where(obs[:, 1:] > 0, self.policy(obs), -torch.inf)
        return masked, self.value(obs)[:, 0]


class MaskedEnv(CounterEnv):
    """Forbids one of three actions, another one in each step, and fails where it is taken all the same."""

    def __init__(self) -> None:
        super().__init__(9)
        self.observation_space = spaces.Box(0.0, 1000.0, (4,), np.float32)
        self.action_space = spaces.Discrete(3)

    def _masked(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, np.arange(3) != obs[0] % 3]).astype(np.float32)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self._masked(obs), info

    def step(self, action: Any) -> Any:
        assert action != self.t % 3, "a masked action"
        obs, *rest = super().step(action)
        return self._masked(obs), *rest


def test_masked_actions_are_never_taken(made: list[Trainer]) -> None:
    settings = {**SMALL, "model": {"custom_model": MaskedModel}, "kl_coeff": 0.2, "entropy_coeff": 0.01}
    made.append(PPOTrainer(settings, env=lambda context: MaskedEnv(), logger_creator=False))
    for _ in range(5):
        stats = made[0].train()["info"]["learner"]["default_policy"]
        assert all(math.isfinite(stats[name]) for name in ("kl", "entropy", "total_loss", "grad_gnorm"))
        assert stats["num_bad_updates"] == 0 and 0 < stats["entropy"] <= math.log(2) + 1e-6
    made[0].evaluate()
    for forbidden in range(3):
        observation = np.array([1, *(np.arange(3) != forbidden)], np.float32)
        for explore in (False, True):
            actions = made[0].compute_actions(dict(enumerate([observation] * 300)), explore=explore)
            assert forbidden not in actions.values()
    with pytest.raises(headwater.HeadwaterError, match="row 0"):
        made[0].compute_action(np.zeros(4, np.float32), explore=True)


def test_it_learns_cartpole() -> None:
    with PPOTrainer({"seed": 1}, env="CartPole-v1", logger_creator=False) as trainer:
        for _ in range(60):
            result = trainer.train()
            if result["episode_reward_mean"] >= 150:
                break
    assert result["episode_reward_mean"] >= 150
