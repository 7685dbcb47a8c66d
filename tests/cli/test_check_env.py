from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.main import app

run = CliRunner().invoke
BROKEN = "tests.cli.test_check_env:broken"


def broken(context):
    """An env of the old gym API."""
    from tests.envs.broken_envs import stepping

    return stepping(lambda env, result: (*result[:3], {}))()


def test_a_sound_env_gives_status_0() -> None:
    result = run(app, ["check-env", "CartPole-v1", "--steps", "50"])
    assert result.exit_code == 0 and result.stdout == "CartPole-v1: nothing to mend.\n"
    result = run(app, ["check-env", "CartPole-v1", "--json", "--steps", "50", "--seed", "3"])
    assert result.exit_code == 0 and json.loads(result.stdout) == []


def test_errors_are_told_with_their_remedies_and_give_status_1() -> None:
    result = run(app, ["check-env", BROKEN])
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "step 1: expected (observation, reward, terminated," in text and "old gym API" in text
    assert result.stdout.endswith(f"{BROKEN}: 1 error, 0 warnings\n") and not result.stderr


def test_json_holds_the_findings() -> None:
    result = run(app, ["check-env", BROKEN, "--json"])
    findings = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(finding["severity"], finding["check"], finding["where"]) for finding in findings] == [
        ("error", "step-result", "step 1")
    ]
    assert set(findings[0]) == {"severity", "check", "where", "expected", "came", "remedy"}


def test_warnings_alone_give_status_0() -> None:
    result = run(app, ["check-env", "examples.envs:MaskedChoice", "--env-config", '{"mask_in": "info"}'])
    assert result.exit_code == 0 and "mask-in-info" in result.stdout and "0 errors, 1 warning" in result.stdout


def test_the_env_config_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "level.yaml"
    path.write_text("choices: [3, 2]\nsteps: 4\n")
    result = run(app, ["check-env", "examples.envs:MaskedChoice", "--env-config", str(path)])
    assert result.exit_code == 0 and "nothing to mend" in result.stdout


@pytest.mark.parametrize(
    ("env_config", "message"),
    [
        ("[1, 2]", "headwater: --env-config must be a mapping"),
        ("{", "headwater: --env-config { is not valid YAML"),
        ("absent.json", "headwater: Cannot read --env-config absent.json: No such file"),
    ],
)
def test_a_wrong_env_config_is_one_message(env_config: str, message: str) -> None:
    result = run(app, ["check-env", "CartPole-v1", "--env-config", env_config])
    assert result.exit_code == 1 and result.stderr.startswith(message)


def test_an_env_that_there_is_not_is_a_finding() -> None:
    result = run(app, ["check-env", "CartPoll-v1"])
    assert result.exit_code == 1 and "Did you mean CartPole-v1" in " ".join(result.stdout.split())


def test_help_says_what_it_does() -> None:
    assert "Try an env and say what is wrong with it" in run(app, ["check-env", "--help"]).stdout
