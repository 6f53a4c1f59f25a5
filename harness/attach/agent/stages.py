"""Split the making of one batch into stages without overlap (read, tokenize, pack), in the process that makes it.

An inner stage (tokenizing in ``__getitem__``) does not count in the outer one: stages sum to at most the making.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import Any

Piece = tuple[str, int, int, int]  # stage, start, end (CLOCK_MONOTONIC), CPU time of the thread (see add_others())
# Maximum pieces of one batch. More are merged by stage, which keeps their sums.
MAX_PIECES_OF_A_BATCH = 64
# Nanoseconds after a reading in which a thread without a switch counter is assumed to stay on its core. A thread's CPU
# time is a system call, the clock is not. The error is at most this value.
NEAR_NS = 20_000
MOST_LOST = 20  # 1/MOST_LOST of the time since the last reading may be lost without a switch


class CpuReading:
    """Last reading of a thread's CPU time, from which CPU times are computed until the thread leaves its core.

    On a core, CPU time advances with the clock, so ``ahead_ns`` (CPU time - clock) is constant. Leaving the core is
    noticed by a switch counter (``switches.py``); without one, each reading is used for ``NEAR_NS``. Callers inline
    this::

        now = monotonic_ns()
        if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
            cpu_ns = now + core.ahead_ns
        else:
            cpu_ns, now = core.read()
    """

    __slots__ = ("ahead_ns", "count", "counted", "here", "lasts_ns", "longest_ns", "near_ns")

    def __init__(self) -> None:
        self.near_ns = 0  # time until which the reading is valid
        self.ahead_ns = 0  # CPU time - clock
        self.count: Any = (0,)  # the first number changes with each switch of the thread
        self.counted = 0  # value of ``count`` when the CPU time was read
        self.here: Any = (1,)  # its first item is 0 in a forked child, which may not read ``count``
        self.lasts_ns = NEAR_NS  # validity of a reading
        self.longest_ns = NEAR_NS

    def counts(self, count: Any, longest_ns: int, here: Any) -> None:
        """Use ``count``: a reading holds until its first item changes, ``longest_ns`` at most. ``here``: see forks."""
        self.count, self.counted, self.near_ns, self.here = count, -1, 0, here
        self.lasts_ns = self.longest_ns = longest_ns

    def uncounted(self) -> None:
        """Stop using a switch counter: each reading is then used for NEAR_NS (ns) without a check."""
        self.counts((0,), NEAR_NS, (1,))

    def read(self) -> tuple[int, int]:
        """Return (CPU time of the calling thread, CLOCK_MONOTONIC) in ns, by a system call, for later extrapolation."""
        if not self.here[0]:
            self.uncounted()
        counted = self.count[0]  # first, so that a later switch is noticed
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        if self.longest_ns != NEAR_NS:
            # A hypervisor's preemption and interrupts are not switches, but do not add to the thread's CPU time.
            lost_ns = now + self.ahead_ns - cpu_ns if counted == self.counted else 0
            little = lost_ns * MOST_LOST <= now - self.near_ns + self.lasts_ns
            self.lasts_ns = self.longest_ns if little else NEAR_NS
        self.counted, self.near_ns, self.ahead_ns = counted, now + self.lasts_ns, cpu_ns - now
        return cpu_ns, now


class Making:
    """Batch that a thread is making: open stages (innermost last) and finished pieces. A thread has one such object."""

    __slots__ = ("core", "cpu_ns", "items", "open", "pieces", "start_ns")

    def __init__(self) -> None:
        self.core = CpuReading()
        self.open: list[str] = []
        self.pieces: list[Piece] = []
        self.items = 0  # items of this batch; 0: unknown
        self.start_ns = 0
        self.cpu_ns = 0


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.making = Making()


_thread = _ThisThread()


def forget() -> None:
    global _thread
    _thread = _ThisThread()


def making() -> Making:
    """Return the calling thread's batch in preparation."""
    return _thread.making


def busy() -> bool:
    """Return True if this thread is making a batch."""
    return bool(_thread.making.open)


def enter(name: str) -> None:
    cut(name)


def enter_within(name: str) -> bool:
    """Enter stage ``name`` if this thread makes a batch and is not in it already; return True if entered."""
    return cut(name, True)


def leave() -> None:
    cut(None)


def add_others(process_ns: int) -> None:
    """Add CPU time of a library's threads since ``process_ns`` to the open stage, up to its own thread's wait."""
    making = _thread.making
    cpu_ns = thread_time_ns() - making.cpu_ns
    waited_ns = monotonic_ns() - making.start_ns - cpu_ns
    if waited_ns > cpu_ns:
        making.cpu_ns -= max(0, min(waited_ns, process_time_ns() - process_ns - cpu_ns))


def begin(name: str, items: int = 0) -> bool:
    """Begin a batch of ``items`` (0: unknown) with a stage; False if the thread makes one already (nested loader)."""
    making = _thread.making
    if making.open:
        return False
    core = making.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = core.read()
    making.open.append(name)
    making.start_ns, making.cpu_ns, making.items = now, cpu_ns, items
    return True


def end(kept: int = 0) -> None:
    """Close the open stages of the batch. ``kept``: number of outermost stages that stay open; 0 ends the batch."""
    making = _thread.making
    open_ = making.open
    if len(open_) <= kept:
        return
    core = making.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = core.read()
    if now > making.start_ns:
        making.pieces.append((open_[-1], making.start_ns, now, cpu_ns - making.cpu_ns))
    del open_[kept:]
    making.start_ns, making.cpu_ns = now, cpu_ns


def cut(name: str | None, within: bool = False) -> bool:
    """End the current piece, and start stage ``name``; None: end the innermost stage. Return True if that was possible.

    ``within``: start it only within a batch whose innermost stage is another one.
    """
    making = _thread.making
    open_ = making.open
    if open_:
        if within and open_[-1] == name:
            return False
    elif within or name is None:  # name is None if the program's signal handler raised within the stage and ended it
        return False
    core = making.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = core.read()
    if open_ and now > making.start_ns:
        making.pieces.append((open_[-1], making.start_ns, now, cpu_ns - making.cpu_ns))
    if name is None:
        open_.pop()
    else:
        open_.append(name)
    making.start_ns, making.cpu_ns = now, cpu_ns
    return True


def add(name: str, start_ns: int, cpu_ns: int) -> None:
    """Add a piece of stage ``name`` from ``start_ns`` to now; no stage may be open. ``cpu_ns``: CPU time at start."""
    making = _thread.making
    until_ns, now = making.core.read()
    making.pieces.append((name, start_ns, now, until_ns - cpu_ns))


def take() -> list[Piece]:
    """Remove and return this thread's pieces, oldest first; more than MAX_PIECES_OF_A_BATCH are merged by stage."""
    making = _thread.making
    pieces, making.pieces = making.pieces, []
    return pieces if len(pieces) <= MAX_PIECES_OF_A_BATCH else _merged(pieces)


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Return one piece per stage, laid end to end from the first start. The sums are exact; the real order is lost."""
    sums: dict[str, list[int]] = {}
    for name, start, end, cpu_ns in pieces:
        stage_sums = sums.setdefault(name, [0, 0])
        stage_sums[0] += end - start
        stage_sums[1] += cpu_ns
    start_ns = pieces[0][1]
    merged = []
    for name, (wall_ns, cpu_ns) in sums.items():
        merged.append((name, start_ns, start_ns + wall_ns, cpu_ns))
        start_ns += wall_ns
    return merged


def origin() -> tuple[int, int]:
    """Return (pid, thread id) of the caller."""
    return os.getpid(), threading.get_native_id()
