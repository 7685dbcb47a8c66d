"""Every example in a docstring runs and says what it shows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headwater

MODULES = [
    name for _, name, _ in pkgutil.walk_packages(headwater.__path__, "headwater.") if name != "headwater.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0
