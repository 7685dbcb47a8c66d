"""What a checkpoint may make this process import: registered names, and classes of the kind that a setting expects.

A checkpoint names code as `module:name`. A file may come from anywhere, so that nothing is called just because a file
says so: the standard library is never imported for it, a class must derive from what its setting is for, and functions
are used only by a user who says that the checkpoint is trusted, or who gives the setting anew.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from headwater.config import TrainerConfig
from headwater.errors import CheckpointError, HeadwaterError
from headwater.registry import named_env, registered_envs, resolve_reference
from headwater.settings.settings import Settings, changes

_ENVS = (
    "gymnasium.core.Env",
    "gymnasium.vector.vector_env.VectorEnv",
    "headwater.envs.vector_env.VectorEnv",
    "headwater.envs.multi_agent_env.MultiAgentEnv",
    "headwater.envs.external_env.ExternalEnv",
    "headwater.envs.base_env.BaseEnv",
)
# Setting -> full names of the classes, one of which its value must derive from.
_EXPECTED = {
    "env": _ENVS,
    "evaluation_config.env": _ENVS,
    "callbacks": ("headwater.callbacks.DefaultCallbacks",),
    "evaluation_config.callbacks": ("headwater.callbacks.DefaultCallbacks",),
    "model.custom_model": (
        "torch.nn.modules.module.Module",
        "tensorflow.python.module.module.Module",
        "keras.src.models.model.Model",
        "flax.linen.module.Module",
    ),
    "model.custom_action_dist": ("headwater.policy.distributions.distribution.ActionDistribution",),
    "model.custom_preprocessor": ("headwater.sampling.preprocessors.Encoder",),
}


def resolve_saved_references(config: TrainerConfig, given: Mapping[str, Any], trust: bool, path: Path) -> None:
    """Replace the references in a config that came from a checkpoint by what they name.

    Args:
        config: changed in place.
        given: settings that the user gave anew, nested as in a config: theirs are resolved without question.
        trust: whether functions may be used as well.
        path: of the checkpoint, for messages.

    Raises:
        CheckpointError: a reference is not to be trusted, or names nothing.
    """
    for setting, reference in config.references().items():
        owner, _, name = setting.rpartition(".")
        trusted = trust or _is_given(setting, given)
        is_env = setting in ("env", "evaluation_config.env")
        if is_env and reference in registered_envs():
            continue
        if not trusted and reference.split(":")[0].split(".")[0] in sys.stdlib_module_names:
            raise _refusal(path, setting, reference, "is no code for this setting")
        try:
            found = named_env(reference) if is_env else resolve_reference(reference)
        except HeadwaterError as error:
            raise CheckpointError(f"{path}: its setting {setting} cannot be used: {error}") from error
        if found is None:
            continue  # an id that the module registered with Gymnasium
        if not trusted and not _is_kind_of(found, _EXPECTED.get(setting, ())):
            raise _refusal(path, setting, reference, f"is {_described(found)}, which a file alone cannot have called")
        (config[owner] if owner else config)[name] = found


def _is_given(setting: str, given: Any) -> bool:
    for name in setting.split("."):
        given = changes(given) if isinstance(given, Settings) else given
        if not isinstance(given, Mapping) or name not in given:
            return False
        given = given[name]
    return True


def _is_kind_of(found: Any, expected: Collection[str]) -> bool:
    return isinstance(found, type) and any(
        f"{base.__module__}.{base.__qualname__}" in expected for base in found.__mro__
    )


def _described(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"


def _refusal(path: Path, setting: str, reference: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} names {reference!r} as its {setting}; that {why}. If you know where the checkpoint comes from, give "
        f"{setting} anew, or pass trust=True (--trust on the command line)."
    )
