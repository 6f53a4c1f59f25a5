"""Reads the memory of this process and of its workers, where a page that several share counts in parts.

It also reads how much of the cores child processes ask for: loader workers, and others that the program started.

Pages of files and of shared memory do not count: the kernel drops those of a memory-mapped dataset when it needs room.
"""

from __future__ import annotations

import os
import sys
from typing import Any

CHILDREN_MAX = 16  # workers that are read
CHILD_THREADS_MAX = 16  # threads of a child that are read
_PAGE = os.sysconf("SC_PAGE_SIZE")
_parents: dict[int, int] = {}  # of processes, by their numbers
_CGROUP = "/sys/fs/cgroup/memory."


def read() -> tuple[int, int, int] | None:
    """Return the bytes of this process, those of its workers, and those that are free; None if they are unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        free = _line("/proc/meminfo", b"MemAvailable:")
    except (OSError, ValueError):
        return None
    process = sys.modules.get("multiprocessing.process")
    children = list(getattr(process, "_children", ()))[:CHILDREN_MAX]
    own = (resident - shared) * _PAGE
    return own, sum(map(_pss, children)), min(free, _left_of_limit())


def children_asked_ns() -> dict[int, int]:
    """Return the nanoseconds for which each child process ran or waited for a core, by its number.

    A process is asked for its parent once. Children have higher numbers than their parent, until these begin anew.
    """
    own = os.getpid()
    if own not in _parents:  # The first call, or the first one of a forked child.
        _parents.clear()
        _parents[own] = 0
    here = sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) > own)
    for pid in here:
        if pid not in _parents:
            _parents[pid] = _parent_of(pid)
    family = {own}
    for pid in here:
        if _parents[pid] in family:
            family.add(pid)
    family.discard(own)
    return {pid: _process_asked_ns(pid) for pid in sorted(family)[:CHILDREN_MAX]}


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # It has ended.
        return 0


def _process_asked_ns(pid: int) -> int:
    try:
        threads = os.listdir(f"/proc/{pid}/task")[:CHILD_THREADS_MAX]
    except OSError:  # It has ended.
        return 0
    return sum(asked_ns(pid, int(thread)) for thread in threads)


def asked_ns(pid: int, thread: int) -> int:
    """Return for how long a thread of a process ran, or waited for a core; 0 if it has ended, or that is unknown."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
            on_core, waited, *_ = file.read().split()
        return int(on_core) + int(waited)
    except (OSError, ValueError):
        return 0


def _pss(child: Any) -> int:
    try:
        return _line(f"/proc/{child.pid}/smaps_rollup", b"Pss_Anon:")
    except (OSError, ValueError):  # The child has ended, or the program has closed it.
        return 0


def _line(path: str, name: bytes, unit: int = 1024) -> int:
    """Return the bytes in the line that begins with ``name``, whose number is in ``unit`` bytes."""
    with open(path, "rb") as file:
        text = file.read()
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) * unit


def _left_of_limit() -> int:
    """Return the bytes left of the memory limit of the cgroup, with the file pages that the kernel drops first.

    Return very many if there is no limit.
    """
    try:
        with open(_CGROUP + "max", "rb") as most, open(_CGROUP + "current", "rb") as used:
            left = int(most.read()) - int(used.read())
        return left + _line(_CGROUP + "stat", b"inactive_file ", 1)
    except (OSError, ValueError):  # no limit: "max"
        return sys.maxsize
