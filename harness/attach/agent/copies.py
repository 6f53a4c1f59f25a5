"""Compares the first batches of a loader's workers: equal ones show that each worker serves all of the dataset.

Only a dataset without an index can do that (torch's IterableDataset). A few batches of each worker are hashed, of each
tensor in the host's memory the first bytes. A batch is only read.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from _harness_agent import record
from torch import Tensor

BATCHES = 2  # hashed batches per worker; a single batch may be equal by chance
MOST_COMPARED = 64  # batches of a loader that are compared, enough for each worker to have made some
MOST_BYTES = 1 << 16  # bytes of a tensor that are hashed
DIGEST_BYTES = 16


class FirstBatches:
    """The hashes of one loader's first batches, by worker."""

    __slots__ = ("by_worker", "empty", "ended", "left", "written")

    def __init__(self) -> None:
        self.by_worker: dict[str, list[bytes]] = {}
        self.left = MOST_COMPARED
        self.written = 0
        self.ended = 0  # workers that have no items left
        self.empty = 0  # workers that had none before their first batch

    def add(self, worker: str, tensors: Iterable[Any]) -> None:
        """Compare a batch of ``worker``; note how many workers made the same first batches, once that is known."""
        if not self.left:
            return
        self.left -= 1
        found = self.by_worker.setdefault(worker, [])
        if len(found) >= BATCHES:
            return
        found.append(_digest(tensors))
        whole = [tuple(one) for one in self.by_worker.values() if len(one) == BATCHES]
        # If all batches are equal, equal batches of two workers prove nothing.
        known = [one for one in whole if len(set(one)) == BATCHES and b"" not in one]
        if len(known) < 2:
            return
        alike = max(Counter(known).values())
        if alike > self.written:
            self.written = alike
            record.note("copies", alike)


def _digest(tensors: Iterable[Any]) -> bytes:
    """Return a hash of the first bytes of each tensor, empty where none can be read."""
    made = hashlib.blake2b(digest_size=DIGEST_BYTES)
    some = False
    for one in tensors:
        if type(one) is not Tensor or one.device.type != "cpu" or not one.is_contiguous():
            continue
        size = min(one.numel() * one.element_size(), MOST_BYTES)
        if size:
            made.update(repr(tuple(one.shape)).encode())
            made.update(ctypes.string_at(one.data_ptr(), size))
            some = True
    return made.digest() if some else b""
