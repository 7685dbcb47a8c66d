"""The house stands as ARCHITECTURE.md draws it: imports go down, frameworks stay in their rooms, concepts are there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "headwater"
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the roof to the cellar: a module imports from its own layer and those below it.
LAYERS = [
    ["headwater.__main__"],
    ["headwater.cli"],
    ["headwater.algorithms"],
    ["headwater.trainer_template"],
    ["headwater.trainer"],
    ["headwater.trainable"],
    ["headwater.evaluation", "headwater.telemetry", "headwater.saved_references"],
    ["headwater.checkpoint"],
    ["headwater.execution"],
    ["headwater.serving"],
    ["headwater.sampling", "headwater.offline"],
    ["headwater.frameworks.torch", "headwater.frameworks.tf", "headwater.frameworks.jax"],
    ["headwater.frameworks.learning_policy"],
    ["headwater.frameworks.numpy"],
    ["headwater.policy"],
    ["headwater.frameworks"],
    ["headwater.data"],
    ["headwater.envs"],
    ["headwater.engines"],
    ["headwater.config"],
    ["headwater.settings", "headwater.callbacks"],
    ["headwater.registry"],
    ["headwater.storage"],
    ["headwater.errors"],
]
# Config and loss of an algorithm are leaves: they may be read without its plan, and import what lies below them.
LEAVES = {r"headwater\.algorithms\.\w+\.(config|loss)": "headwater.policy"}
ONLY_IN = {
    "torch": "headwater.frameworks.torch",
    "tensorflow": "headwater.frameworks.tf",
    "jax": "headwater.frameworks.jax",
    "ray": "headwater.engines.ray",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Modules imported anywhere in the file, but for type checking only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.startswith("headwater"):
                found.update(f"{node.module}.{a.name}" for a in node.names if is_module(f"{node.module}.{a.name}"))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def layer_of(module: str) -> int:
    inside = [(len(name), depth) for depth, names in enumerate(LAYERS) for name in names
              if module == name or module.startswith(name + ".")]  # fmt: skip
    if not inside:
        raise AssertionError(f"{module} has no layer; give it one here and in ARCHITECTURE.md")
    return max(inside)[1]


@pytest.mark.parametrize("path", [p for p in MODULES if p != PACKAGE / "__init__.py"], ids=name_of)
def test_imports_go_down(path: Path) -> None:
    module = name_of(path)
    leaf = next((floor for pattern, floor in LEAVES.items() if re.fullmatch(pattern, module)), module)
    own = layer_of(leaf)
    up = [name for name in imports_of(path) if name.startswith("headwater.") and layer_of(name) < own
          and name.rpartition(".")[0] != module.rpartition(".")[0]]  # fmt: skip
    assert not up, f"{module} imports what stands above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_frameworks_stay_in_their_rooms(path: Path) -> None:
    module = name_of(path)
    for framework, room in ONLY_IN.items():
        used = [name for name in imports_of(path) if name == framework or name.startswith(framework + ".")]
        assert not used or module.startswith(room), f"{module} imports {used}"


def concept_rows() -> list[tuple[str, str]]:
    """(concept, file) of each row of the table in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \| `(headwater/[^`]+\.py)`", text, re.MULTILINE)
    return [(concept, file) for names, file in rows for concept in re.findall(r"`([^`]+)`", names)]


def test_there_is_a_table_of_concepts() -> None:
    assert len(concept_rows()) > 40


@pytest.mark.parametrize(("concept", "file"), concept_rows())
def test_concepts_are_where_the_table_says(concept: str, file: str) -> None:
    assert (ROOT / file).is_file()
    found = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for part in concept.removesuffix("()").split("."):
        found = getattr(found, part)


def test_the_public_names_are_there() -> None:
    headwater = importlib.import_module("headwater")
    for name in headwater.__all__:
        assert getattr(headwater, name) is not None
