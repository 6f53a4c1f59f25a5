"""Read schedstat (run-queue delay: a thread was runnable but had no core) and the CPU time of other threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import process_time_ns, thread_time_ns

MOST_COMPUTE_THREADS = 16  # each thread costs a reading per step, so more would distort the measurement
# Ratio of waiting to running time above which a thread is not a compute thread: no step waits for a thread that wakes
# up only now and then.
IDLE_WAITS = 20
STAGES = frozenset({"tokenize"})  # stages that may use other threads, while nothing else in this process runs
SchedstatReading = tuple[bytes, ...]  # kernel's line of each thread; b"" if the thread has ended


class RunQueue:
    """Reader of the run-queue delay of the main thread and, on a CPU, of the compute threads that it waits for."""

    def __init__(self, compute_threads: bool) -> None:
        main = self._open(threading.get_native_id())
        self._compute_threads = compute_threads
        self._descriptors = [] if main is None else [main]
        self._known: set[int] = set()

    @property
    def available(self) -> bool:
        """True if this kernel records run-queue delay (schedstat is a build option)."""
        return bool(self._descriptors)

    def find_threads(self) -> None:
        """Start to read native compute threads, which start at the first parallel region."""
        if not self._descriptors or not self._compute_threads:
            return
        python_threads = {thread.native_id for thread in threading.enumerate()}
        for task in Path("/proc/self/task").iterdir():
            tid = int(task.name)
            if tid in python_threads or tid in self._known or len(self._known) >= MOST_COMPUTE_THREADS:
                continue
            descriptor = self._open(tid)
            if descriptor is not None:
                self._known.add(tid)
                self._descriptors.append(descriptor)

    def read(self) -> SchedstatReading:
        """Return the schedstat line of each thread, unparsed to save time; b"" for a thread that has ended."""
        try:
            return tuple([os.pread(descriptor, 96, 0) for descriptor in self._descriptors])
        except OSError:
            return tuple(map(self._line, self._descriptors))

    @staticmethod
    def _open(tid: int) -> int | None:
        try:
            return os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    @staticmethod
    def _line(descriptor: int) -> bytes:
        try:
            return os.pread(descriptor, 96, 0)
        except OSError:  # the thread has ended
            return b""


def most_delayed_ns(before: SchedstatReading, after: SchedstatReading) -> int | None:
    """Return how long (ns) the most delayed thread was runnable without a core; None if a reading is empty. A lower
    bound. Threads that hardly run (:data:`IDLE_WAITS`) do not count, but the main one does.
    """
    if not before or not after:
        return None
    # A thread found between the readings is only in the second one, at its end.
    pairs = zip(before, after, strict=False)
    delays = [_delay_ns(then, now, place > 0) for place, (then, now) in enumerate(pairs) if then and now]
    return max(delays, default=0)


def _delay_ns(before: bytes, after: bytes, must_compute: bool) -> int:
    waited_before_ns = int(before.split()[1])
    ran_ns, waited_ns, *_ = map(int, after.split())
    return 0 if must_compute and waited_ns > IDLE_WAITS * ran_ns else waited_ns - waited_before_ns


def other_cpu_ns() -> int:
    """Return the CPU time in ns of all threads of this process except the calling one, since the process began."""
    return process_time_ns() - thread_time_ns()


def other_cpu_since_ns(begun_ns: int) -> int:
    """Return by how many ns :func:`other_cpu_ns` has grown since it returned ``begun_ns``; at least 0."""
    return max(0, other_cpu_ns() - begun_ns)
