"""Servers and clients that are stopped at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from headwater.serving.policy_client import PolicyClient  # noqa: E402
from tests.serving.harness import Harness  # noqa: E402


@pytest.fixture
def serve() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(*args: Any, **kwargs: Any) -> Harness:
        made.append(Harness(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., PolicyClient]]:
    made: list[PolicyClient] = []

    def make(*args: Any, **kwargs: Any) -> PolicyClient:
        made.append(PolicyClient(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close(timeout=0.0)
