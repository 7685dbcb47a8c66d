"""TrainerConfig: what is accepted, what is refused and how, reading as a dict, merging, the way to JSON and back."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml

from headwater.algorithms.ppo.config import PPOConfig
from headwater.callbacks import DefaultCallbacks
from headwater.config import ModelConfig, OptimizerConfig, TrainerConfig, merge_config
from headwater.errors import ConfigError
from headwater.settings.merging import merged_values
from headwater.settings.problems import SettingsError


class Hooks(DefaultCallbacks):
    pass


def evaluate(trainer: Any, workers: Any) -> dict[str, float]:
    return {"score": 1.0}


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        TrainerConfig(**settings)
    return str(caught.value)


# Errors.


def test_an_unknown_key_names_itself_its_path_and_its_neighbours():
    assert refusal(lrr=1) == "TrainerConfig: lrr: no such setting. Did you mean lr?"
    assert "model.fcnet_hidens: no such setting. Did you mean fcnet_hiddens" in refusal(model={"fcnet_hidens": [8]})
    assert "it belongs at model.fcnet_hiddens" in refusal(fcnet_hiddens=[8])
    assert "There are: env, env_config" in refusal(qqqqqq=1)


def test_all_problems_come_in_one_message():
    text = refusal(lr=-1, gamma=2, train_batch_size=1.5, model={"fcnet_hiddens": [0, 8]}, optimizer={"eps": 0}, nope=1)
    for line in (
        "6 things are wrong",
        "lr: must be at least 0, but -1.0 (float) came",
        "gamma: must be at most 1, but 2.0 (float) came",
        "train_batch_size: must be a whole number, but 1.5 (float) came",
        "model.fcnet_hiddens[0]: must be at least 1, but 0 (int) came",
        "optimizer.eps: must be greater than 0",
        "nope: no such setting",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("horizon", 0, "at least 1"),
        ("horizon", "soon", "a whole number, but 'soon' (str)"),
        ("seed", True, "a whole number, but True (bool)"),
        ("seed", -1, "at least 0"),
        ("lr", False, "a number, but False (bool)"),
        ("lr", "fast", "a number"),
        ("lr", "0.1", "a number, but '0.1' (str)"),
        ("lr", float("nan"), "finite"),
        ("lr", None, "a number, but None"),
        ("explore", 1, "true or false, but 1 (int)"),
        ("explore", "yes", "true or false"),
        ("clip_rewards", "yes", "true, false, null or a number"),
        ("clip_rewards", -1.0, "greater than 0"),
        ("grad_clip", 0, "greater than 0"),
        ("lambda", 1.1, "at most 1"),
        ("batch_mode", "episodes", "'truncate_episodes' or 'complete_episodes'"),
        ("vectorization", "threads", "'auto', 'native', 'sync' or 'async'"),
        ("device", "gpu", "'cuda:<index>'"),
        ("log_level", "LOUD", "'DEBUG'"),
        ("rollout_fragment_length", "long", "a whole number or 'auto'"),
        ("rollout_fragment_length", 0, "at least 1"),
        ("num_workers", 2, "not available in this version yet"),
        ("num_workers", -1, "at least 0"),
        ("framework", "tensorflow", "'tf2'"),
        ("framework", "caffe", "must be 'torch'"),
        ("env", 3, "is an invalid env specification"),
        ("env", "", "is an invalid env specification"),
        ("callbacks", {"on_episode_end": print}, "DefaultCallbacks"),
        ("callbacks", 3, "DefaultCallbacks"),
        ("custom_eval_function", 3, "module:name"),
        ("exploration_config", {"type": "EpsilonGreedy"}, "StochasticSampling"),
        ("exploration_config", {"type": "StochasticSampling", "epsilon": 1}, "random_timesteps"),
        ("exploration_config", {"type": "StochasticSampling", "random_timesteps": -1}, "at least 0"),
        ("env_config", None, "a dict"),
        ("model", 3, "a dict"),
        ("model", {"fcnet_activation": "cube"}, "'tanh'"),
        ("model", {"vf_share_layers": "maybe"}, "true, false or 'auto'"),
        ("model", {"conv_filters": [[16, 8]]}, "[channels, kernel, stride]"),
        ("model", {"conv_filters": [[16, [8, 4], 2]]}, "square"),
        ("model", {"conv_filters": 16}, "[[channels, kernel, stride], ...]"),
        ("model", {"conv_filters": [[16, 0, 2]]}, "at least 1"),
        ("optimizer", {"name": "adagrad"}, "'adam'"),
        ("local_dir", "", "empty"),
        ("evaluation_interval", 0, "at least 1"),
        ("keep_checkpoints_num", 0, "at least 1"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_key_the_expected_and_what_came(key, value, words):
    text = refusal(**{key: value})
    assert text.startswith(f"TrainerConfig: {key}") and words in text


def test_assignment_is_checked_as_construction_is():
    config = TrainerConfig()
    with pytest.raises(ConfigError, match="lr: must be at least 0"):
        config.lr = -1
    with pytest.raises(ConfigError, match="lrr: no such setting. Did you mean lr"):
        config.lrr = 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="lrr"):
        config["lrr"] = 1
    with pytest.raises(ConfigError, match="use_lstm: no longer a setting"):
        config.model.use_lstm = True  # type: ignore[attr-defined]
    config["lambda"] = "9e-1"
    assert config.lambda_ == 0.9 and config.lr == TrainerConfig().lr


def test_settings_must_be_a_dict_with_string_keys():
    for wrong in ([1], "lr=3", 3):
        with pytest.raises(ConfigError, match="dict"):
            merge_config(TrainerConfig(), wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"strings, but 1 \(int\) came"):
        TrainerConfig.model_validate({1: 2})


def test_an_error_survives_pickling():
    with pytest.raises(SettingsError) as caught:
        TrainerConfig(lr=-1, gamma=3)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# Numbers.


def test_yaml_exponents_and_whole_floats_are_understood():
    given = yaml.safe_load(
        "{lr: 1e-4, train_batch_size: 1e4, gamma: 9.9e-1, timesteps_per_iteration: 2.0e+3, seed: 7.0}"
    )
    assert isinstance(given["lr"], str)
    config = TrainerConfig(**given)
    assert (config.lr, config.train_batch_size, config.gamma) == (1e-4, 10_000, 0.99)
    assert (config.timesteps_per_iteration, config.seed) == (2000, 7)
    assert type(config.train_batch_size) is int


def test_numpy_scalars_are_numbers():
    config = TrainerConfig(lr=np.float32(0.5), seed=np.int64(3), explore=np.bool_(False), gamma=1)
    assert (config.lr, config.seed, config.explore, config.gamma) == (0.5, 3, False, 1.0)
    assert type(config.seed) is int and type(config.explore) is bool and type(config.gamma) is float


def test_pairs_and_tuples_take_their_normal_form():
    config = TrainerConfig(model={"fcnet_hiddens": (32, 32), "conv_filters": [[16, [8, 8], 4], (32, 4, (2, 2))]})
    assert config.model.fcnet_hiddens == [32, 32]
    assert config.model.conv_filters == [[16, 8, 4], [32, 4, 2]]
    assert TrainerConfig(log_level="warning").log_level == "WARN"


# Reading as a dict.


def test_it_reads_as_a_dict():
    config = TrainerConfig(**{"lambda": 0.5, "lr": 0.1})
    assert config["lambda"] == config["lambda_"] == config.lambda_ == 0.5
    assert "lambda" in config and "lambda_" in config and "nope" not in config and 3 not in config
    assert config.get("lr") == 0.1 and config.get("nope", 7) == 7
    assert config["model"]["fcnet_hiddens"] == [64, 64]
    assert "lambda" in config.keys() and "lambda_" not in config.keys()  # noqa: SIM118
    assert dict(config.items()) == dict(config) == {**config}
    assert len(config) == len(list(config)) == len(config.values())
    with pytest.raises(KeyError, match="Did you mean lr"):
        config["lrr"]


def test_repr_shows_what_was_set():
    assert repr(TrainerConfig(lr=0.5, env="CartPole-v1")) == "TrainerConfig(env='CartPole-v1', lr=0.5)"


def test_copies_are_independent_and_share_other_objects():
    hooks = Hooks()
    config = TrainerConfig(env_config={"a": {"b": [1]}}, callbacks=hooks)
    for twin in (config.copy(), config.model_copy()):
        assert twin == config and repr(twin) == repr(config)
        twin.env_config["a"]["b"].append(2)
        twin.model.fcnet_hiddens.append(3)
    assert config.env_config == {"a": {"b": [1]}} and config.model.fcnet_hiddens == [64, 64]
    assert config.copy().callbacks is hooks
    with pytest.raises(ConfigError, match="lr"):
        config.model_copy(update={"lr": -1})
    assert config.model_copy(update={"lr": 0.5}).lr == 0.5 and config.lr == TrainerConfig().lr


def test_check_sees_what_was_changed_in_place():
    config = TrainerConfig()
    config.model.fcnet_hiddens.append("wide")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model.fcnet_hiddens\[2\]"):
        config.check()


# Merging.


def test_sub_dicts_merge_and_inputs_stay_as_they_were():
    default = TrainerConfig(env_config={"a": 1, "inner": {"x": 1, "y": 2}}, model={"fcnet_hiddens": [8]})
    user = {"env_config": {"inner": {"y": 3}}, "model": {"custom_model_config": {"k": [1]}}, "optimizer": {"eps": 0.1}}
    before = default.to_dict(), copy.deepcopy(user)
    merged = merge_config(default, user)
    assert merged.env_config == {"a": 1, "inner": {"x": 1, "y": 3}}
    assert merged.model.fcnet_hiddens == [8] and merged.model.custom_model_config == {"k": [1]}
    assert merged.optimizer.to_dict() == {**OptimizerConfig().to_dict(), "eps": 0.1}
    assert merged.evaluation_config == {"explore": False}
    merged.model.custom_model_config["k"].append(2)
    merged.env_config["inner"]["x"] = 9
    assert (default.to_dict(), user) == before


def test_evaluation_config_merges_onto_its_default():
    assert merge_config(TrainerConfig(), {"evaluation_config": {"horizon": 5}}).evaluation_config == {
        "explore": False,
        "horizon": 5,
    }


def test_exploration_config_is_replaced_when_its_type_changes():
    base = {"exploration_config": {"type": "A", "x": 1, "y": 2}}
    same = merged_values(base, {"exploration_config": {"x": 3}})
    assert same["exploration_config"] == {"type": "A", "x": 3, "y": 2}
    assert merged_values(base, {"exploration_config": {"type": "A", "x": 3}}) == same
    other = merged_values(base, {"exploration_config": {"type": "B", "z": 1}})
    assert other["exploration_config"] == {"type": "B", "z": 1}


def test_of_a_config_object_only_what_was_set_counts():
    default = PPOConfig(lr=0.5, clip_param=0.1, env_config={"a": 1})
    user = TrainerConfig(gamma=0.9)
    user.model.fcnet_hiddens = [7]
    user.env_config["b"] = 2
    merged = merge_config(default, user)
    assert type(merged) is PPOConfig
    assert (merged.lr, merged.clip_param, merged.gamma, merged.model.fcnet_hiddens) == (0.5, 0.1, 0.9, [7])
    assert merged.env_config == {"a": 1, "b": 2}
    # A value that equals the class's default counts where it was given.
    assert merge_config(default, PPOConfig(lr=1e-3)).lr == 1e-3
    assert type(merge_config(TrainerConfig(), PPOConfig())) is PPOConfig


def test_what_was_set_survives_merging_twice():
    once = merge_config(PPOConfig(), {"gamma": 0.99, "model": {"free_log_std": True}})
    twice = merge_config(PPOConfig(gamma=0.5, model={"free_log_std": False}), once)
    assert twice.gamma == 0.99 and twice.model.free_log_std is True


def test_none_and_a_sub_model_object_are_taken():
    assert merge_config(TrainerConfig(), None) == TrainerConfig()
    merged = merge_config(TrainerConfig(model={"fcnet_activation": "relu"}), {"model": ModelConfig(fcnet_hiddens=[4])})
    assert (merged.model.fcnet_activation, merged.model.fcnet_hiddens) == ("relu", [4])


def test_lambda_may_be_called_either_way_but_not_both():
    assert merge_config(TrainerConfig(), {"lambda_": 0.5})["lambda"] == 0.5
    with pytest.raises(ConfigError, match="lambda_: is lambda, which is given too"):
        merge_config(TrainerConfig(), {"lambda": 0.5, "lambda_": 0.6})


# Combinations.


def test_evaluation_config_is_checked_with_its_path():
    def check(**evaluation: Any) -> None:
        merge_config(TrainerConfig(), {"evaluation_config": evaluation})

    with pytest.raises(ConfigError, match="evaluation_config.explor: no such setting. Did you mean explore"):
        check(explor=False)
    with pytest.raises(ConfigError, match="evaluation_config.model.use_lstm"):
        check(model={"use_lstm": True})
    with pytest.raises(ConfigError, match="evaluation_config.batch_mode: is not free"):
        check(batch_mode="truncate_episodes")
    for setting, value in {"model": {"fcnet_hiddens": [8]}, "normalize_actions": False}.items():
        with pytest.raises(ConfigError, match=f"evaluation_config.{setting}: is as in training"):
            check(**{setting: value})
    check(num_envs_per_worker=3, env="Acrobot-v1", env_config={"a": 1})


def test_for_evaluation():
    config = TrainerConfig(env_config={"a": 1}, evaluation_config={"env_config": {"b": 2}, "num_envs_per_worker": 3})
    seen = config.for_evaluation()
    assert seen.in_evaluation and seen.batch_mode == "complete_episodes" and seen.rollout_fragment_length == 1
    assert seen.env_config == {"a": 1, "b": 2} and seen.num_envs_per_worker == 3
    assert seen.check() is seen
    assert not config.in_evaluation and config.env_config == {"a": 1}


def test_settings_without_effect_together_are_refused():
    with pytest.raises(ConfigError, match="acting: 'numpy' reads"):
        TrainerConfig(acting="numpy", device="cuda:0").check()
    with pytest.raises(ConfigError, match="num_cpus_per_worker: means nothing without remote"):
        TrainerConfig(num_cpus_per_worker=2).check()


def test_checkpoint_score():
    assert TrainerConfig().checkpoint_score() == ("episode_reward_mean", "max")
    assert TrainerConfig(checkpoint_score_attr="min-episode_len_mean").checkpoint_score() == ("episode_len_mean", "min")


# To JSON and back.


def test_to_dict_is_json_and_comes_back():
    config = PPOConfig(
        env=Hooks, callbacks=Hooks, custom_eval_function=evaluate, lr_schedule=[["1e6", 0]],
        env_config={"array": np.arange(3), "scalar": np.float32(0.5), "tuple": (1, 2), "none": None},
    )  # fmt: skip
    data = json.loads(json.dumps(config.to_dict()))
    assert data["callbacks"] == f"{__name__}:Hooks" and data["custom_eval_function"] == f"{__name__}:evaluate"
    assert data["env_config"] == {"array": [0, 1, 2], "scalar": 0.5, "tuple": [1, 2], "none": None}
    assert data["lambda"] == 0.95 and data["lr_schedule"] == [[1_000_000, 0.0]]
    back = PPOConfig.from_dict(data)
    assert back.to_dict() == data
    assert back.callbacks == f"{__name__}:Hooks"  # not imported unless asked to
    assert back.references() == {
        "callbacks": f"{__name__}:Hooks",
        "custom_eval_function": f"{__name__}:evaluate",
        "env": f"{__name__}:Hooks",
    }
    resolved = PPOConfig.from_dict(data, resolve=True)
    assert resolved.callbacks is Hooks and resolved.custom_eval_function is evaluate
    assert back.callbacks == f"{__name__}:Hooks"


def test_what_cannot_be_stored_is_named_when_restoring():
    config = PPOConfig(callbacks=Hooks(), env=lambda context: None, env_config={"f": {"g": [lambda: 1]}})
    data = json.loads(json.dumps(config.to_dict()))
    with pytest.raises(ConfigError) as caught:
        PPOConfig.from_dict(data)
    for path in ("callbacks: was <", "env: was <function", "env_config.f.g[0]: was <function"):
        assert path in str(caught.value)
    given_again = {"callbacks": Hooks, "env": "CartPole-v1", "env_config": {"f": 3}, "lambda_": 0.5}
    back = PPOConfig.from_dict(data, given_again)
    assert back.callbacks is Hooks and back.env == "CartPole-v1" and back.env_config == {"f": 3} and back.lambda_ == 0.5


def test_nothing_that_a_file_names_is_imported_unasked(tmp_path, monkeypatch):
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = TrainerConfig().to_dict() | {"callbacks": "hostile_module:X", "env": "hostile_module:Y"}
    assert set(TrainerConfig.from_dict(data).check().references()) == {"callbacks", "env"}
    assert "hostile_module" not in sys.modules


def test_importing_costs_no_framework():
    code = (
        "import sys, headwater.algorithms.ppo.config, headwater.registry; "
        "print([m for m in ('torch', 'numpy', 'gymnasium', 'ray') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
