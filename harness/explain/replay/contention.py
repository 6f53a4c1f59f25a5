"""Estimates how much longer CPU work takes when others use the same cores (a mean-field estimate).

The main thread with its ``threads`` (1 beside an asynchronous device) wants cores for a share m of the time. Each of W
loader workers wants one for a share a of the time, independently of the others. C cores are shared fairly among the
threads that want one at a moment, so each of n threads runs at min(1, C / n):

    stretch of the main thread  = E[max(1, (threads + k) / C)],               k ~ Binomial(W, a)
    stretch of a worker         = E[max(1, (threads x j + 1 + k) / C)],       j ~ Bernoulli(m), k ~ Binomial(W - 1, a)

A share is the stretched CPU time over the time of a step, so the estimate is a fixed point. Only CPU time stretches: a
thread that sleeps or waits for a disk needs no core.

The estimate ignores several effects. The phases of main thread and workers are not independent: while the main thread
waits for a worker, the worker has the cores to itself. Threads that meet at a barrier lose more than their fair share.
Caches, memory bandwidth, hardware threads, the GIL and other processes are ignored too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STRETCH_ROUNDS = 100
STRETCH_CLOSE = 1e-6


@dataclass(frozen=True)
class Demand:
    """CPU time wanted per step in ns, when every thread has a core of its own."""

    main_ns: float  # of the main thread; its helpers want as much each
    workers_ns: float  # of all loader workers together
    threads: int
    workers: int
    cores: int

    @property
    def scarce(self) -> bool:
        """Whether more threads than cores can be runnable at once."""
        return self.threads + self.workers > self.cores


@dataclass(frozen=True)
class Stretch:
    """How many times as long CPU work takes."""

    main: float = 1.0
    worker: float = 1.0


ALONE = Stretch()


def stretch(demand: Demand, step_ns: float) -> Stretch:
    """The stretch at which demand and step time agree; 1 where there is a core for everyone."""
    found = Stretch()
    if not demand.scarce or step_ns <= 0:
        return found
    most = max(1, demand.workers)
    for _ in range(STRETCH_ROUNDS):
        main_share = min(1.0, demand.main_ns * found.main / step_ns)
        worker_share = min(1.0, demand.workers_ns * found.worker / step_ns / most)
        following = Stretch(
            _expected(demand.threads, demand.workers, worker_share, demand.cores),
            main_share * _expected(demand.threads + 1, demand.workers - 1, worker_share, demand.cores)
            + (1 - main_share) * _expected(1, demand.workers - 1, worker_share, demand.cores)
            if demand.workers
            else 1.0,
        )
        close = abs(following.main - found.main) + abs(following.worker - found.worker) < STRETCH_CLOSE
        found = following
        if close:
            break
    return found


def stretched(wall: Array, cpu: Array, stretch: tuple[float, float]) -> Array:
    """Return ``wall`` with its CPU part stretched by the second factor instead of the first. The rest stays."""
    then, now = stretch
    return wall + np.minimum(wall, cpu * then) * (now / then - 1)


def _expected(wanting: int, others: int, share: float, cores: int) -> float:
    """E[max(1, (wanting + k) / cores)] for k ~ Binomial(others, share)."""
    others = max(0, others)
    return sum(
        math.comb(others, k) * share**k * (1 - share) ** (others - k) * max(1.0, (wanting + k) / cores)
        for k in range(others + 1)
    )
