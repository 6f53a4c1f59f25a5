"""Says which loader worker made each batch, and how many batches are on their way at once.

A DataLoader asks its workers in turn. A worker that has no items left (of an iterable dataset that shares itself out)
is asked no more, so that the others make its batches. An epoch's end begins the turns anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.intervals import Int
from harness.analysis.spans import NO_WORKER

# Requests to every worker, at least. A worker that makes batches answers one of them.
SEEN_ROUNDS = 2
UNEQUAL = 1.5  # times an equal share of the batches: a worker that made more of them made some of the others'


class Makers(NamedTuple):
    """``worker``: of each batch in order of receipt, (batches,). ``workers``: how many the loader has."""

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
        if not self.workers or len(self.worker) < SEEN_ROUNDS * self.workers:
            return 0
        return self.workers - len(np.unique(self.worker))

    @property
    def busy(self) -> int:
        """Number of workers that made batches."""
        return self.workers - self.idle

    @property
    def unequal(self) -> bool:
        """True if one worker made so many batches that others made too few."""
        if not self.workers or len(self.worker) < SEEN_ROUNDS * self.workers:
            return False
        return bool(np.bincount(self.worker).max() * self.workers > UNEQUAL * len(self.worker))

    def in_flight(self, prefetch: int) -> int:
        """Batches that are on their way at once.

        A loader asks each worker for ``prefetch`` batches at first. One without items answers the first request, which
        another worker gets in its place. It never answers the other ones, which nobody gets.
        """
        return self.workers * prefetch - self.idle * (prefetch - 1)

    def before(self) -> Int:
        """Return for each batch the one that the same worker made before, -1 where there is none."""
        order = np.argsort(self.worker, kind="stable")
        found = np.full(len(order), -1)
        same = self.worker[order[1:]] == self.worker[order[:-1]]
        found[order[1:][same]] = order[:-1][same]
        return found


def round_robin(count: int, workers: int) -> Makers:
    """Workers that make ``count`` batches in turn, the first worker the first one."""
    return Makers(np.arange(count) % max(1, workers), workers)


def makers_of(recorded: NDArray[np.int16], count: int, workers: int) -> Makers:
    """The makers of ``count`` batches of a loader with ``workers``, as far as they were recorded; else in turn."""
    worker = np.full(count, NO_WORKER, dtype=np.int64)
    worker[: len(recorded)] = recorded[:count]
    worker[worker >= workers] = NO_WORKER
    known = np.flatnonzero(worker != NO_WORKER)
    places = np.arange(count)
    if not len(known):
        return round_robin(count, workers)
    nearest = known[np.maximum(0, np.searchsorted(known, places, side="right") - 1)]
    return Makers((worker[nearest] + places - nearest) % workers, workers)
