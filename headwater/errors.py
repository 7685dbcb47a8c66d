"""The exceptions of headwater: everything that a user can mend derives from `HeadwaterError`.

The command line prints a `HeadwaterError` as one message without a traceback; anything else is a fault of ours.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class HeadwaterError(Exception):
    """Base of all errors that name the user's thing and say how to mend it."""


class ConfigError(HeadwaterError, ValueError):
    """A setting is unknown, ill-typed, out of bounds, or cannot work together with another."""


class EnvError(HeadwaterError, RuntimeError):
    """An env could not be made, raised, or returned something outside its own spaces."""


class UnsupportedSpaceError(HeadwaterError, ValueError):
    """No encoder, distribution or network exists for a space."""


class CheckpointError(HeadwaterError, RuntimeError):
    """A checkpoint is damaged, foreign, newer than this library, or does not fit."""


class TrainingError(HeadwaterError, RuntimeError):
    """Training cannot go on: its updates stay non-finite, or its plan broke."""


class MissingExtraError(HeadwaterError, ImportError):
    """An optional dependency is absent."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of headwater brings it.

    Raises:
        MissingExtraError: `module` is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise  # the module is there; something that it needs itself is not
        raise MissingExtraError(
            f"This needs the package {error.name!r}, which is not installed. "
            f"Install it with: pip install 'headwater[{extra}]'"
        ) from error
