"""Note when batches of workers arrived in the main process and were unpacked: a wait hides the cost of receiving."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from _harness_agent import guard

_NAME = "_harness_arrivals"  # attribute that stores an iterator's notes
_MOST = 10_000  # noted batches that were not handed out: with more, the iterator does not work as expected


class _Noted:
    __slots__ = ("arrived_ns", "found")

    def __init__(self) -> None:
        self.arrived_ns = 0
        self.found: dict[int, tuple[int, int, bool]] = {}  # batches not yet handed out


def watch(iterator: Any) -> None:
    """Note when batches of workers reach this DataLoader iterator, if it has the attributes that identify a batch."""
    if hasattr(iterator, _NAME):
        return
    noted = _Noted()
    setattr(iterator, _NAME, noted)
    queue = getattr(iterator, "_data_queue", None)
    if not getattr(iterator, "_in_order", True) or not hasattr(iterator, "_rcvd_idx"):
        return  # the current batch cannot be identified
    for name in ("_recv_bytes", "_get"):  # queue of processes, or queue filled by the pinning thread
        if (before := getattr(queue, name, None)) is not None:
            empty = _looks_empty(queue)
            # Only the read of a pipe may begin before a message exists. A queue of threads holds its lock here.
            setattr(queue, name, _arriving(noted, before, empty if name == "_recv_bytes" else lambda: False))
            queue.get = _unpacking(noted, queue.get, empty)  # type: ignore[union-attr]
            break


def taken(iterator: Any) -> tuple[int, int, bool] | None:
    """Remove and return (arrival, end of unpacking, True if waited for) of the current batch in ns; None if unknown."""
    noted = getattr(iterator, _NAME, None)
    return noted.found.pop(iterator._rcvd_idx - 1, None) if noted is not None and noted.found else None


def forget(iterator: Any) -> None:
    if (noted := getattr(iterator, _NAME, None)) is not None:
        noted.found.clear()


def _arriving(noted: _Noted, before: Callable[..., Any], empty: Callable[[], bool]) -> Callable[..., Any]:
    def arriving(*values: Any) -> Any:
        # A queue of the program may start reading before there is a message: its arrival is then unknown.
        noted.arrived_ns = 0 if guard.carefully(empty) else monotonic_ns()
        return before(*values)

    return arriving


def _looks_empty(queue: Any) -> Callable[[], bool]:
    if not hasattr(queue, "_reader"):
        return lambda: not queue.qsize()
    poll = select.poll()
    poll.register(queue._reader.fileno(), select.POLLIN)
    return lambda: not poll.poll(0)


def _unpacking(noted: _Noted, before: Callable[..., Any], empty: Callable[[], bool]) -> Callable[..., Any]:
    def unpacking(*values: Any, **named: Any) -> Any:
        waited, noted.arrived_ns = bool(guard.on and guard.carefully(empty)), 0
        message = before(*values, **named)
        # If the program's own get reads in another way, the arrival of its message is unknown.
        if guard.on and noted.arrived_ns and isinstance(message, tuple) and message and isinstance(message[0], int):
            noted.found[message[0]] = noted.arrived_ns, monotonic_ns(), waited
            if len(noted.found) > _MOST:
                noted.found.clear()
        return message

    return unpacking
