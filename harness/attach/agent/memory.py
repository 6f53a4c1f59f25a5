"""Read the memory of this process and of its workers: shared pages in proportion, without droppable pages of files."""

from __future__ import annotations

import os
import sys
from typing import Any

CHILDREN_MAX = 16  # maximum number of workers that are read
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP = "/sys/fs/cgroup/memory."


def read() -> tuple[int, int, int] | None:
    """Return (private bytes of this process, of its workers, bytes free here and in the cgroup); None without /proc."""
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


def _pss(child: Any) -> int:
    try:
        return _line(f"/proc/{child.pid}/smaps_rollup", b"Pss_Anon:")
    except (OSError, ValueError):  # The child has ended, or the program has closed it.
        return 0


def _line(path: str, name: bytes, unit: int = 1024) -> int:
    """Return the number after ``name`` in the file ``path``, times ``unit`` (bytes). Raises ValueError or OSError."""
    with open(path, "rb") as file:
        text = file.read()
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) * unit


def _left_of_limit() -> int:
    """Return the bytes left of the cgroup's limit; droppable file pages count as free. sys.maxsize without a limit."""
    try:
        with open(_CGROUP + "max", "rb") as most, open(_CGROUP + "current", "rb") as used:
            free = int(most.read()) - int(used.read())
        return free + _line(_CGROUP + "stat", b"inactive_file ", 1)
    except (OSError, ValueError):  # "max": no limit
        return sys.maxsize
