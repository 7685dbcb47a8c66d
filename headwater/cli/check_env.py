"""`headwater check-env`: whether an env keeps to its API, and what training would suffer from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.output import reporting_errors, say

if TYPE_CHECKING:
    from headwater.envs.check_env import Finding


def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="As for train: CartPole-v1, module:EnvId, module:Class.")],
    env_config: Annotated[
        str, typer.Option(metavar="JSON", help="What the env is made with: JSON or YAML, or a file of these.")
    ] = "{}",
    steps: Annotated[int, typer.Option(min=1, help="How many steps of random actions.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes and the actions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of the findings.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Try an env and say what is wrong with it; the exit status is 1 where there are errors.

    \b
    Example:
      headwater check-env CartPole-v1
      headwater check-env my_module:MyEnv --env-config '{"limit": 30}' --steps 1000
    """
    with reporting_errors(debug):
        from headwater.envs.check_env import check_env as find_faults

        findings = find_faults(env, _read_env_config(env_config), steps, seed)
        if as_json:
            say(json.dumps([asdict(finding) for finding in findings], indent=2))
        else:
            say(_as_text(env, findings))
        if any(finding.severity == "error" for finding in findings):
            raise typer.Exit(1)


def _read_env_config(text: str) -> dict[str, Any]:
    """What `--env-config` gives.

    Raises:
        ConfigError: it is no mapping, or the file cannot be read.
    """
    from headwater.cli.run_request import parse_yaml
    from headwater.errors import ConfigError

    if text.endswith((".json", ".yaml", ".yml")):
        try:
            content = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"Cannot read --env-config {text}: {getattr(error, 'strerror', None) or error}."
            ) from None
    else:
        content = text
    config = parse_yaml(content, f"--env-config {text}")
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"--env-config must be a mapping, as in '{{\"limit\": 30}}', not {config!r}.")
    return config


def _as_text(env: str, findings: Sequence[Finding]) -> str:
    """A table of the findings, as wide as the terminal, and how many there are."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headwater.envs.check_env import summary

    if not findings:
        return f"{env}: nothing to mend."
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        name = f"{finding.severity}\n{finding.check}"
        seen = f"{finding.where}: " if finding.where else ""
        told = f"{seen}expected {finding.expected}\ncame {finding.came}\n{finding.remedy}"
        table.add_row(Text(name), Text(told))
    console = Console()
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(["\n".join(lines).strip("\n"), f"{env}: {summary(findings)}"])
