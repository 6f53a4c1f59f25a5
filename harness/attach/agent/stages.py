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


class _Making(threading.local):
    """The batch that this thread makes: stages that are open, innermost last, and the pieces that have ended."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.pieces: list[Piece] = []
        self.start_ns = 0
        self.cpu_ns = 0


_making = _Making()


def forget() -> None:
    """In a forked child: nothing is being made."""
    global _making
    _making = _Making()


def busy() -> bool:
    """Whether this thread makes a batch now."""
    return bool(_making.open)


def enter(name: str) -> None:
    making = _making
    cpu_ns, now = thread_time_ns(), monotonic_ns()
    if making.open:
        _cut(making, now, cpu_ns)
    making.open.append(name)
    making.start_ns, making.cpu_ns = now, cpu_ns


def enter_within(name: str) -> bool:
    """Enter a stage of a batch that is being made, unless it is in that stage already; whether it did."""
    if not _making.open or _making.open[-1] == name:
        return False
    enter(name)
    return True


def leave() -> None:
    making = _making
    if not making.open:  # the program's own signal handler raised within, which ended it
        return
    cpu_ns, now = thread_time_ns(), monotonic_ns()
    _cut(making, now, cpu_ns)
    making.open.pop()
    making.start_ns, making.cpu_ns = now, cpu_ns


def _cut(making: _Making, now: int, cpu_ns: int) -> None:
    if now > making.start_ns:
        making.pieces.append((making.open[-1], making.start_ns, now, cpu_ns - making.cpu_ns))


def take() -> list[Piece]:
    """The pieces since the last call, in their order."""
    pieces, _making.pieces = _making.pieces, []
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
