from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headwater.callbacks import DefaultCallbacks, make_callbacks
from headwater.cli.main import app
from headwater.cli.run_request import parse_yaml
from headwater.registry import get_config_class

run = CliRunner().invoke


def test_list_names_the_algorithms() -> None:
    result = run(app, ["list"])
    assert result.exit_code == 0 and "PPO" in result.stdout and "roximal" in result.stdout
    assert set(json.loads(run(app, ["list", "--json"]).stdout)) == {"PPO"}


def test_config_shows_every_setting_with_type_default_and_meaning() -> None:
    settings = json.loads(run(app, ["config", "PPO", "--json"]).stdout)
    names = {setting["name"] for setting in settings}
    config_class = get_config_class("PPO")
    groups = {name.partition(".")[0] for name in names}
    assert groups == set(config_class.keys())
    assert {"lambda", "model.fcnet_hiddens", "clip_param", "optimizer.eps"} <= names
    for setting in settings:
        assert setting["meaning"] and setting["type"], setting
        assert "Annotated" not in setting["type"] and "BeforeValidator" not in setting["type"], setting
    gamma = next(setting for setting in settings if setting["name"] == "gamma")
    assert gamma["type"] == "float" and gamma["bounds"] == ">= 0, <= 1" and gamma["default"] == 0.99


def test_one_setting_and_one_group() -> None:
    text = run(app, ["config", "ppo", "clip_param"]).stdout
    assert text.startswith("clip_param = ") and "\n\n" not in text.strip()
    assert "model.fcnet_hiddens" in run(app, ["config", "PPO", "model"]).stdout


def test_the_yaml_is_a_config_of_the_defaults() -> None:
    config_class = get_config_class("PPO")
    defaults = parse_yaml(run(app, ["config", "PPO", "--yaml"]).stdout, "the defaults")
    config = config_class(**defaults)
    assert set(defaults) == set(config_class.keys())
    assert config.resolved().to_dict() == config_class().to_dict()
    assert isinstance(make_callbacks(config.callbacks), DefaultCallbacks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "PPO", "lamda"], "headwater: PPO has no setting 'lamda'. Near it: lambda"),
        (["config", "PPO", "zzzz"], "`headwater config PPO` shows them all"),
        (["config", "PPOO"], "Did you mean PPO?"),
    ],
)
def test_what_is_not_there_is_one_message(arguments: list[str], message: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 1 and message in result.stderr and "Traceback" not in result.stderr
