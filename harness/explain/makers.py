"""Determines which loader worker made each batch, and how many batches are in flight at once.

A DataLoader sends requests to its workers in turn. A worker without items left (of an iterable dataset that divides its
items among workers) gets no more requests, so that the others make its batches. Each epoch starts a new round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import Int
from harness.explain.policy import UNEQUAL_WORKER_FACTOR, WORKER_ROUNDS_MIN
from harness.explain.spans import NO_WORKER


class Makers(NamedTuple):
    """``worker``: maker of each batch in order of receipt, (batches,). ``workers``: number of the loader's workers."""

    worker: Int
    workers: int

    @property
    def is_round_robin(self) -> bool:
        """True if all workers made batches, one after the other."""
        if not self.workers or not len(self.worker):
            return True
        return np.array_equal(self.worker, (self.worker[0] + np.arange(len(self.worker))) % self.workers)

    @property
    def idle(self) -> int:
        """Number of workers that made no batch; 0 where too few batches were seen, and without workers."""
        if not self.workers or len(self.worker) < WORKER_ROUNDS_MIN * self.workers:
            return 0
        return self.workers - len(np.unique(self.worker))

    @property
    def busy(self) -> int:
        """Number of workers that made batches."""
        return self.workers - self.idle

    @property
    def unequal(self) -> bool:
        """True if one worker made so many batches that others made too few."""
        if not self.workers or len(self.worker) < WORKER_ROUNDS_MIN * self.workers:
            return False
        return bool(np.bincount(self.worker).max() * self.workers > UNEQUAL_WORKER_FACTOR * len(self.worker))

    def in_flight(self, prefetch: int) -> int:
        """Return the number of batches in flight at once.

        A loader first sends each worker ``prefetch`` requests. A worker without items answers the first one, which the
        loader sends to another worker instead. The other requests to it are lost.
        """
        return self.workers * prefetch - self.idle * (prefetch - 1)

    def before(self) -> Int:
        """Return the index of the same worker's previous batch for each batch; -1 for the first batch of a worker."""
        order = np.argsort(self.worker, kind="stable")
        found = np.full(len(order), -1)
        same = self.worker[order[1:]] == self.worker[order[:-1]]
        found[order[1:][same]] = order[:-1][same]
        return found


def round_robin(count: int, workers: int) -> Makers:
    """Return the makers of ``count`` batches that workers make in turn, starting with the first worker."""
    return Makers(np.arange(count) % max(1, workers), workers)


def makers_of(recorded: NDArray[np.int16], count: int, workers: int) -> Makers:
    """Return the makers of ``count`` batches of a loader with ``workers``; in turn where they were not recorded."""
    worker = np.full(count, NO_WORKER, dtype=np.int64)
    worker[: len(recorded)] = recorded[:count]
    worker[worker >= workers] = NO_WORKER
    known = np.flatnonzero(worker != NO_WORKER)
    places = np.arange(count)
    if not len(known):
        return round_robin(count, workers)
    nearest = known[np.maximum(0, np.searchsorted(known, places, side="right") - 1)]
    return Makers((worker[nearest] + places - nearest) % workers, workers)
