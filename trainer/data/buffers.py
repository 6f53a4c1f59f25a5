"""Reuses memory for batches, so that a fast data path neither allocates nor faults pages for each batch.

A tensor holds its numpy array until its last alias is gone, so the array's count of references tells if it may be
written. Code that starts an asynchronous copy must hold the batch until it is done (``trainer.data.batch``).
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import from_numpy

# Further buffers are not reused: the one that was held longest is left to its tensors.
MOST_KEPT = 8


class BatchBuffer:
    """Memory of one batch: token ids, labels and, for padded rows, a mask; int64, (rows, length) each."""

    __slots__ = ("_counts", "_others", "all", "flat_ids", "flat_labels", "ids", "labels", "mask")

    def __init__(
        self,
        ids: NDArray[np.int64],
        labels: NDArray[np.int64],
        mask: NDArray[np.int64] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        """Keep arrays (rows, length). ``mask``: None for packed rows. ``positions``: in shared memory, else None."""
        self.ids, self.labels, self.mask = ids, labels, mask
        self.all = (ids, labels, mask, positions)
        self.flat_ids, self.flat_labels = ids.reshape(-1), labels.reshape(-1)
        self._others = [array for array in (mask, positions) if array is not None]
        self._counts: list[int] = []

    def count(self) -> None:
        """Record the reference counts of the arrays while nothing else holds them, for :attr:`is_free`."""
        counts = [getrefcount(array) for array in self._others]
        self._counts = [getrefcount(self.ids), getrefcount(self.labels), *counts]

    @property
    def is_free(self) -> bool:
        """True if no tensor and no array made of this buffer is left, so that its memory may be written again."""
        # No loop over the arrays, because this runs several times per batch.
        counts = self._counts
        if getrefcount(self.ids) != counts[0] or getrefcount(self.labels) != counts[1]:
            return False
        return not self._others or [getrefcount(array) for array in self._others] == counts[2:]

    def tensors(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return ids, labels and mask of the first ``rows`` rows. They keep the buffer held as long as they live."""
        ids, labels, mask = self.ids, self.labels, self.mask
        if rows < len(ids):
            ids, labels, mask = ids[:rows], labels[:rows], None if mask is None else mask[:rows]
        return from_numpy(ids), from_numpy(labels), None if mask is None else from_numpy(mask)


class Buffers(Protocol):
    """Source of memory for the batches of a data path. It may be this process's own or shared with another process."""

    def take(self) -> BatchBuffer:
        """Return a buffer that nothing holds any more, or a new one."""


class BatchBuffers:
    """Reusable buffers in this process's memory. A buffer is allocated when none is free."""

    def __init__(self, rows: int, length: int, *, mask: bool = False, pinned: bool = False) -> None:
        """Set up an empty pool. ``mask``: with attention masks; ``pinned``: in page-locked memory (CUDA)."""
        self._shape, self._mask, self.pinned = (rows, length), mask, pinned
        self._kept: list[BatchBuffer] = []

    def take(self) -> BatchBuffer:
        kept = self._kept
        for place, buffer in enumerate(kept):
            if buffer.is_free:
                if place:  # Keep the list in order of use: the buffer held longest is last, and dropped first.
                    kept.insert(0, kept.pop(place))
                return buffer
        if len(kept) == MOST_KEPT:
            kept.pop()
        buffer = BatchBuffer(self._array(), self._array(), self._array() if self._mask else None)
        buffer.count()
        kept.insert(0, buffer)
        return buffer

    def _array(self) -> NDArray[np.int64]:
        if not self.pinned:
            return np.empty(self._shape, dtype=np.int64)
        array: NDArray[Any] = torch.empty(self._shape, dtype=torch.int64, pin_memory=True).numpy()
        return array
