"""Lends memory for batches and takes it back, so that a fast data path neither allocates nor faults pages for each one.

A tensor made of a numpy array holds the array until its last alias is gone: a view, a copy of the ``Batch``, what
autograd saved, what a user kept, what is still queued for a worker's parent. So Python's count of references to the
array says whether its memory may be written again. Nothing is ever waited for: where all buffers are held, there is one
more. Whoever starts a copy that outlasts its call keeps the batch until that is done (``trainer.compute.in_flight``).
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import from_numpy

# Beyond these the longest held one is forgotten: its memory lives as long as its tensors, and is not used again.
MOST_KEPT = 8


class BatchBuffer:
    """The memory of one batch: token ids, labels and, where rows are padded, a mask; int64, (rows, length) each."""

    __slots__ = ("_counts", "_others", "all", "flat_ids", "flat_labels", "ids", "labels", "mask")

    def __init__(
        self,
        ids: NDArray[np.int64],
        labels: NDArray[np.int64],
        mask: NDArray[np.int64] | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        """``positions``: only where a batch comes from another process, that of ``Batch.position_ids``."""
        self.ids, self.labels, self.mask = ids, labels, mask
        self.all = (ids, labels, mask, positions)
        self.flat_ids, self.flat_labels = ids.reshape(-1), labels.reshape(-1)
        self._others = [one for one in (mask, positions) if one is not None]
        self._counts: list[int] = []

    def count(self) -> None:
        """Take note of how many references there are while nobody holds it. Its maker holds none when calling this."""
        others = [getrefcount(one) for one in self._others]
        self._counts = [getrefcount(self.ids), getrefcount(self.labels), *others]

    @property
    def is_free(self) -> bool:
        """Whether no tensor and no array made of it is left."""
        # Not a loop over the arrays: this is asked several times for each batch.
        counts = self._counts
        if getrefcount(self.ids) != counts[0] or getrefcount(self.labels) != counts[1]:
            return False
        return not self._others or [getrefcount(one) for one in self._others] == counts[2:]

    def tensors(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ids, labels and mask of its first ``rows`` rows, which hold it."""
        ids, labels, mask = self.ids, self.labels, self.mask
        if rows < len(ids):
            ids, labels, mask = ids[:rows], labels[:rows], None if mask is None else mask[:rows]
        return from_numpy(ids), from_numpy(labels), None if mask is None else from_numpy(mask)


class Buffers(Protocol):
    """Where a data path finds the memory of its next batch."""

    def take(self) -> BatchBuffer:
        """A buffer that nobody else holds."""


class BatchBuffers:
    """Buffers in this process's memory, used again and again."""

    def __init__(self, rows: int, length: int, *, mask: bool = False, pinned: bool = False) -> None:
        """``pinned``: page-locked, so that a copy to the device can be asynchronous. CUDA must be there."""
        self._shape, self._mask, self.pinned = (rows, length), mask, pinned
        self._kept: list[BatchBuffer] = []

    def take(self) -> BatchBuffer:
        kept = self._kept
        for place, buffer in enumerate(kept):
            if buffer.is_free:
                if place:  # what is held longest comes to the end of the list, and is forgotten first
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
