"""A train batch's columns as tensors, and their rows in the order of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwater.policy.sgd import learnable


class Columns:
    """Gathers rows into memory that is kept from epoch to epoch and from batch to batch.

    On CPU rows go from the batch's own arrays straight into the kept memory; other devices get each column once per
    batch, and gather there.

    Args:
        device: Where the tensors are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._batch: Mapping[str, NDArray[Any]] = {}
        self._sources: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._order: tuple[NDArray[np.int64], Tensor] | None = None
        self.names: frozenset[str] = frozenset()

    def load(self, batch: Mapping[str, NDArray[Any]]) -> int:
        """Take the numeric columns of a batch; returns its rows. They are converted when they are first asked for."""
        self._batch, self._sources, self._order = batch, {}, None
        self.names = frozenset(batch)
        return len(batch["obs"])

    def gather(self, name: str, order: NDArray[np.int64]) -> Tensor:
        """The column with its rows in the given order."""
        return self._gather_here(name, order) if self._on_cpu else self._gather_there(name, order)

    def _gather_here(self, name: str, order: NDArray[np.int64]) -> Tensor:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = learnable(self._batch[name])
        kept = self._kept.get(name)
        if kept is None or kept[0].shape != source.shape or kept[0].dtype != source.dtype:
            array = np.empty(source.shape, source.dtype)
            kept = self._kept[name] = (array, torch.from_numpy(array))
        # "clip" spares a check and a copy; a permutation needs neither.
        np.take(source, order, 0, out=kept[0], mode="clip")
        return kept[1]

    def _gather_there(self, name: str, order: NDArray[np.int64]) -> Tensor:
        source = self._sources.get(name)
        if source is None:
            array = np.array(learnable(self._batch[name]))
            source = self._sources[name] = torch.from_numpy(array).to(self._device)
        if self._order is None or self._order[0] is not order:
            self._order = (order, torch.from_numpy(order).to(self._device))
        return source.index_select(0, self._order[1])
