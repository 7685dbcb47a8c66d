"""What became of settings of the RLlib 1.x line that are not settings here, one sentence each, for error messages.

A name is replaced (by a setting or by what the library always does) or its room is not built yet. Names that other
libraries use for a setting are pointed to it as well.
"""

from __future__ import annotations


def _replaced(text: str) -> str:
    return f"no longer a setting. {text}"


def _not_yet(what: str, meanwhile: str = "Leave it out.") -> str:
    return f"{what} not available in this version yet. {meanwhile}"


def _called(name: str) -> str:
    return f"no such setting; it is called {name} here."


_ATARI = "Wrap the env: gymnasium.wrappers.AtariPreprocessing, gymnasium.wrappers.FrameStackObservation."
_VIDEO = "Videos: headwater evaluate CHECKPOINT --record, or gymnasium.wrappers.RecordVideo around the env."
_RESOURCES = "Remote samplers and their resources are"

MODEL: dict[str, str] = {
    **{key: _replaced(_ATARI) for key in ("framestack", "dim", "grayscale")},
    "zero_mean": _replaced("The network scales images to [0, 1]; another range is an observation wrapper's work."),
    "custom_options": _replaced("Its successor is custom_model_config."),
    "no_final_linear": _not_yet("Networks without a final linear layer are", "custom_model can be one."),
    "use_lstm": _replaced("Its successor is memory: 'lstm'."),
    "lstm_cell_size": _called("memory_size"),
    "lstm_use_prev_action": _called("use_prev_action"),
    "lstm_use_prev_reward": _called("use_prev_reward"),
    "lstm_use_prev_action_reward": _replaced("Its successors are use_prev_action and use_prev_reward."),
    "_time_major": _replaced("A custom model with memory sees [B, T, ...]."),
    "use_attention": _replaced("Its successor is memory: 'attention'."),
    "attention_num_transformer_units": _called("attention_blocks"),
    "attention_dim": _called("memory_size"),
    "attention_num_heads": _called("attention_heads"),
    "attention_head_dim": _replaced("A head has memory_size / attention_heads features."),
    "attention_memory_inference": _called("attention_window"),
    "attention_memory_training": _called("attention_window"),
    "attention_position_wise_mlp_dim": _replaced("It is twice memory_size."),
    "attention_init_gru_gate_bias": _replaced("Gates start with a bias of 2 towards passing by."),
    "attention_use_n_prev_actions": _called("use_prev_action"),
    "attention_use_n_prev_rewards": _called("use_prev_reward"),
    "post_fcnet_activation": _replaced("Layers behind convolutions have conv_activation."),
}  # fmt: skip

COMMON: dict[str, str] = {
    # Replaced.
    "num_gpus": _replaced("Its successor is device: 'cpu', 'cuda' or 'cuda:<index>'."),
    "tf_session_args": _replaced("There are no TF sessions; num_threads sets the threads."),
    "local_tf_session_args": _replaced("There are no TF sessions; num_threads sets the threads."),
    "eager_tracing": _replaced("Its successor is compile."),
    "torch_compile": _called("compile"),
    "monitor": _replaced(_VIDEO),
    "record_env": _replaced(_VIDEO),
    "soft_horizon": _replaced("A horizon truncates: the next observation bootstraps the cut, then the env resets."),
    "no_done_at_end": _replaced("Terminations and truncations are told apart; a wrapper can turn one into the other."),
    "preprocessor_pref": _replaced(f"Observations are encoded by their space. {_ATARI}"),
    "_use_trajectory_view_api": _replaced("Trajectories are always columns of arrays."),
    "sample_collector": _replaced("Trajectories are always columns of arrays."),
    "logger_config": _replaced("Its successors are local_dir and tensorboard; or on_train_result of your callbacks."),
    "extra_python_environs_for_driver": _replaced("Set environment variables before Python starts."),
    "fake_sampler": _replaced("To time learning alone, call policy.learn_on_batch on one batch."),
    "vf_share_layers": _replaced("Its successor is model.vf_share_layers."),
    "simple_optimizer": _replaced("There is one learning path, on one device: see device."),
    "_fake_gpus": _replaced("There is one learning path, on one device: see device."),
    "use_pytorch": _replaced("Its successor is framework."),
    "eager": _replaced("Its successors are framework ('tf2') and compile (false runs step by step)."),
    "sample_batch_size": _replaced("Its successor is rollout_fragment_length."),
    "min_iter_time_ms": _replaced("Its successor is min_iter_time_s."),
    "straggler_mitigation": _replaced("Samplers in one process have no stragglers."),
    # Not yet.
    "create_env_on_driver": _not_yet("Remote samplers are", "Without them the env is always made in this process."),
    "ignore_worker_failures": _not_yet("Remote samplers are", "For envs that fail see on_env_error."),
    "recreate_failed_workers": _not_yet("Remote samplers are", "For envs that fail see on_env_error."),
    "evaluation_num_workers": _not_yet("Remote evaluation is", "Evaluation runs in this process."),
    "sample_async": _not_yet("Sampling beside learning is"),
    "compress_observations": _not_yet("Compressed observations are"),
    "collect_metrics_timeout": _not_yet("Remote samplers are"),
    "extra_python_environs_for_worker": _not_yet("Remote samplers are", "Set them before Python starts."),
    **{
        key: _not_yet(_RESOURCES)
        for key in (
            "num_gpus_per_worker", "custom_resources_per_worker", "memory_per_worker", "object_store_memory_per_worker",
        )
    },
    "replay_sequence_length": _not_yet("Replay is"),
    "shuffle_sequences": _replaced("Rows of a batch, with memory whole sequences, are always shuffled."),
    # Other libraries' names.
    **{
        key: _called(f"multiagent.{key}")
        for key in (
            "policies", "policy_mapping_fn", "policies_to_train", "observation_fn", "count_steps_by", "replay_mode",
        )
    },
    **{key: _called("num_workers") for key in ("num_env_runners", "num_rollout_workers")},
    **{key: _called("num_envs_per_worker") for key in ("num_envs_per_env_runner", "n_envs", "num_envs")},
    **{key: _called("rollout_fragment_length") for key in ("n_steps", "num_steps")},
    **{key: _called("lr") for key in ("learning_rate", "adam_lr")},
    **{key: _called("lambda") for key in ("gae_lambda", "lam")},
    **{key: _called("grad_clip") for key in ("max_grad_norm",)},
    **{key: _called("evaluation_num_episodes") for key in ("evaluation_duration", "n_eval_episodes")},
    "train_batch_size_per_learner": _called("train_batch_size"),
}  # fmt: skip

PPO: dict[str, str] = {
    **{key: _called("sgd_minibatch_size") for key in ("minibatch_size", "batch_size")},
    **{key: _called("num_sgd_iter") for key in ("num_epochs", "n_epochs", "update_epochs")},
    **{key: _called("entropy_coeff") for key in ("ent_coef",)},
    **{key: _called("vf_loss_coeff") for key in ("vf_coef",)},
    **{key: _called("clip_param") for key in ("clip_range", "clip_coef")},
    **{key: _called("vf_clip_param") for key in ("clip_range_vf",)},
    "target_kl": _called("kl_target"),
    "normalize_advantage": _called("standardize_advantages"),
}
