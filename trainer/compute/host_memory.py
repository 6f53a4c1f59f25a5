"""Lets the C library keep freed memory, so that each step on a CPU reuses the pages of the one before.

A step frees its activations and gradients. glibc then returns the top of its heap to the system (``M_TRIM_THRESHOLD``).
The next forward pass takes a page fault for every 4 KiB of it, which the kernel must fill with zeros first. Losses do
not change. Peak memory hardly changes: a step as large as the last one needs as much again anyway.
"""

from __future__ import annotations

import ctypes

# mallopt(3). Setting one of them ends glibc's own adjustment of both, so both are set. Larger allocations than the
# second get their own pages and return them when freed. It is set to glibc's maximum, which limits its own adjustment,
# too.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
_MOST_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)  # DEFAULT_MMAP_THRESHOLD_MAX of malloc/malloc.c


def keep_freed_memory() -> bool:
    """Keep freed memory in this process. Return False if the C library is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl has a mallopt that does nothing.
        return False
    trim, mapped = library.mallopt(_M_TRIM_THRESHOLD, _NEVER), library.mallopt(_M_MMAP_THRESHOLD, _MOST_BYTES)
    return bool(trim and mapped)
