"""Envs of the old Gym API as Gymnasium envs: `reset()` gave an observation only, `step` four values.

Those of the package gym go through shimmy, which converts their spaces too. Those that use Gymnasium's spaces need no
package: `OldApiEnv`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

import gymnasium

from headwater.errors import EnvError, require

logger = logging.getLogger(__name__)


class OldApiEnv(gymnasium.Env):
    """An env of the old API whose spaces are Gymnasium's.

    `done` is a true end, unless info says by "TimeLimit.truncated" that a time limit cut the episode. Seeds go to the
    method `seed`, where there is one.

    Example:
        >>> class Old:
        ...     observation_space = action_space = gymnasium.spaces.Discrete(3)
        ...     def reset(self):
        ...         return 0
        ...     def step(self, action):
        ...         return action, 1.0, action == 2, {}
        >>> env = OldApiEnv(Old())
        >>> env.reset(seed=1), env.step(2)
        ((0, {}), (2, 1.0, True, False, {}))
    """

    def __init__(self, env: Any) -> None:
        self.old_env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = dict(getattr(env, "metadata", None) or {"render_modes": []})

    @property
    def unwrapped(self) -> Any:
        """The old env itself."""
        return getattr(self.old_env, "unwrapped", self.old_env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `options` go nowhere."""
        if seed is not None and hasattr(self.old_env, "seed"):
            self.old_env.seed(seed)
        return self.old_env.reset(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The old step, with `done` split into its two kinds."""
        obs, reward, done, info = self.old_env.step(action)
        cut = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not cut, cut, info

    def render(self) -> Any:
        """A frame, from the old `render(mode="rgb_array")`."""
        return self.old_env.render(mode="rgb_array")

    def close(self) -> None:
        """Close the old env, where it can be."""
        if hasattr(self.old_env, "close"):
            self.old_env.close()


def is_old_gym(env: Any) -> bool:
    """Whether an env's class or spaces come from the package gym."""
    return _from_gym(env) or any(_from_gym(getattr(env, name, None)) for name in ("observation_space", "action_space"))


def has_old_api(env: Any) -> bool:
    """Whether this is an env with Gymnasium's spaces whose `reset` knows no seeds."""
    has_spaces = all(
        isinstance(getattr(env, name, None), gymnasium.Space) for name in ("observation_space", "action_space")
    )
    return has_spaces and callable(getattr(env, "step", None)) and hasattr(env, "reset") and not _takes_seed(env)


def from_old_gym(env: Any, env_id: str) -> gymnasium.Env:
    """An env of the package gym as a Gymnasium env.

    Raises:
        EnvError: gym is not installed, or shimmy cannot convert the env.
        MissingExtraError: shimmy is not installed.
    """
    shimmy = require("shimmy", "shimmy")
    is_new = _takes_seed(env)
    wrapper = shimmy.GymV26CompatibilityV0 if is_new else shimmy.GymV21CompatibilityV0
    env = _without_checker(env)
    if not is_new and not hasattr(env, "seed"):
        env.seed = _no_seed  # shimmy calls it
    try:
        converted = wrapper(env=env)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(
            f"Env {env_id!r} is of the old gym package, which must be installed for its spaces to be understood. "
            "Install it with: pip install gym. Or derive the env from gymnasium.Env, with Gymnasium's spaces."
        ) from error
    except Exception as error:
        raise EnvError(
            f"Env {env_id!r} is of the old gym package, and shimmy could not convert it: {type(error).__name__}: "
            f"{error}. Derive it from gymnasium.Env, with Gymnasium's spaces."
        ) from error
    tell(env_id, f"shimmy's {wrapper.__name__}", is_new)
    return converted


@functools.cache
def tell(env_id: str, through: str, is_new: bool = False) -> None:
    """Log, once for each env, that and how it is converted."""
    ends = "" if is_new else " Its `done` counts as a true end unless info['TimeLimit.truncated'] says otherwise."
    logger.warning("Env %r is of the old Gym API and runs through %s.%s", env_id, through, ends)


def _from_gym(thing: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "gym" for cls in type(thing).__mro__)


def _takes_seed(env: Any) -> bool:
    try:
        parameters = inspect.signature(env.reset).parameters
    except (TypeError, ValueError):
        return False
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _without_checker(env: Any) -> Any:
    """Take out the checker that gym.make puts in: it does not run with NumPy 2, and the adapters check themselves."""
    if type(env).__name__ == "PassiveEnvChecker":
        return env.env
    outer = env
    while "env" in vars(outer):
        if type(outer.env).__name__ == "PassiveEnvChecker":
            outer.env = outer.env.env
        outer = outer.env
    return env


def _no_seed(seed: int | None = None) -> None:
    """The env has no random generator that could be seeded."""
