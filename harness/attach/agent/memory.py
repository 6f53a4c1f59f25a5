"""Reads the memory of this process and of its workers, where a page that several share counts in parts."""

from __future__ import annotations

import os
import sys

CHILDREN_MAX = 16  # workers that are read
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIMIT, _USED = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"


def read() -> tuple[int, int, int] | None:
    """Return the bytes of this process, those of its workers, and those that are free; None if they are unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            own = int(file.read().split()[1]) * _PAGE
        free = _line("/proc/meminfo", b"MemAvailable:")
    except (OSError, ValueError):
        return None
    process = sys.modules.get("multiprocessing.process")
    children = list(getattr(process, "_children", ()))[:CHILDREN_MAX]
    return own, sum(_pss(child.pid) for child in children), min(free, _left_of_limit())


def _pss(pid: int | None) -> int:
    try:
        return _line(f"/proc/{pid}/smaps_rollup", b"Pss:")
    except (OSError, ValueError):  # it has ended
        return 0


def _line(path: str, name: bytes) -> int:
    """Return the bytes in the line that begins with ``name``, whose number is in kB."""
    with open(path, "rb") as file:
        text = file.read()
    return int(text[text.index(name) + len(name) :].split(None, 1)[0]) * 1024


def _left_of_limit() -> int:
    """Return the bytes left of the memory limit of the cgroup; very many if there is none."""
    try:
        with open(_LIMIT, "rb") as most, open(_USED, "rb") as used:
            return int(most.read()) - int(used.read())
    except (OSError, ValueError):  # no limit: "max"
        return sys.maxsize
