"""Write docs/config.md and docs/migrating.md from the config classes: `python docs/make_config_pages.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwater.algorithms.ppo.config import PPOConfig
from headwater.cli.describe import settings_of
from headwater.config import ModelConfig, TrainerConfig
from headwater.settings import former

HERE = Path(__file__).parent

# The PPO defaults of the RLlib 1.x line, where a setting of that name is here.
DEFAULTS_1X: dict[str, Any] = {
    "num_workers": 2, "num_envs_per_worker": 1, "rollout_fragment_length": 200, "batch_mode": "truncate_episodes",
    "train_batch_size": 4000, "gamma": 0.99, "horizon": None, "env_config": {}, "env": None,
    "normalize_actions": False, "clip_rewards": None, "clip_actions": True, "lr": 5e-05, "log_level": "WARN",
    "log_sys_usage": True, "framework": "tf", "explore": True, "exploration_config": {"type": "StochasticSampling"},
    "evaluation_interval": None, "evaluation_num_episodes": 10, "in_evaluation": False, "evaluation_config": {},
    "custom_eval_function": None, "observation_filter": "NoFilter", "synchronize_filters": True,
    "metrics_smoothing_episodes": 100, "min_iter_time_s": 0, "timesteps_per_iteration": 0, "seed": None,
    "num_cpus_per_worker": 1, "num_cpus_for_driver": 1, "memory": 0, "object_store_memory": 0,
    "callbacks": "headwater.callbacks:DefaultCallbacks", "use_critic": True, "use_gae": True, "lambda": 1.0,
    "kl_coeff": 0.2,
    "sgd_minibatch_size": 128, "num_sgd_iter": 30, "lr_schedule": None, "vf_loss_coeff": 1.0, "entropy_coeff": 0.0,
    "entropy_coeff_schedule": None, "clip_param": 0.3, "vf_clip_param": 10.0, "grad_clip": None, "kl_target": 0.01,
    "model.fcnet_hiddens": [256, 256], "model.fcnet_activation": "tanh", "model.conv_filters": None,
    "model.conv_activation": "relu", "model.free_log_std": False, "model.vf_share_layers": False,
    "model.custom_model": None, "model.custom_model_config": {}, "model.custom_action_dist": None,
    "model.custom_preprocessor": None,
}  # fmt: skip

REASONS: dict[str, str] = {
    "num_workers": "Sampling in this process needs nothing started; remote samplers are not available yet.",
    "num_envs_per_worker": "One batched forward pass acts for all; a step of eight envs costs little more than of one.",
    "rollout_fragment_length": "Follows from the train batch, so that no sample outlives the weights that made it.",
    "train_batch_size": "Updates come more often, so small tasks are learned in fewer steps.",
    "num_sgd_iter": "Keeps the policy nearer to the one that sampled the batch.",
    "lr": "5e-5 learns small tasks slowly.",
    "lambda": "1.0 is the plain return, with all of its variance.",
    "kl_coeff": "Clipping alone keeps the policy near; the penalty is there when asked for.",
    "clip_param": "The value of the paper.",
    "vf_clip_param": "10 silently stops value learning where returns are larger.",
    "vf_loss_coeff": "The value loss is a mean square without the factor 1/2, which this is.",
    "grad_clip": "One bad batch cannot throw the policy far.",
    "framework": "Needs no further package.",
    "normalize_actions": "Policies start near the middle of the bounds rather than at 0, wherever that lies.",
    "evaluation_config": "Evaluation measures the deterministic policy unless asked otherwise.",
    "model.fcnet_hiddens": "Enough for most vector observations, and cheaper to act with.",
    "model.free_log_std": "Exploration noise that does not depend on the observation is more stable.",
    "model.vf_share_layers": "Separate for vectors as before; images share, as a second stack costs as much.",
}

CONFIG_HEAD = """# Settings

Made by `python docs/make_config_pages.py`; `headwater config PPO` shows the same.

