"""Reads how long the main thread and the native threads that compute for it ran, and waited for a core (schedstat)."""

from __future__ import annotations

import os
import threading

MOST_THREADS = 16  # a reading per thread and step

_descriptors: list[int] = []
_known: set[int] = set()
_owner = 0


def read() -> tuple[bytes, ...]:
    """The kernel's line of each thread, the main thread's first; empty where this kernel keeps none."""
    global _owner
    if _owner != os.getpid():
        _owner = os.getpid()
        _descriptors.clear()
        _known.clear()
        _open(_owner)  # on Linux the main thread has the process's number
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
        return os.pread(descriptor, 96, 0)
    except OSError:  # the thread has ended
        return b""
