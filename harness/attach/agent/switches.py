"""Count how often a thread was put on a core, by a page that the kernel updates, without a system call.

Reading a thread's CPU time costs a system call (1 us in a tight loop, 2.5 us in a step), but on its core it advances
with the clock. The kernel notes in the page of a performance event, which counts nothing, each time it puts the thread
on a core (``lock``, perf_event_open(2)). Without permission for such events, ``stages.NEAR_NS`` is used.
"""

from __future__ import annotations

import os
import platform
from typing import Any

# Nanoseconds after which the CPU time is read anyway: interrupts and a hypervisor's preemption are not switches.
LASTS_NS = 5_000_000

_CALL = {"x86_64": 298, "aarch64": 241}  # system call number of perf_event_open, by machine
_SOFTWARE, _DUMMY = 1, 9  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY
_USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv: otherwise only privileged users may open the event
_CLOSE_ON_EXEC = 1 << 3
_ATTRIBUTE_BYTES, _FLAGS_AT = 128, 40  # size of struct perf_event_attr, offset of its flags
_LOCK_AT = 8  # offset in struct perf_event_mmap_page

_count: Any = None
_asked = False


def forget() -> None:
    global _count, _asked
    _count, _asked = None, False


def count() -> Any:
    """Return a sequence whose first number changes with each switch of the main thread; None if not allowed."""
    global _count, _asked
    if not _asked:
        _asked = True
        if _may():
            _count = _open(0)
    return _count


def count_of(thread: int) -> Any:
    """Return what :func:`count` does for a thread (kernel id); None if it or the main thread is not counted."""
    return None if _count is None else _open(thread)


def _may() -> bool:
    """True if opening a performance event is harmless: a seccomp filter may kill a process for it."""
    try:
        with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
            return any(line.split() == ["Seccomp:", "0"] for line in file)
    except OSError:
        return False


def _open(thread: int) -> Any:
    """Return the kernel's switch counter of a thread (kernel id; 0: calling) as a sequence of one number, or None."""
    number = _CALL.get(platform.machine())
    if number is None:
        return None
    import ctypes  # torch imports it anyway
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
        # The module mmap would unmap the page at the end of its object. In a forked child, other memory may lie there.
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
        ]  # fmt: skip
        page = library.mmap(None, os.sysconf("SC_PAGE_SIZE"), 1, 1, event, 0)  # PROT_READ, MAP_SHARED
    finally:
        os.close(event)  # the page keeps the event open
    if page is None or page == ctypes.c_void_p(-1).value:
        return None
    return (ctypes.c_uint32 * 1).from_address(page + _LOCK_AT)
