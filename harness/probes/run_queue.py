"""Run-queue delay: how long threads were runnable but had no core (Linux schedstat).

The kernel keeps it per thread in ``/proc/self/task/TID/schedstat``, second field, nanoseconds
(Documentation/scheduler/sched-stats.rst). Reading it costs about a microsecond per thread.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

MOST_COMPUTE_THREADS = 16  # a reading per thread and step: beyond this the probe would cost what it measures


class RunQueue:
    """Cumulative delay of the main thread and of the native threads that compute for it (OpenMP and its like).

    On a CPU device the main thread waits at a barrier for the slowest compute thread, so a core taken from that one
    stretches the step as much as one taken from the main thread: per reading the most delayed thread counts.
    That is a lower bound when several were delayed one after the other.
    """

    def __init__(self, compute_threads: bool) -> None:
        self._main = self._open(threading.get_native_id())
        self._compute_threads = compute_threads
        self._others: list[int] = []
        self._known: set[int] = set()
        self._last: dict[int, int] = {}
        self._total = 0

    @property
    def available(self) -> bool:
        """Whether this kernel tells (schedstat is a build option)."""
        return self._main is not None

    def find_threads(self) -> None:
        """Look for compute threads once more (they start at the first parallel region)."""
        if self._main is None or not self._compute_threads:
            return
        python_threads = {thread.native_id for thread in threading.enumerate()}
        for task in Path("/proc/self/task").iterdir():
            tid = int(task.name)
            if tid in python_threads or tid in self._known or len(self._others) >= MOST_COMPUTE_THREADS:
                continue
            descriptor = self._open(tid)
            if descriptor is not None:
                self._known.add(tid)
                self._others.append(descriptor)
                self._last[descriptor] = self._read(descriptor)

    def delay_ns(self) -> int | None:
        """Delay since construction: the sum over readings of the most delayed thread's; None where not available."""
        if self._main is None:
            return None
        most = 0
        for descriptor in (self._main, *self._others):
            delay = self._read(descriptor)
            most = max(most, delay - self._last.get(descriptor, delay))
            self._last[descriptor] = delay
        self._total += most
        return self._total

    @staticmethod
    def _open(tid: int) -> int | None:
        try:
            return os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    def _read(self, descriptor: int) -> int:
        try:
            return int(os.pread(descriptor, 96, 0).split()[1])
        except OSError:  # the thread has ended
            return self._last.get(descriptor, 0)
