"""Detect a forked child, even if a library in C forked it: a marked memory page is empty in the child."""

from __future__ import annotations

import mmap
from typing import Any

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, see madvise(2): Linux 4.14


def _memory() -> Any:
    """Return a page whose first byte is 1 here and 0 in a forked child; None if unsupported (before Linux 4.14)."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
    except (AttributeError, OSError):
        return None
    page[0] = 1
    return page


_page = _memory()
known = _page is not None  # True if a child can be detected
here: Any = _page if known else b"\1"  # its first item is 0 in a child, until settled()


def settled() -> None:
    """Set the byte of :data:`here` to 1 again, once this forked child has reset the agent's state."""
    if known:
        _page[0] = 1
