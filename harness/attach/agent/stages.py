"""Splits the making of one batch into stages without overlap: read, tokenize and pack, in whichever process makes it.

A stage inside another takes its time from it (tokenizing within a dataset's ``__getitem__`` is no reading), so the
stages of a batch never sum to more than its making.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, thread_time_ns

Piece = tuple[str, int, int, int]  # stage, start, end (CLOCK_MONOTONIC), CPU time of the thread
# Of one batch: more are merged stage by stage, which keeps their sums.
MOST_PIECES = 64
# The CPU time of a thread is a system call, the clock is not: so soon after a reading the thread is taken to have been
# on its core since. Boundaries follow one another closely, so that is most; the error is at most this.
NEAR_NS = 20_000
ANYWHERE, FIRST, WITHIN = range(3)  # a stage begins: wherever; a batch; within a batch, and in another of its stages


class CpuReading:
    """What the last reading of a thread's CPU time says of the time just after it.

    Who asks has these lines, as a call would cost as much as they do::

        now = monotonic_ns()
        if now < core.near_ns:
            cpu_ns = now + core.ahead_ns
        else:
            cpu_ns, now = thread_time_ns(), monotonic_ns()
            core.near_ns, core.ahead_ns = now + NEAR_NS, cpu_ns - now
    """

    __slots__ = ("ahead_ns", "near_ns")

    def __init__(self) -> None:
        self.near_ns = 0  # until when that reading will do
        self.ahead_ns = 0  # CPU time - clock


class Making:
    """The batch that a thread makes: stages that are open, innermost last, and the pieces that have ended."""

    __slots__ = ("core", "cpu_ns", "open", "pieces", "start_ns")

    def __init__(self) -> None:
        self.core = CpuReading()
        self.open: list[str] = []
        self.pieces: list[Piece] = []
        self.start_ns = 0
        self.cpu_ns = 0


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.making = Making()


_thread = _ThisThread()


def forget() -> None:
    """In a forked child: nothing is being made."""
    global _thread
    _thread = _ThisThread()


def making() -> Making:
    """What this thread makes."""
    return _thread.making


def busy() -> bool:
    """Whether this thread makes a batch now."""
    return bool(_thread.making.open)


def enter(name: str) -> None:
    cut(name)


def enter_within(name: str) -> bool:
    """Enter a stage of a batch that is being made, unless it is in that stage already; whether it did."""
    return cut(name, WITHIN)


def leave() -> None:
    cut(None)


def end(kept: int = 0) -> None:
    """The batch is made: whatever stage is open ends, but for the first ``kept``."""
    making = _thread.making
    if len(making.open) > kept:
        del making.open[kept:-1]
        cut(None)


def cut(name: str | None, where: int = ANYWHERE) -> bool:
    """Cut the time here: the stage ``name`` begins, or the innermost one ends (None). Whether ``where`` allows it."""
    making = _thread.making
    open_ = making.open
    if open_:
        if where == FIRST or (where == WITHIN and open_[-1] == name):
            return False
    elif where == WITHIN or name is None:  # None: the program's own signal handler raised within, which ended it
        return False
    core = making.core
    now = monotonic_ns()
    if now < core.near_ns:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        core.near_ns, core.ahead_ns = now + NEAR_NS, cpu_ns - now
    if open_ and now > making.start_ns:
        making.pieces.append((open_[-1], making.start_ns, now, cpu_ns - making.cpu_ns))
    if name is None:
        open_.pop()
    else:
        open_.append(name)
    making.start_ns, making.cpu_ns = now, cpu_ns
    return True


def take() -> list[Piece]:
    """The pieces since the last call, in their order."""
    making = _thread.making
    pieces, making.pieces = making.pieces, []
    return pieces if len(pieces) <= MOST_PIECES else _merged(pieces)


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
    """(pid, thread id) of whoever asks."""
    return os.getpid(), threading.get_native_id()
