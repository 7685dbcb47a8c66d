"""PPOConfig: its defaults hold together, and what PPO cannot work with is refused."""

from __future__ import annotations

import pytest

from headwater.algorithms.ppo.config import DEFAULT_CONFIG, PPOConfig, validate_config
from headwater.config import TrainerConfig, merge_config
from headwater.errors import ConfigError


def test_the_defaults_hold_together():
    assert PPOConfig() == DEFAULT_CONFIG and DEFAULT_CONFIG.check() is DEFAULT_CONFIG
    assert DEFAULT_CONFIG.batch_plan().rounds == 1


def test_every_setting_says_what_it_means():
    for name, field in PPOConfig.model_fields.items():
        assert field.description and field.description.rstrip().endswith("."), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sgd_minibatch_size": 2048}, "sgd_minibatch_size: must be at most train_batch_size, 1024, but 2048 came (0 "),
        ({"use_gae": False}, "use_gae: false needs whole episodes: set batch_mode to 'complete_episodes'"),
        ({"use_critic": False}, "use_critic: false leaves GAE without values"),
        ({"entropy_coeff": -0.1}, "entropy_coeff: must be at least 0"),
        ({"kl_coeff": -1}, "kl_coeff: must be at least 0"),
        ({"clip_param": 0}, "clip_param: must be greater than 0"),
        ({"vf_clip_param": 0}, "vf_clip_param: must be greater than 0"),
        ({"num_sgd_iter": 0}, "num_sgd_iter: must be at least 1"),
        ({"entropy_coeff_schedule": [[5, 1], [1, 0]]}, "entropy_coeff_schedule: its timesteps must increase"),
        ({"optimizer": {"name": "sgd", "eps": 1e-5}}, "optimizer.eps: is not read by 'sgd': leave it out, or choose"),
        ({"optimizer": {"momentum": 0.9}}, "optimizer.momentum: is not read by 'adam'"),
        ({"framework": "caffe"}, "framework: must be 'torch', 'tf2' or 'jax', but 'caffe' (str) came"),
        ({"compile": 1}, "compile: must be true, false or 'auto', but 1 (int) came"),
        ({"torch_compile": True}, "torch_compile: no such setting; it is called compile here"),
        ({"num_envs_per_worker": 3}, "train_batch_size: 1024 rows are not a whole number of rounds"),
    ],
)  # fmt: skip
def test_refusals(settings, words):
    with pytest.raises(ConfigError) as caught:
        merge_config(DEFAULT_CONFIG, settings)
    assert f"PPOConfig: {words}" in str(caught.value)


def test_several_bad_combinations_come_in_one_message():
    with pytest.raises(ConfigError) as caught:
        merge_config(DEFAULT_CONFIG, {"use_gae": False, "sgd_minibatch_size": 5000, "num_envs_per_worker": 3})
    assert "3 things are wrong" in str(caught.value)


def test_validate_config_takes_objects_and_dicts():
    validate_config(PPOConfig())
    validate_config({"train_batch_size": 2048})
    with pytest.raises(ConfigError, match="sgd_minibatch_size"):
        validate_config(PPOConfig(train_batch_size=64))
    with pytest.raises(ConfigError, match="sgd_minibatch_size"):
        validate_config({"train_batch_size": 64})


@pytest.mark.parametrize(("given", "framework"), [
    ("torch", "torch"), ("tf", "tf2"), ("tfe", "tf2"), ("tf2", "tf2"), ("jax", "jax"),
])  # fmt: skip
def test_frameworks_and_their_other_names(given, framework):
    assert merge_config(DEFAULT_CONFIG, {"framework": given}).framework == framework


def test_the_1x_ways_that_still_work():
    config = merge_config(
        DEFAULT_CONFIG,
        {"lambda": 1.0, "kl_coeff": 0.2, "train_batch_size": 4000, "rollout_fragment_length": 100, "num_workers": 0,
         "num_envs_per_worker": 5, "sgd_minibatch_size": 128, "num_sgd_iter": 30, "vf_clip_param": 10.0,
         "entropy_coeff": 0, "framework": "torch", "model": {"fcnet_hiddens": [256, 256]}},
    )  # fmt: skip
    assert config["lambda"] == 1.0 and config.entropy_coeff == 0.0 and isinstance(config.entropy_coeff, float)
    whole = {"use_gae": False, "use_critic": False, "batch_mode": "complete_episodes"}
    assert merge_config(DEFAULT_CONFIG, whole).use_critic is False


def test_the_plan_counts_the_updates():
    assert PPOConfig(train_batch_size=1000, num_envs_per_worker=4).batch_plan().updates == (
        "6 epochs x 8 minibatches of 125 = 48 updates"
    )
    assert PPOConfig(sgd_minibatch_size=0).batch_plan().updates == "6 epochs x 1 minibatch of 1024 = 6 updates"
    assert "about" in PPOConfig(train_batch_size=1000, num_envs_per_worker=4, sgd_minibatch_size=300).batch_plan().text


def test_ppo_settings_are_unknown_to_the_common_config():
    with pytest.raises(ConfigError, match="clip_param: no such setting"):
        TrainerConfig(clip_param=0.1)
