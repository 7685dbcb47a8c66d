"""The `headwater` command: its subcommands, put together.

Each subcommand lives in a module of its own, whose imports are those of its signature alone; what it runs is imported
inside it, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from headwater.cli.check_env import check_env
from headwater.cli.describe import config, list_algorithms
from headwater.cli.evaluate import evaluate
from headwater.cli.train import train

app = typer.Typer(
    name="headwater",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headwater import __version__

        typer.echo(f"headwater {__version__}")
        raise typer.Exit


@app.callback()
def headwater(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train reinforcement-learning policies.

    \b
    Example:
      headwater train PPO --env CartPole-v1 --stop-reward 475
      headwater COMMAND --help
    """


app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("check-env")(check_env)
app.command("list")(list_algorithms)
app.command("config")(config)


def main() -> None:
    """Run the command line of this process; the exit status says how it went."""
    sys.path.append(
        os.getcwd()
    )  # last, so that --env my_module:MyEnv finds a file here and no library is hidden by one
    app(prog_name="headwater")
