"""Results as training gives them, for the tests of what writes and shows them."""

import math


def make_result(iteration=1, reward=math.nan, **extra):
    """A result with the keys of a single-policy training."""
    episodes = [] if math.isnan(reward) else [reward] * 100
    steps = 1024 * iteration
    timer = {f"{name}_time_ms": 1.234 for name in ("sample", "learn")}
    timer |= {f"{name}_throughput": 31234.5 for name in ("sample", "learn")}
    return {
        "episode_reward_max": reward,
        "episode_reward_min": reward,
        "episode_reward_mean": reward,
        "episode_len_mean": reward,
        "episodes_this_iter": 3,
        "policy_reward_min": {},
        "policy_reward_max": {},
        "policy_reward_mean": {},
        "custom_metrics": {},
        "hist_stats": {"episode_reward": episodes, "episode_lengths": [int(reward) for reward in episodes]},
        "sampler_perf": {f"mean_{name}_ms": 0.123 for name in ("env_wait", "obs", "inference", "action_processing")},
        "off_policy_estimator": {},
        "num_healthy_workers": 0,
        "timesteps_total": steps,
        "timers": timer,
        "info": {
            "learner": {
                "default_policy": {
                    "cur_kl_coeff": 0.2,
                    "cur_lr": 3e-4,
                    "total_loss": 1.5,
                    "policy_loss": -0.0123,
                    "vf_loss": 12.5,
                    "vf_explained_var": 0.8123,
                    "kl": 0.0071,
                    "entropy": 0.5312,
                    "entropy_coeff": 0.0,
                    "grad_gnorm": 0.7,
                }
            },
            "num_steps_sampled": steps,
            "num_steps_trained": steps,
        },
        "done": False,
        "episodes_total": 3 * iteration,
        "training_iteration": iteration,
        "timesteps_this_iter": 1024,
        "experiment_id": "0123456789abcdef",
        "date": "2026-12-01_12-00-00",
        "timestamp": 1_800_000_000 + iteration,
        "time_this_iter_s": 0.03,
        "time_total_s": 0.03 * iteration,
        "time_since_restore": 0.03 * iteration,
        "timesteps_since_restore": steps,
        "iterations_since_restore": iteration,
        "pid": 7,
        "hostname": "host",
        "config": {"lr": 3e-4},
        "perf": {"cpu_util_percent": 50.0, "ram_util_percent": 30.0},
        **extra,
    }
