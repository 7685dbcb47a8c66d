from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.run_request import merge_nested, parse_assignments, parse_yaml, read_request
from headwater.cli.stopping import StopCriteria
from headwater.config import merge_config
from headwater.errors import ConfigError
from headwater.registry import get_config_class

TUNED = Path(__file__).parents[2] / "tuned"
KNOWN = {"lr", "gamma", "model", "env_config", "num_envs_per_worker"}


def write(text: str, name: str = "f.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3E+5", 3e5),
        ("-2e3", -2000.0),
        (".5e1", 5.0),
        ("1.5e-3", 1.5e-3),
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
        ("[64, 64]", [64, 64]),
        ("[[0, 1e-4]]", [[0, 1e-4]]),
        ("{a: 1e2}", {"a": 100.0}),
        ("e5", "e5"),
        ("1e", "1e"),
        ("'1e-4'", "1e-4"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_yaml_values(text: str, value: object) -> None:
    parsed = parse_yaml(text, "x")
    assert parsed == value and type(parsed) is type(value)


def test_yaml_is_safe_and_the_shared_loader_stays_as_it_was() -> None:
    import yaml

    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml("!!python/object/apply:os.system [echo]", "the file")
    parse_yaml("1e-4", "x")
    assert yaml.safe_load("1e-4") == "1e-4"


def test_assignments_nest_and_later_ones_win() -> None:
    settings = parse_assignments(["lr=1", "model.a=[1,2]", "model.b.c=x=y", "lr=3e-4"])
    assert settings == {"lr": 3e-4, "model": {"a": [1, 2], "b": {"c": "x=y"}}}


@pytest.mark.parametrize("bad", ["lr", "=3", "a..b=1", ".a=1", "a.=2"])
def test_an_assignment_without_key_or_value_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        parse_assignments([bad])


def test_merge_leaves_its_inputs_alone() -> None:
    below, above = {"m": {"a": 1}, "x": 1}, {"m": {"b": 2}, "x": {"y": 1}}
    assert merge_nested(below, above) == {"m": {"a": 1, "b": 2}, "x": {"y": 1}}
    assert below == {"m": {"a": 1}, "x": 1} and above == {"m": {"b": 2}, "x": {"y": 1}}


def test_plain_yaml_and_toml_say_the_same() -> None:
    yaml_path = write("run: PPO\nenv: A-v0\nstop: {timesteps_total: 1e5}\nlr: 1e-4\nmodel: {fcnet_hiddens: [8]}\n")
    toml_path = write(
        'run = "PPO"\nenv = "A-v0"\nlr = 1e-4\n[stop]\ntimesteps_total = 1e5\n[model]\nfcnet_hiddens = [8]\n', "f.toml"
    )
    for path in (yaml_path, toml_path):
        request = read_request(path, None, KNOWN)
        assert (request.algorithm, request.env) == ("PPO", "A-v0")
        assert request.stop == {"timesteps_total": 1e5}
        assert request.config == {"lr": 1e-4, "model": {"fcnet_hiddens": [8]}}


def test_a_plain_file_of_groups_only_is_not_taken_for_envs() -> None:
    request = read_request(write("model: {fcnet_hiddens: [8]}\nenv_config: {a: 1}\n"), "A-v0", KNOWN)
    assert request.env is None and set(request.config) == {"model", "env_config"}


def test_keyed_by_env() -> None:
    path = write("A-v0: {lr: 1}\nB-v0: {lr: 2, stop: {episode_reward_mean: 5}}\n")
    request = read_request(path, "B-v0", KNOWN)
    assert request.env == "B-v0" and request.config == {"lr": 2} and request.stop == {"episode_reward_mean": 5}
    with pytest.raises(ConfigError, match="choose one with --env: A-v0, B-v0"):
        read_request(path, None, KNOWN)
    with pytest.raises(ConfigError, match="Did you mean A-v0"):
        read_request(path, "A-v1", KNOWN)
    assert read_request(write("A-v0: {lr: 1}"), None, KNOWN).env == "A-v0"


def test_tuned_examples() -> None:
    path = write(
        "one: {run: PPO, env: A-v0, stop: {training_iteration: 3}, config: {lr: 1}}\n"
        "two: {run: PPO, env: B-v0, config: {lr: 2, env: C-v0}}\n"
    )
    request = read_request(path, "A-v0", KNOWN)
    assert (request.algorithm, request.env, request.stop) == ("PPO", "A-v0", {"training_iteration": 3})
    assert request.config == {"lr": 1}
    with pytest.raises(ConfigError, match="may hold run, env, stop and config, but not lr"):
        read_request(write("one: {run: PPO, env: A-v0, lr: 3, config: {}}"), None, KNOWN)
    with pytest.raises(ConfigError, match="holds 2 entries for A-v0"):
        read_request(write("one: {config: {}, env: A-v0}\ntwo: {run: PPO, env: A-v0}"), "A-v0", KNOWN)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.yaml", "[1, 2]", "must hold settings by name"),
        ("f.yaml", "3: 4", "must hold settings by name"),
        ("f.yaml", "a: [", "f.yaml is not valid YAML"),
        ("f.toml", "a = [", "f.toml is not valid TOML"),
        ("f.ini", "a=1", "must end in .yaml"),
        ("f.yaml", "env: 3", "'env' must be a name"),
        ("f.yaml", "env: A\nstop: 3", "'stop' must hold bounds"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_request(write(text, name), None, KNOWN)


def test_unreadable_files() -> None:
    with pytest.raises(ConfigError, match="Cannot read the settings in nowhere.yaml: No such file"):
        read_request(Path("nowhere.yaml"), None, KNOWN)
    Path("latin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        read_request(Path("latin.yaml"), None, KNOWN)
    assert read_request(write(""), "A-v0", KNOWN).config == {}


@pytest.mark.parametrize("path", sorted(TUNED.glob("*.yaml")), ids=lambda path: path.stem)
def test_tuned_files_are_complete_and_their_settings_work(path: Path) -> None:
    request = read_request(path, None, KNOWN)
    assert request.algorithm and request.env and request.stop
    StopCriteria(request.stop)
    config_class = get_config_class(request.algorithm)
    assert merge_config(config_class(), request.config).batch_plan().rounds >= 1
