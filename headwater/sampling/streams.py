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


class LaneStreams:
    """Streams for rows that come and go: each lane has its own, of which it draws only when its turn comes.

    A lane with the key of an env draws the same numbers as `EnvStreams` gives that env.

    Example:
        >>> streams = LaneStreams()
        >>> lanes = [streams.add((7, 0, i)) for i in range(3)]
        >>> streams.lanes = np.array([2, 0])
        >>> bool((streams.uniform((2,)) == EnvStreams((7, 0), [0, 1, 2]).uniform((3,))[[2, 0]]).all())
        True
    """

    def __init__(self) -> None:
        self.lanes = np.empty(0, np.int64)  # those whose turn it is: row i of what is drawn is for lanes[i]
        self._uniform = _LaneBlocks(0, lambda generator, n: generator.random(n, dtype=np.float32))
        self._normal = _LaneBlocks(1, lambda generator, n: generator.standard_normal(n, dtype=np.float32))

    def add(self, key: Sequence[int]) -> int:
        """A new lane, named by integers; its number."""
        words = np.random.SeedSequence(list(key)).generate_state(2, np.uint64)
        self._uniform.add(words)
        return self._normal.add(words)

    def keep(self, lanes: NDArray[np.int64]) -> None:
        """Forget all lanes but these, which are numbered anew in this order."""
        self._uniform.keep(lanes)
        self._normal.keep(lanes)

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`[N, ...]` numbers in [0, 1); row i comes from the stream of `lanes[i]`."""
        return self._uniform.take(self.lanes, shape)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`[N, ...]` standard normal numbers; row i comes from the stream of `lanes[i]`."""
        return self._normal.take(self.lanes, shape)


class _LaneBlocks:
    """One kind of number: `[lanes, BLOCK]`, with a cursor for each lane."""

    def __init__(self, kind: int, draw: Callable[[np.random.Generator, int], NDArray[np.float32]]) -> None:
        self._kind, self._draw = kind, draw
        self._keys: list[NDArray] = []
        self._blocks: list[int] = []
        self._cursors = np.empty(0, np.int64)
        self._numbers = np.empty((0, BLOCK), np.float32)

    def add(self, key: NDArray) -> int:
        self._keys.append(key)
        self._blocks.append(-1)
        self._cursors = np.append(self._cursors, BLOCK)
        if len(self._keys) > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.empty((len(self._numbers) + 8, BLOCK), np.float32)])
        return len(self._keys) - 1

    def keep(self, lanes: NDArray[np.int64]) -> None:
        self._keys = [self._keys[lane] for lane in lanes]
        self._blocks = [self._blocks[lane] for lane in lanes]
        self._cursors, self._numbers = self._cursors[lanes], self._numbers[lanes]

    def take(self, lanes: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) > 1:
            columns = [self.take(lanes, shape[:1]) for _ in range(int(np.prod(shape[1:], dtype=int)))]
            return np.stack(columns, axis=1).reshape(shape) if columns else np.empty(shape, np.float32)
        cursors = self._cursors[lanes]
        if cursors.max(initial=0) >= BLOCK:
            for lane in lanes[cursors >= BLOCK].tolist():
                self._blocks[lane] += 1
                bits = np.random.Philox(key=self._keys[lane], counter=[0, self._kind, self._blocks[lane], 0])
                self._numbers[lane] = self._draw(np.random.Generator(bits), BLOCK)
                self._cursors[lane] = 0
            cursors = self._cursors[lanes]
        self._cursors[lanes] = cursors + 1
        return self._numbers[lanes, cursors]
