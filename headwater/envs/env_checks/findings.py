"""Finding: one fault of an env, with what was expected, what came and how to mend it; Findings collects them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headwater.errors import HeadwaterError

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One fault of an env.

    Attributes:
        severity: "error" where the env breaks the API, "warning" where training may only suffer.
        check: the name of what was asked, such as "obs-shape".
        where: when it was first seen, and of which agent.
        expected, came: what the API asks for, and what the env gave.
        remedy: how to mend it.

    Example:
        >>> print(Finding("error", "info-type", "step 1", "a dict", "None", "Return {}."))
        error info-type (step 1): expected a dict; came None. Return {}.
    """

    severity: Severity
    check: str
    where: str
    expected: str
    came: str
    remedy: str

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.check}{where}: expected {self.expected}; came {self.came}. {self.remedy}"


class Stopped(Exception):
    """The env cannot be followed any further; the reason is among the findings."""


class Findings:
    """Collects findings, each fault once for each agent: where it was first seen.

    Attributes:
        where: what the env is doing, for the findings to come.
    """

    def __init__(self) -> None:
        self.where = ""
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, severity: Severity, check: str, expected: str, came: str, remedy: str, who: str = "") -> None:
        """Add a fault; `who` is the agent whose it is, "" where there is only one."""
        where = ", ".join(part for part in (who, self.where) if part)
        self._found.setdefault((check, who), Finding(severity, check, where, expected, came, remedy))

    def error(self, check: str, expected: str, came: str, remedy: str, who: str = "") -> None:
        """Add a fault that breaks the API."""
        self.add("error", check, expected, came, remedy, who)

    def warning(self, check: str, expected: str, came: str, remedy: str, who: str = "") -> None:
        """Add what training may suffer from."""
        self.add("warning", check, expected, came, remedy, who)

    def call(self, check: str, function: Callable[[], Any]) -> Any:
        """Return `function()`, a call into the env.

        Raises:
            Stopped: it raised, which is a finding now.
        """
        try:
            return function()
        except Exception as error:
            self.error(check, "no exception", last_line(error), "Mend the env where the exception names it.")
            raise Stopped from error

    def has(self, check: str) -> bool:
        """Whether this fault was found."""
        return any(name == check for name, _ in self._found)

    @property
    def has_errors(self) -> bool:
        """Whether anything but warnings was found."""
        return any(finding.severity == "error" for finding in self._found.values())

    def listed(self) -> list[Finding]:
        """All, errors first, else in the order found."""
        return sorted(self._found.values(), key=lambda finding: finding.severity)


def last_line(error: BaseException) -> str:
    """The last line of an exception's traceback, and where it was raised."""
    if isinstance(error, HeadwaterError):
        return str(error).rstrip(".")  # it says all by itself
    lines = [line.strip() for line in traceback.format_exception_only(error) if line.strip()]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{lines[-1] if lines else type(error).__name__}{place}"


def shown(value: Any) -> str:
    """A value as a message shows it: its type and, in short, itself."""
    try:
        text = f"the {type(value).__name__} {value!r}"
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
