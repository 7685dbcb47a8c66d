"""Every setting of the RLlib 1.x line is a setting here, or is refused with what became of it."""

from __future__ import annotations

import pytest

from headwater.algorithms.ppo.config import PPOConfig
from headwater.config import MultiAgentConfig, TrainerConfig
from headwater.errors import ConfigError
from headwater.settings import former
from headwater.settings.networks import ModelConfig

COMMON_1X = """
num_workers num_envs_per_worker create_env_on_driver rollout_fragment_length batch_mode num_gpus train_batch_size model
optimizer gamma horizon soft_horizon no_done_at_end env_config env normalize_actions clip_rewards clip_actions
preprocessor_pref lr monitor log_level callbacks ignore_worker_failures log_sys_usage fake_sampler framework
eager_tracing explore exploration_config evaluation_interval evaluation_num_episodes in_evaluation evaluation_config
evaluation_num_workers custom_eval_function sample_async _use_trajectory_view_api observation_filter synchronize_filters
tf_session_args local_tf_session_args compress_observations collect_metrics_timeout metrics_smoothing_episodes
remote_worker_envs remote_env_batch_wait_ms min_iter_time_s timesteps_per_iteration seed
extra_python_environs_for_driver extra_python_environs_for_worker num_cpus_per_worker num_gpus_per_worker
custom_resources_per_worker num_cpus_for_driver memory object_store_memory memory_per_worker
object_store_memory_per_worker input input_evaluation postprocess_inputs shuffle_buffer_size output
output_compress_columns output_max_file_size multiagent logger_config replay_sequence_length
"""
PPO_1X = """
use_critic use_gae lambda kl_coeff rollout_fragment_length train_batch_size sgd_minibatch_size shuffle_sequences
num_sgd_iter lr lr_schedule vf_share_layers vf_loss_coeff entropy_coeff entropy_coeff_schedule clip_param vf_clip_param
grad_clip kl_target batch_mode observation_filter simple_optimizer _fake_gpus
"""
MODEL_1X = """
fcnet_hiddens fcnet_activation conv_filters conv_activation free_log_std no_final_linear vf_share_layers use_lstm
max_seq_len lstm_cell_size lstm_use_prev_action lstm_use_prev_reward _time_major framestack dim grayscale zero_mean
custom_model custom_model_config custom_action_dist custom_preprocessor
"""


@pytest.mark.parametrize(
    ("cls", "names"), [(TrainerConfig, COMMON_1X), (PPOConfig, COMMON_1X + PPO_1X), (ModelConfig, MODEL_1X)]
)
def test_every_name_is_a_setting_or_says_what_became_of_it(cls, names):
    for name in names.split():
        assert name in cls.keys() or cls.former[name]  # noqa: SIM118


@pytest.mark.parametrize("cls", [TrainerConfig, PPOConfig, ModelConfig])
def test_no_setting_is_also_refused(cls):
    assert not set(cls.keys()) & set(cls.former)


@pytest.mark.parametrize("cls", [PPOConfig, ModelConfig])
def test_a_refusal_says_what_became_of_the_name(cls):
    for name, text in cls.former.items():
        with pytest.raises(ConfigError) as caught:
            cls(**{name: 1})
        assert text in str(caught.value) and text.endswith(".") and "  " not in text


def test_refusals_name_the_replacement():
    with pytest.raises(ConfigError, match="num_gpus: no longer a setting. Its successor is device"):
        PPOConfig(num_gpus=1)
    with pytest.raises(ConfigError, match="sample_async: .* not available in this version yet"):
        PPOConfig(sample_async=True)
    with pytest.raises(ConfigError, match="n_epochs: no such setting; it is called num_sgd_iter here"):
        PPOConfig(n_epochs=3)
    with pytest.raises(ConfigError, match="vf_share_layers: .* model.vf_share_layers"):
        PPOConfig(vf_share_layers=True)


def test_successors_exist():
    """A name that a sentence calls a successor is a setting."""
    keys = set(PPOConfig.keys()) | set(ModelConfig.keys()) | {f"multiagent.{key}" for key in MultiAgentConfig()}
    for text in [*former.COMMON.values(), *former.PPO.values(), *former.MODEL.values()]:
        for lead in ("Its successor is ", "it is called "):
            if lead in text:
                name = text.partition(lead)[2].replace(":", " ").rstrip(".").split()[0]
                assert name.removeprefix("model.") in keys, text
