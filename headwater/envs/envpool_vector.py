"""EnvPoolVectorEnv: a pool of EnvPool's as a `gymnasium.vector.VectorEnv` that is seeded by `reset`, as all others are.

EnvPool itself takes its seeds when a pool is made, ignores those given to `reset`, and returns the rows of a masked
reset alone.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from headwater.envs.nested import replace_rows
from headwater.errors import EnvError, require

_SEED_LIMIT = 2**31  # EnvPool's seeds are int32


class EnvPoolVectorEnv(gymnasium.vector.VectorEnv):
    """N envs of EnvPool's, stepped by its threads.

    After an episode's end the row of that step is its last one, with the final observation; the next step resets the
    env, whatever the action. An end in the very step of the time limit counts as a cut: EnvPool does not tell them
    apart. A reset with seeds makes the pool anew, which makes runs repeat.

    Args:
        task_id: EnvPool's id, e.g. "Pong-v5".
        num_envs: N.
        seed: of the envs where `reset` gets none; None draws one.
        kwargs: settings of EnvPool and of the task, e.g. `num_threads`, `max_episode_steps`.

    Raises:
        EnvError: there is no such task, it does not take the settings, or has several players.
        MissingExtraError: EnvPool is not installed.

    Example:
        >>> env = EnvPoolVectorEnv("CartPole-v1", 2)
        >>> first, _ = env.reset(seed=[7, 8])
        >>> env.step(np.array([0, 1]))[1].tolist()
        [1.0, 1.0]
        >>> bool((env.reset(seed=[7, 8])[0] == first).all())
        True
        >>> env.close()
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}
    takes_seeds = True
    takes_reset_mask = True

    def __init__(self, task_id: str, num_envs: int, seed: int | None = None, **kwargs: Any) -> None:
        self._envpool = require("envpool", "envpool")
        self.task_id = task_id
        self.num_envs = num_envs
        self.render_mode = kwargs.get("render_mode")
        self._settings = {**kwargs, "num_envs": num_envs}
        self._check()
        try:
            pool_spec = self._envpool.make_spec(task_id, **self._settings)
            with warnings.catch_warnings():  # of bounds that float32 cannot hold
                warnings.simplefilter("ignore", UserWarning)
                self.single_observation_space = pool_spec.gymnasium_observation_space
                self.single_action_space = pool_spec.gymnasium_action_space
        except Exception as error:
            raise EnvError(
                f"Env 'envpool:{task_id}' could not be made with the settings {self._settings!r}: "
                f"{type(error).__name__}: {error}. Mend env_config, which holds these settings."
            ) from error
        if pool_spec.config.max_num_players > 1:
            raise EnvError(
                f"Env 'envpool:{task_id}' has {pool_spec.config.max_num_players} players. Pools of one player only can "
                "be used; write a MultiAgentEnv around it."
            )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seed = seed
        self._pool: Any = None
        self._obs: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes, in all envs or in those of `options["reset_mask"]` (bool `[N]`).

        Args:
            seed: one for each env, or one from which theirs follow; None goes on with the random generators there are.
        """
        if self._pool is None or seed is not None:
            self._make(self._seed if seed is None else seed)
        mask = (options or {}).get("reset_mask")
        if mask is None or self._obs is None:
            self._obs, infos = self._pool.reset()
        elif np.any(mask):
            rows, infos = self._pool.reset(np.flatnonzero(mask).astype(np.int32))
            self._obs = replace_rows(self._obs, np.flatnonzero(mask), rows)
        else:
            infos = {}
        return self._obs, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all envs; those whose episode ended in the last step are reset instead."""
        if self._pool is None:
            raise EnvError(f"Env 'envpool:{self.task_id}': step() was called before reset().")
        result = self._pool.step(actions)
        self._obs = result[0]
        return result

    def render(self) -> Any:
        """Frames `[N, height, width, 3]`, where `render_mode` is "rgb_array"."""
        return None if self._pool is None or self.render_mode is None else self._pool.render(np.arange(self.num_envs))

    def close(self, **kwargs: Any) -> None:
        """End EnvPool's threads."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _make(self, seed: int | Sequence[int | None] | None) -> None:
        """Make the pool, in which every env has its own seed."""
        if seed is None or isinstance(seed, int | np.integer):
            seeds = np.random.SeedSequence(None if seed is None else int(seed)).generate_state(self.num_envs).tolist()
        else:
            drawn = np.random.SeedSequence().generate_state(self.num_envs).tolist()
            seeds = [drawn[i] if one is None else int(one) for i, one in enumerate(seed)]
        self.close()
        self._pool = self._envpool.make_gymnasium(
            self.task_id, **self._settings, seed=[one % _SEED_LIMIT for one in seeds]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self._pool.observation_space  # noqa: B018  (it is made here, and kept)

    def _check(self) -> None:
        known = self._envpool.list_all_envs()
        if self.task_id not in known:
            near = difflib.get_close_matches(self.task_id, known, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise EnvError(
                f"There is no env 'envpool:{self.task_id}' in EnvPool.{hint} envpool.list_all_envs() names them."
            )
        batch_size = self._settings.get("batch_size", self.num_envs)
        if batch_size not in (0, self.num_envs):
            raise EnvError(
                f"Env 'envpool:{self.task_id}': batch_size={batch_size} returns some of the {self.num_envs} envs at a "
                "time, but a vector env returns all. Leave batch_size out."
            )