A config is a dict or a config object:

```python
from headwater import PPOConfig, PPOTrainer

PPOTrainer(config={"lr": 3e-4, "model": {"fcnet_hiddens": [128, 128]}}, env="CartPole-v1")
PPOTrainer(config=PPOConfig(lr=3e-4), env="CartPole-v1")
```

The dicts env_config, model, optimizer, evaluation_config and exploration_config merge with the defaults key by key
(an exploration_config of another type replaces the default's); every other setting is replaced. Of a config object what
was set counts.

One equation ties the sizes; it is checked when a trainer is made:

    train_batch_size = rounds * max(1, num_workers) * num_envs_per_worker * rollout_fragment_length

A train batch holds these rows (at least these where `batch_mode` is "complete_episodes"), all sampled with the weights
that it then trains. `PPOConfig(...).batch_plan().text` says it with the numbers of a config.

A schedule is data: `[[timestep, value], ...]`, linear in between; or the same as `{"type": "piecewise", "points":
[...]}`; or `{"type": "linear", "start": value, "end": value, "timesteps": number}`; or that with "cosine".

"""

MIGRATING_HEAD = """# Coming from the RLlib 1.x line

Made by `python docs/make_config_pages.py`. Settings keep their names. Any name that is no setting here is refused,
with the sentence below; none is accepted and ignored.

## PPO's defaults that differ

"""


def code(value: Any) -> str:
    """A table cell of code: JSON, or the name of a class."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "`" + text.replace("|", "\\|") + "`"


def settings_table(names: set[str] | None = None) -> str:
    """All settings of PPO, or those called `names`, as a table."""
    lines = ["| setting | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    for setting in settings_of(PPOConfig):
        if names is None or setting.name.partition(".")[0] in names:
            bounds = code(setting.bounds) if setting.bounds else ""
            cells = [code(setting.name), code(setting.type), code(setting.default), bounds, setting.meaning]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def config_page() -> str:
    """docs/config.md."""
    common = set(TrainerConfig.keys())
    own = set(PPOConfig.keys()) - common
    return (
        f"{CONFIG_HEAD}## Of every algorithm (`TrainerConfig`)\n\n{settings_table(common)}\n\n"
        f"## Of PPO (`PPOConfig`)\n\n{settings_table(own)}\n"
    )


def differing_defaults() -> list[tuple[str, Any, Any, str]]:
    """(setting, 1.x default, default here, why) of each setting whose default is another one now."""
    defaults = PPOConfig().to_dict()
    now = defaults | {f"model.{name}": value for name, value in defaults["model"].items()}
    return [(name, old, now[name], REASONS[name]) for name, old in DEFAULTS_1X.items() if now[name] != old]


def migrating_page() -> str:
    """docs/migrating.md."""
    lines = ["| setting | 1.x | here | why |", "|---|---|---|---|"]
    lines += [f"| {code(name)} | {code(old)} | {code(new)} | {why} |" for name, old, new, why in differing_defaults()]
    tables = {
        "Names that are no settings": former.COMMON,
        "Names in `model` that are no settings": former.MODEL,
        "Names of PPO elsewhere": former.PPO,
    }
    for title, names in tables.items():
        lines += ["", f"## {title}", "", "| name | what became of it |", "|---|---|"]
        lines += [f"| {code(name)} | {text[:1].upper()}{text[1:]} |" for name, text in names.items()]
    new = [code(key) for key in PPOConfig.keys() if key not in DEFAULTS_1X and key != "model"]  # noqa: SIM118
    new += [code(f"model.{key}") for key in ModelConfig.keys() if f"model.{key}" not in DEFAULTS_1X]  # noqa: SIM118
    lines += ["", "## New settings", "", f"{', '.join(new)}: see [config.md](config.md)."]
    return MIGRATING_HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "config.md").write_text(config_page())
    (HERE / "migrating.md").write_text(migrating_page())
