"""Read how long threads (main, native compute) and child processes ran and waited for a core (schedstat).

A wait is added when it ends, so a thread that was not switched has not waited: if the switches of all threads are
counted (``switches.py``), the lines are read only after a switch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from itertools import repeat
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from _harness_agent import forks, switches

if TYPE_CHECKING:
    from _harness_agent.stages import CpuReading

MAX_COMPUTE_THREADS = 16  # one reading per thread and step
CHILD_PROCESSES_MAX = 16  # maximum number of children that are read
CHILD_THREADS_MAX = 16  # maximum number of threads of a child that are read
# Maximum number of skipped readings in a row. A program can stop the counting of its switches (prctl(2),
# PR_TASK_PERF_EVENTS_DISABLE): lines that still change reveal this.
MOST_SKIPPED = 32
MOST_UNCOUNTED = 1  # such changes that are ignored: the kernel on another core may be between both updates

_LINE_BYTES = 96  # maximum length of a line

_descriptors: list[int] = []
_known: set[int] = set()
own: set[int] = set()  # the agent's own threads, which compute nothing for the program
_begun = False
_core: CpuReading | None = None  # CPU clock of the main thread, if its switches are counted
_counts: list[Any] = []  # switch counters of the threads, while all are counted
_counted: list[int] = []  # counts at the last reading of the lines; empty: not yet read
_line = b""  # the main thread's line at that reading
_others: list[bytes] = []
_skipped = 0
_uncounted = 0
_parents: dict[int, int] = {}  # process ids of the parents, by process id


def forget() -> None:
    global _begun, _core, _skipped, _uncounted
    _begun, _core = False, None
    _skipped = _uncounted = 0
    _descriptors.clear()
    _known.clear()
    _counts.clear()
    _counted.clear()


def follow(core: CpuReading) -> None:
    """Use ``core`` as the main thread's CPU clock: lines of schedstat are read again only after a counted switch."""
    global _core
    _core = core
    _counts[:1] = [core.count]
    _counted.clear()


def read() -> tuple[Any, ...]:
    """Return a line of schedstat per thread, the main one first; empty without schedstat.

    If no thread was switched since the last reading: the earlier lines, and (CPU time in ns, line) for the main thread.
    """
    global _skipped
    if not forks.here[0]:
        forget()
    core = _core
    if core is None or not _counted or _skipped >= MOST_SKIPPED:
        return _read_lines()
    for count, before in zip(_counts, _counted, strict=False):
        if count[0] != before:
            return _read_lines()
    _skipped += 1
    now = monotonic_ns()
    cpu_ns = now + core.ahead_ns if now < core.near_ns and core.count[0] == core.counted else core.read()[0]
    return ((cpu_ns, _line), *_others)


def _read_lines() -> tuple[bytes, ...]:
    global _begun, _line, _others, _skipped
    if not _begun:
        _begun = True
        _open(threading.get_native_id())
    if not _descriptors:
        return ()
    # The counters come first, so that a later switch is noticed.
    counted = [count[0] for count in _counts] if len(_counts) == len(_descriptors) else []
    # Reading the CPU time updates the time on a core in the main thread's line, which otherwise only a tick does.
    if _core is not None:
        _core.read()
    else:
        thread_time_ns()
    try:
        lines = tuple(map(os.pread, _descriptors, repeat(_LINE_BYTES), repeat(0)))
    except OSError:
        lines = tuple(map(_line_of, _descriptors))
    earlier, _skipped = (_line, *_others), 0
    _line, *_others = lines
    if (
        counted
        and counted == _counted
        and _runs(lines) != _runs(earlier)
        and [count[0] for count in _counts] == counted
    ):
        _count_no_more()
        return lines
    _counted[:] = counted  # last, so that the lines are read again if a signal handler of the program raises before
    return lines


def _runs(lines: Iterable[bytes]) -> list[bytes]:
    """Return the last field of each line of schedstat, as bytes: how often the thread was put on a core."""
    return [line.rpartition(b" ")[2] for line in lines]


def _count_no_more() -> None:
    """Stop using the switch counters after MOST_UNCOUNTED changes of schedstat without a counted switch."""
    global _core, _uncounted
    _uncounted += 1
    if _core is not None and _uncounted > MOST_UNCOUNTED:
        _core.uncounted()
        _core = None
        _counts.clear()
        _counted.clear()


def find_threads() -> None:
    """Let :func:`read` also read new native compute threads. They appear with the first parallel computation."""
    if not _descriptors:
        return
    python = {thread.native_id for thread in threading.enumerate()}
    for name in os.listdir("/proc/self/task"):
        if int(name) not in python | own and int(name) not in _known and len(_known) < MAX_COMPUTE_THREADS:
            counted = len(_counts) == len(_descriptors)
            if _open(int(name)) and counted and (count := switches.count_of(int(name))) is not None:
                _counts.append(count)
    _counted.clear()


def _open(tid: int) -> bool:
    try:
        _descriptors.append(os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC))
        _known.add(tid)
    except OSError:
        return False
    return True


def times_ns(process: int, thread: int) -> tuple[int, int]:
    """Return (ns run, ns waited for a core) of a thread since its start. Zeros if it has ended or has no schedstat."""
    try:
        with open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
            ran, waited, *_ = file.read().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


def children_asked_ns() -> dict[int, int]:
    """Return, by process id of CHILD_PROCESSES_MAX descendants, ns that their threads ran or waited for a core."""
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    for pid in _parents.keys() - pids:
        del _parents[pid]
    for pid in pids - _parents.keys():
        _parents[pid] = _parent_of(pid)
    family, generation = set[int](), {os.getpid()}
    while generation:
        generation = {pid for pid, parent in _parents.items() if parent in generation} - family
        family |= generation
    return {pid: _process_asked_ns(pid) for pid in sorted(family)[:CHILD_PROCESSES_MAX]}


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # the process has ended
        return 0


def _process_asked_ns(pid: int) -> int:
    try:
        threads = os.listdir(f"/proc/{pid}/task")[:CHILD_THREADS_MAX]
    except OSError:  # the process has ended
        return 0
    return sum(sum(times_ns(pid, int(thread))) for thread in threads)


def _line_of(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, _LINE_BYTES, 0)
    except OSError:  # the thread has ended
        return b""
