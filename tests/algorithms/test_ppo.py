"""PPO's plan and the steps that are its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater import PPOTrainer, Trainer
from headwater.algorithms.ppo.ppo import (
    AdaptiveKL,
    PPOConfig,
    UpdateKL,
    WarnAboutBadRewardScales,
    policy_class,
    warn_about_bad_reward_scales,
)
from tests.frameworks.policies import FRAMEWORKS
from tests.trainers import SMALL


class Adapted(AdaptiveKL):
    def __init__(self) -> None:
        self.config = PPOConfig(kl_coeff=0.2, kl_target=0.01)
        self.coefficients = {"kl_coeff": 0.2}


@pytest.mark.parametrize(("kl", "coefficient"), [(0.021, 0.3), (0.02, 0.2), (0.01, 0.2), (0.005, 0.2), (0.0049, 0.1)])
def test_the_kl_coefficient_follows_the_kl(kl: float, coefficient: float) -> None:
    policy = Adapted()
    assert policy.update_kl(kl) == policy.kl_coeff == pytest.approx(coefficient)


def test_update_kl_passes_the_statistics_and_warns_of_a_policy_without_data(caplog: pytest.LogCaptureFixture) -> None:
    policies = {"a": Adapted(), "b": Adapted()}
    worker = SimpleNamespace(foreach_trainable_policy=lambda f: [f(policy, name) for name, policy in policies.items()])
    info = {"a": {"kl": 1.0}}
    assert UpdateKL(SimpleNamespace(local_worker=lambda: worker))(info) is info  # type: ignore[arg-type]
    assert policies["a"].kl_coeff == pytest.approx(0.3) and policies["b"].kl_coeff == 0.2
    assert "No data for b" in caplog.text


def result_of(reward: float, vf_loss: float) -> dict[str, Any]:
    learner = {"default_policy": {"vf_loss": vf_loss}}
    return {"policy_reward_mean": {}, "episode_reward_mean": reward, "info": {"learner": learner}}


@pytest.mark.parametrize(
    ("settings", "reward", "vf_loss", "words"),
    [
        ({"vf_clip_param": 10.0}, 2010.0, 0.0, ["vf_clip_param"]),
        ({"vf_clip_param": 10.0}, -2010.0, 0.0, ["vf_clip_param"]),
        ({"vf_clip_param": 10.0}, 2000.0, 0.0, []),
        ({"vf_clip_param": 10.0}, float("nan"), 0.0, []),
        ({}, 1e9, 1e9, []),
        ({"model": {"vf_share_layers": True}}, 0.0, 201.0, ["vf_share_layers"]),
        ({"model": {"vf_share_layers": True}}, 0.0, 199.0, []),
    ],
)
def test_bad_reward_scales_are_warned_of_once(
    settings: dict[str, Any], reward: float, vf_loss: float, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    config, result = PPOConfig(**settings), result_of(reward, vf_loss)
    step = WarnAboutBadRewardScales(config)
    assert step(result) is result and step(result) is result
    assert len(caplog.records) == len(words) and all(word in caplog.text for word in words)
    caplog.clear()
    warn_about_bad_reward_scales(config, {**result, "policy_reward_mean": {"other": 1.0}})
    assert not caplog.records


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_policy_class_is_made_once_and_named(framework: str) -> None:
    from headwater.algorithms import ppo

    name = {"torch": "PPOTorchPolicy", "tf2": "PPOTFPolicy", "jax": "PPOJAXPolicy"}[framework]
    cls = policy_class(framework)
    assert getattr(ppo, name) is cls and cls.__name__ == name and cls.framework == framework


@pytest.mark.parametrize("second", FRAMEWORKS)
@pytest.mark.parametrize("first", FRAMEWORKS)
def test_a_checkpoint_of_one_framework_goes_on_in_another(first: str, second: str, tmp_path: Path) -> None:
    config = {**SMALL, "framework": first, "kl_coeff": 0.2}
    with PPOTrainer(config, env="CartPole-v1", logger_creator=False) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
        expected = trainer.train()
    with Trainer.from_checkpoint(path, {"framework": second}, logger_creator=False) as trainer:
        assert trainer.get_policy().framework == second
        result = trainer.train()
    assert result["timesteps_total"] == expected["timesteps_total"]
    stats, others = (r["info"]["learner"]["default_policy"] for r in (result, expected))
    assert stats == pytest.approx(others, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("settings", [{"use_critic": False, "use_gae": False}, {"use_gae": False}])
def test_without_gae_returns_are_learned_from(settings: dict[str, Any]) -> None:
    config = {**SMALL, **settings, "batch_mode": "complete_episodes"}
    with PPOTrainer(config, env="CartPole-v1", logger_creator=False) as trainer:
        stats = trainer.train()["info"]["learner"]["default_policy"]
    assert (stats["vf_loss"] == 0.0) == (settings.get("use_critic") is False)
