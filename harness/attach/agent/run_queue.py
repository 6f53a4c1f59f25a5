"""Reads how long the main thread and the native threads that compute for it ran, and waited for a core (schedstat)."""

from __future__ import annotations

import os
import threading
from itertools import repeat
from time import thread_time_ns

MOST_THREADS = 16  # a reading per thread and step

_LINE_BYTES = 96  # at most

_descriptors: list[int] = []
_known: set[int] = set()
_begun = False


def forget() -> None:
    """In a forked child: it has other threads. The files stay open, as whoever closes all of them may have done so."""
    global _begun
    _begun = False
    _descriptors.clear()
    _known.clear()


def read() -> tuple[bytes, ...]:
    """The kernel's line of each thread, the main thread's first; empty where this kernel keeps none."""
    global _begun
    if not _begun:
        _begun = True
        _open(os.getpid())  # on Linux the main thread has the process's number
    if not _descriptors:
        return ()
    thread_time_ns()  # brings the time on a core in the main thread's line up to date, as else only a tick does
    try:
        return tuple(map(os.pread, _descriptors, repeat(_LINE_BYTES), repeat(0)))
    except OSError:
        return tuple(map(_line, _descriptors))


def find_threads() -> None:
    """Look for compute threads: native ones, which start with the first parallel region."""
    if not _descriptors:
        return
    python = {thread.native_id for thread in threading.enumerate()}
    for name in os.listdir("/proc/self/task"):
        if int(name) not in python and int(name) not in _known and len(_known) < MOST_THREADS:
            _open(int(name))


def _open(tid: int) -> None:
    try:
        _descriptors.append(os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC))
        _known.add(tid)
    except OSError:
        pass


def _line(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, _LINE_BYTES, 0)
    except OSError:  # the thread has ended
        return b""
