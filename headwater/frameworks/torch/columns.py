"""A train batch's columns and their rows in the order of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_KINDS = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}


class Columns:
    """Gathers rows, as NumPy arrays on CPU and as tensors on other devices.

    Floats become float32 and integers int64, but uint8 (images) stays what it is. On CPU rows go from the batch's own
    arrays into memory that is kept from epoch to epoch and from batch to batch; other devices get each column once per
    batch, and gather there.

    Args:
        device: Where the columns are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batch: Mapping[str, Any] = {}
        self._sources: dict[str, Any] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._order: tuple[np.ndarray, Tensor] | None = None
        self.gather = self._gather_here if device.type == "cpu" else self._gather_there
        self.names: frozenset[str] = frozenset()

    def load(self, batch: Mapping[str, Any]) -> int:
        """Take a batch; returns its rows B. Columns are converted when they are first asked for."""
        self._batch, self._sources, self._order = batch, {}, None
        columns = {name: np.asarray(column) for name, column in batch.items()}
        self.names = frozenset(name for name, column in columns.items() if column.dtype.kind in _KINDS and column.ndim)
        return len(columns["obs"])

    def _gather_here(self, name: str, order: np.ndarray | None) -> np.ndarray:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _converted(self._batch[name])
        kept = self._kept.get(name)
        if kept is None or kept.shape != source.shape or kept.dtype != source.dtype:
            kept = self._kept[name] = np.empty(source.shape, source.dtype)
        if order is None:
            np.copyto(kept, source)
        else:
            # "clip" spares a check and a copy; a permutation needs neither.
            np.take(source, order, 0, out=kept, mode="clip")
        return kept

    def _gather_there(self, name: str, order: np.ndarray | None) -> Tensor:
        source = self._sources.get(name)
        if source is None:
            array = np.array(_converted(self._batch[name]))
            source = self._sources[name] = torch.from_numpy(array).to(self._device)
        if order is None:
            return source
        if self._order is None or self._order[0] is not order:
            self._order = (order, torch.from_numpy(order).to(self._device))
        return source.index_select(0, self._order[1])


class Tensors(dict[str, Tensor]):
    """A minibatch whose columns are tensors: views of its arrays, each made when it is first read."""

    __slots__ = ("_minibatch",)

    def __init__(self, minibatch: Mapping[str, Any]) -> None:
        super().__init__()
        self._minibatch = minibatch

    def __missing__(self, name: str) -> Tensor:
        column = self._minibatch[name]
        tensor = self[name] = torch.from_numpy(column) if isinstance(column, np.ndarray) else column
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._minibatch

    def get(self, name: str, default: Any = None) -> Any:
        """The column, or `default` where there is none of this name."""
        return self[name] if name in self._minibatch else default


def _converted(column: Any) -> np.ndarray:
    array = np.asarray(column)
    wanted = array.dtype if array.dtype == np.uint8 else _KINDS[array.dtype.kind]
    return np.ascontiguousarray(array, wanted)
