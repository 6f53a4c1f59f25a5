"""Notes when each batch of a worker had arrived in the main process and when it was unpacked there.

A program that always waits for its batches hides what receiving them costs: it is within the wait. See
trainer/data/arrivals.py, which notes the same in the harness's own loop.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from _harness_agent import guard

_NAME = "_harness_arrivals"  # of the attribute of an iterator that has what was noted of it
_MOST = 10_000  # batches that are noted and not handed out: an iterator with more of them is not as we think


class _Noted:
    __slots__ = ("arrived_ns", "found")

    def __init__(self) -> None:
        self.arrived_ns = 0
        self.found: dict[int, tuple[int, int, bool]] = {}  # of batches that were not handed out yet


def watch(iterator: Any) -> None:
    """Watch the queue that this iterator takes its batches from, from now on; nothing where torch has no such one."""
    if hasattr(iterator, _NAME):
        return
    noted = _Noted()
    setattr(iterator, _NAME, noted)
    queue = getattr(iterator, "_data_queue", None)
    if not getattr(iterator, "_in_order", True) or not hasattr(iterator, "_rcvd_idx"):
        return  # which batch is handed out is not known
    for name in ("_recv_bytes", "_get"):  # of a queue of processes; of the one that the thread for pinning fills
        if (before := getattr(queue, name, None)) is not None:
            empty = _looks_empty(queue)
            # Only of a pipe may reading begin before there is anything; a queue of threads holds its lock here.
            setattr(queue, name, _arriving(noted, before, empty if name == "_recv_bytes" else lambda: False))
            queue.get = _unpacking(noted, queue.get, empty)  # type: ignore[union-attr]
            break


def taken(iterator: Any) -> tuple[int, int, bool] | None:
    """When the batch that is handed out now had arrived, when it was unpacked, whether it was waited for; else None."""
    noted = getattr(iterator, _NAME, None)
    return noted.found.pop(iterator._rcvd_idx - 1, None) if noted is not None and noted.found else None


def forget(iterator: Any) -> None:
    """An epoch begins: its batches are counted from 0 again."""
    if (noted := getattr(iterator, _NAME, None)) is not None:
        noted.found.clear()


def _arriving(noted: _Noted, before: Callable[..., Any], empty: Callable[[], bool]) -> Callable[..., Any]:
    def arriving(*values: Any) -> Any:
        # A queue of the program's own may begin to read before there is a message: when that comes is not known.
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
        # A get of the program's own that reads otherwise leaves unknown when its message came.
        if guard.on and noted.arrived_ns and isinstance(message, tuple) and message and isinstance(message[0], int):
            noted.found[message[0]] = noted.arrived_ns, monotonic_ns(), waited
            if len(noted.found) > _MOST:
                noted.found.clear()
        return message

    return unpacking
