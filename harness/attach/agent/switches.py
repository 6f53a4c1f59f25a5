"""Counts how often a thread was put on a core, without a system call: a page that the kernel keeps, to be read.

What CPU time a thread took is a system call, of 1 us where it is made in a row and of 2.5 us within a training step. As
long as the thread has not left its core, its CPU time goes with the clock. The kernel writes down each time when it
puts a thread with a performance event on a core (``lock`` in the event's page, perf_event_open(2)). The event counts
nothing. Where a process may have none, ``stages.NEAR_NS`` has to do.
"""

from __future__ import annotations

import os
import platform
from typing import Any

# Interrupts, and a hypervisor that takes the core away, are no switches: so often the CPU time is read all the same.
LASTS_NS = 5_000_000

_CALL = {"x86_64": 298, "aarch64": 241}  # number of perf_event_open, by machine
_SOFTWARE, _DUMMY = 1, 9  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY
_USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv: else it is for privileged users
_CLOSE_ON_EXEC = 1 << 3
_ATTRIBUTE_BYTES, _FLAGS_AT = 128, 40  # of struct perf_event_attr
_LOCK_AT = 8  # of struct perf_event_mmap_page

_count: Any = None
_asked = False


def forget() -> None:
    """In a forked child: the kernel does not copy that page to it, so that nothing may touch it any more."""
    global _count, _asked
    _count, _asked = None, False


def count() -> Any:
    """A sequence whose first number changes with each switch of this thread, the main one; None: nobody counts them."""
    global _count, _asked
    if not _asked:
        _asked = True
        if _may():
            _count = _open(0)
    return _count


def count_of(thread: int) -> Any:
    """The same of another thread of this process, where the main thread's switches are counted."""
    return None if _count is None else _open(thread)


def _may() -> bool:
    """Whether asking for an event does no harm: a filter of system calls may kill who makes one that it forbids."""
    try:
        with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
            return any(line.split() == ["Seccomp:", "0"] for line in file)
    except OSError:
        return False


def _open(thread: int) -> Any:
    """``thread``: its number, 0 for the one that calls."""
    number = _CALL.get(platform.machine())
    if number is None:
        return None
    import ctypes  # torch has it already
    import struct

    library = ctypes.CDLL(None)
    attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    struct.pack_into("=IIQ", attribute, 0, _SOFTWARE, _ATTRIBUTE_BYTES, _DUMMY)
    struct.pack_into("=Q", attribute, _FLAGS_AT, _USER_ONLY)
    library.syscall.restype = ctypes.c_long
    event = library.syscall(
        ctypes.c_long(number), attribute, ctypes.c_int(thread), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if event < 0:
        return None
    try:
        # Not by the module mmap: its object would unmap the page as it ends; in a forked child, what lies there then.
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
        ]  # fmt: skip
        page = library.mmap(None, os.sysconf("SC_PAGE_SIZE"), 1, 1, event, 0)  # PROT_READ, MAP_SHARED
    finally:
        os.close(event)  # the page keeps the event
    if page is None or page == ctypes.c_void_p(-1).value:
        return None
    return (ctypes.c_uint32 * 1).from_address(page + _LOCK_AT)
