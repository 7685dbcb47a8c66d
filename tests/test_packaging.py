"""What a user meets first: imports that cost nothing, names that exist, and a README that runs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headwater

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "ray", "gymnasium", "tensorflow", "jax", "tensorboard", "numpy", "pydantic"}


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)


def imported_by(code: str) -> set[str]:
    """The top-level modules of HEAVY that are imported once `code` has run."""
    result = python(
        f"import sys\n{code}\nprint('MODULES', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    )
    assert result.returncode == 0, result.stderr
    return HEAVY & set(result.stdout.rpartition("MODULES")[2].split())


def test_import_headwater_is_free() -> None:
    assert imported_by("import headwater; dir(headwater); headwater.__version__") == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["train", "--help"], ["evaluate", "-h"], ["nonsense"]]
)
def test_help_and_mistakes_import_no_framework(arguments: list[str]) -> None:
    code = (
        f"sys.argv = ['headwater', *{arguments!r}]\nfrom headwater.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    assert imported_by(code) <= {"pydantic"}  # typer may use it


@pytest.mark.parametrize(
    "module",
    [
        "headwater.config",
        "headwater.registry",
        "headwater.errors",
        "headwater.callbacks",
        "headwater.algorithms.ppo.config",
    ],
)
def test_settings_and_names_import_no_framework(module: str) -> None:
    assert imported_by(f"import {module}") <= {"pydantic"}


@pytest.mark.parametrize("arguments", [["list"], ["config", "PPO"], ["config", "PPO", "lr"]])
def test_what_needs_no_framework_answers_at_once(arguments: list[str]) -> None:
    before = os.times()
    result = subprocess.run([sys.executable, "-m", "headwater", *arguments], capture_output=True, text=True, timeout=60)
    after = os.times()
    assert result.returncode == 0 and result.stdout, result.stderr
    # Processor time, which a busy machine does not stretch as it does the time on the clock.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


@pytest.mark.parametrize("name", headwater.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(headwater, name) is not None
    assert name in dir(headwater)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PPOTrainr'"):
        _ = headwater.PPOTrainr


def test_versions_agree() -> None:
    assert importlib.metadata.version("headwater") == headwater.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{headwater.__version__}]" in changelog


def test_constraints_pin_every_direct_dependency() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert pins["torch"] == "2.13.0"
    assert not [name for name, version in pins.items() if "+" in version], "a local version fits one machine only"
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    names = {re.split(r"[\[<>=~! ]", requirement)[0].lower().replace("_", "-") for requirement in direct}
    assert names - {"headwater"} <= pinned


def readme_blocks(page: str = "README.md") -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(readme_blocks())))
def test_readme_block_runs(number: int) -> None:
    block = readme_blocks()[number].replace("range(50)", "range(2)")  # the text shows a training, the test its calls
    result = python(block)
    assert result.returncode == 0, result.stderr


PAGES = [
    "docs/extending.md",
    "docs/frameworks.md",
    "docs/memory.md",
    "docs/multi_agent.md",
    "docs/external.md",
    "docs/offline.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_run(page: str) -> None:
    """One after the other: a block may use what those above it made."""
    result = python("\n".join(readme_blocks(page)))
    assert result.returncode == 0, result.stderr


def test_the_readme_begins_with_the_two_commands_and_then_python() -> None:
    text = (ROOT / "README.md").read_text()
    fences = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    assert [kind for kind, _ in fences[:2]] == ["sh", "python"]
    assert re.findall(r"^make (\w+)", fences[0][1], re.MULTILINE) == ["train", "test"]


def test_commands_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for group in re.findall(r"headwater\[([\w,-]+)\]", text):
        assert set(group.split(",")) <= set(extras)


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
