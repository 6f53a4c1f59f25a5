"""Splits the making of one batch into stages without overlap: read, tokenize and pack, in whichever process makes it.

A stage inside another takes its time from it (tokenizing within a dataset's ``__getitem__`` is no reading), so the
stages of a batch never sum to more than its making.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import Any

Piece = tuple[str, int, int, int]  # stage, start, end (CLOCK_MONOTONIC), CPU time of the thread (see add_others())
# Pieces of one batch; more are merged stage by stage, which keeps their sums.
MAX_PIECES_OF_A_BATCH = 64
# The CPU time of a thread is a system call, the clock is not: so soon after a reading the thread is taken to have been
# on its core since, where nobody counts its switches. The error is at most this.
NEAR_NS = 20_000
MOST_LOST = 20  # a twentieth of the time since the last reading may be lost without a switch, for longer use of one


class CpuReading:
    """Extrapolates the last reading of a thread's CPU time for as long as the thread is on its core.

    That is known of a thread whose switches are counted (``switches.py``); of others it is assumed, for ``NEAR_NS``.
    Who asks has these lines, as a call would cost as much as they do::

        now = monotonic_ns()
        if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
            cpu_ns = now + core.ahead_ns
        else:
            cpu_ns, now = core.read()
    """

    __slots__ = ("ahead_ns", "count", "counted", "here", "lasts_ns", "longest_ns", "near_ns")

    def __init__(self) -> None:
        self.near_ns = 0  # until when that reading will do
        self.ahead_ns = 0  # CPU time - clock
        self.count: Any = (0,)  # the first number changes with each switch of the thread
        self.counted = 0  # value of ``count`` when the CPU time was read
        self.here: Any = (1,)  # its first item is 0 in a forked child, where nothing may look at ``count``
        self.lasts_ns = NEAR_NS  # validity of a reading
        self.longest_ns = NEAR_NS

    def counts(self, count: Any, longest_ns: int, here: Any) -> None:
        """Use ``count`` to detect switches of the thread. A reading is valid for ``longest_ns`` at most.

        ``here``: see :mod:`forks`.
        """
        self.count, self.counted, self.near_ns, self.here = count, -1, 0, here
        self.lasts_ns = self.longest_ns = longest_ns

    def uncounted(self) -> None:
        """Forget the counter of the thread's switches."""
        self.counts((0,), NEAR_NS, (1,))

    def read(self) -> tuple[int, int]:
        """The thread's CPU time, and the clock then."""
        if not self.here[0]:
            self.uncounted()
        counted = self.count[0]  # first: a switch during what follows is to be noticed
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        if self.longest_ns != NEAR_NS:
            # A hypervisor may take the core away, and interrupts take time: no switches, and no CPU time of the thread.
            lost_ns = now + self.ahead_ns - cpu_ns if counted == self.counted else 0
            little = lost_ns * MOST_LOST <= now - self.near_ns + self.lasts_ns
            self.lasts_ns = self.longest_ns if little else NEAR_NS
        self.counted, self.near_ns, self.ahead_ns = counted, now + self.lasts_ns, cpu_ns - now
        return cpu_ns, now


class Making:
    """The batch that a thread makes: stages that are open, innermost last, and the pieces that have ended."""

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
    """Begin anew in a forked child."""
    global _thread
    _thread = _ThisThread()


def making() -> Making:
    """Return what this thread makes."""
    return _thread.making


def busy() -> bool:
    """Return True if this thread makes a batch now."""
    return bool(_thread.making.open)


def enter(name: str) -> None:
    cut(name)


def enter_within(name: str) -> bool:
    """Enter a stage of a batch that is being made, unless it is in that stage already; whether it did."""
    return cut(name, True)


def leave() -> None:
    cut(None)


def add_others(process_ns: int) -> None:
    """The open stage has waited for threads of a library, if for most of it: their CPU time is the stage's as well.

    ``process_ns``: CPU time of the process as it began. No more is added than the time that was waited: whatever else
    the process does meanwhile counts with it.
    """
    making = _thread.making
    cpu_ns = thread_time_ns() - making.cpu_ns
    waited_ns = monotonic_ns() - making.start_ns - cpu_ns
    if waited_ns > cpu_ns:
        making.cpu_ns -= max(0, min(waited_ns, process_time_ns() - process_ns - cpu_ns))


def begin(name: str, items: int = 0) -> bool:
    """The stage ``name`` begins a batch of ``items``.

    False where this thread makes one already: a loader within a dataset.
    """
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
    """The batch is made: whatever stage is open ends, but for the first ``kept``."""
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
    """Cut the time here: the stage ``name`` begins, or the innermost one ends (None).

    ``within``: only in a batch that is being made, and in another of its stages. Whether it was cut.
    """
    making = _thread.making
    open_ = making.open
    if open_:
        if within and open_[-1] == name:
            return False
    elif within or name is None:  # None: the program's own signal handler raised within, which ended it
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
    """Add a stage that ends now, where none is open. ``cpu_ns``: the thread's CPU time at ``start_ns``."""
    making = _thread.making
    until_ns, now = making.core.read()
    making.pieces.append((name, start_ns, now, until_ns - cpu_ns))


def take() -> list[Piece]:
    """The pieces since the last call, in their order."""
    making = _thread.making
    pieces, making.pieces = making.pieces, []
    return pieces if len(pieces) <= MAX_PIECES_OF_A_BATCH else _merged(pieces)


def _merged(pieces: list[Piece]) -> list[Piece]:
    """One piece a stage, end to end from the first start: sums and the whole stay, the order within is lost."""
    sums: dict[str, list[int]] = {}
    for name, start, end, cpu_ns in pieces:
        found = sums.setdefault(name, [0, 0])
        found[0] += end - start
        found[1] += cpu_ns
    at = pieces[0][1]
    merged = []
    for name, (wall_ns, cpu_ns) in sums.items():
        merged.append((name, at, at + wall_ns, cpu_ns))
        at += wall_ns
    return merged


def origin() -> tuple[int, int]:
    """Return (pid, thread id) of the caller."""
    return os.getpid(), threading.get_native_id()
