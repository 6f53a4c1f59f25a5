"""Knows a forked child where Python did not fork it, either (a library in C did): it finds this memory empty."""

from __future__ import annotations

import mmap
from typing import Any

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, see madvise(2): Linux 4.14


def _memory() -> Any:
    """A page whose first byte is 1 here and 0 in a child; None where the system has none."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
    except (AttributeError, OSError):
        return None
    page[0] = 1
    return page


_page = _memory()
known = _page is not None  # whether a child is found
here: Any = _page if known else b"\1"  # its first item is 0 in a child, until settled()


def settled() -> None:
    """This child has begun anew."""
    if known:
        _page[0] = 1
