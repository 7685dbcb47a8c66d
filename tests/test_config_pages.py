"""docs/config.md and docs/migrating.md are those that the config classes make."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_config_pages", DOCS / "make_config_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["config", "migrating"])
def test_a_page_is_up_to_date(maker, page):
    made = getattr(maker, f"{page}_page")()
    assert (DOCS / f"{page}.md").read_text() == made, "make it anew: python docs/make_config_pages.py"


def test_every_former_default_is_of_a_setting(maker):
    names = {setting.name for setting in maker.settings_of(maker.PPOConfig)}
    assert set(maker.DEFAULTS_1X) <= names and set(maker.REASONS) <= set(maker.DEFAULTS_1X)
