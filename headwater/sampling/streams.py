"""EnvStreams: the random numbers that actions are drawn with, one stream per env.

An env's noise depends on the run's seed and the env's index in the whole run only, not on how many envs share its
worker: four envs in one worker draw the same actions as twice two in two workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 256  # draws per env made at once: the generators are touched once in so many steps


class EnvStreams:
    """A random generator whose rows belong to envs.

    Counter-based (Philox, Salmon et al. 2011): a block is a pure function of seed, env, kind and block number, so that
    the state to save is four integers.

    Args:
        key: integers that name the run and the purpose, e.g. `(seed, 0)`.
        env_indices: [N] each env's index in the whole run.

    Example:
        >>> streams = EnvStreams((7, 0), [0, 1, 2])
        >>> streams.uniform((3,)).shape, streams.normal((3, 2)).shape
        ((3,), (3, 2))
    """

    def __init__(self, key: Sequence[int], env_indices: Sequence[int]) -> None:
        self._keys = [np.random.SeedSequence([*key, i]).generate_state(2, np.uint64) for i in env_indices]
        self._uniform = _Blocks(self._keys, 0, lambda generator, n: generator.random(n, dtype=np.float32))
        self._normal = _Blocks(self._keys, 1, lambda generator, n: generator.standard_normal(n, dtype=np.float32))

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`[N, ...]` numbers in [0, 1); row i comes from env i's stream. Valid until the next call."""
        return self._uniform.take(shape)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`[N, ...]` standard normal numbers; row i comes from env i's stream. Valid until the next call."""
        return self._normal.take(shape)

    def get_state(self) -> dict[str, Any]:
        """Where each kind of stream stands: JSON integers."""
        return {"uniform": self._uniform.position, "normal": self._normal.position}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a `get_state()` of streams with the same key."""
        self._uniform.seek(state["uniform"])
        self._normal.seek(state["normal"])


class _Blocks:
    """One kind of number for all envs, made `BLOCK` at a time: `[BLOCK, N]`, so that a step's draw is one row."""

    def __init__(
        self, keys: Sequence[NDArray], kind: int, draw: Callable[[np.random.Generator, int], NDArray[np.float32]]
    ) -> None:
        self._keys, self._kind, self._draw = keys, kind, draw
        self._block = -1
        self._cursor = BLOCK
        self._numbers = np.empty((BLOCK, len(keys)), np.float32)

    @property
    def position(self) -> list[int]:
        return [self._block, self._cursor]

    def seek(self, position: Sequence[int]) -> None:
        block, cursor = (int(p) for p in position)
        if block >= 0:
            self._fill(block)
        self._block, self._cursor = block, cursor

    def take(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) == 1:
            if self._cursor >= BLOCK:
                self._next()
            row = self._numbers[self._cursor]
            self._cursor += 1
            if shape[0] != len(row):
                raise ValueError(f"these streams belong to {len(row)} envs; numbers for {shape[0]} rows were asked for")
            return row
        numbers = np.empty((shape[0], int(np.prod(shape[1:], dtype=int))), np.float32)
        for column in range(numbers.shape[1]):
            numbers[:, column] = self.take(shape[:1])
        return numbers.reshape(shape)

    def _next(self) -> None:
        self._fill(self._block + 1)
        self._block += 1
        self._cursor = 0

    def _fill(self, block: int) -> None:
        for column, key in enumerate(self._keys):
            bits = np.random.Philox(key=key, counter=[0, self._kind, block, 0])
            self._numbers[:, column] = self._draw(np.random.Generator(bits), BLOCK)
