"""Notes when each batch of a DataLoader arrives in this process and when it is unpacked: what receiving it costs.

A fetch that waits for its batch hides that cost. The batch is there for the program only when its message has been
unpickled and the memory of its tensors fetched from the worker, which takes milliseconds and is the main thread's work,
as much for a batch that lay ready as for one that was waited for:

    main thread  |.......... waits for a message ..........|--- unpacks it ---|--- hands it out ---|
                 fetch begins                              arrived            unpacked             fetch ends

Batches of several workers come through one pipe, in the order in which they were built. One whose turn has not come is
unpacked all the same, within an earlier fetch. With pinned memory a thread unpacks; then a batch arrives when the main
thread takes it from that thread.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """When a batch had arrived in this process and when it was unpacked, CLOCK_MONOTONIC nanoseconds.

    ``waited``: this process waited for its message, so that is when it came; else it lay there, and that is when it was
    read. A process that had no core for a while looks as if it waited, so the queue is asked.
    """

    arrived_ns: int
    unpacked_ns: int
    waited: bool


class Arrivals:
    """Those of the batches of one DataLoader iterator.

    A torch that has no such queues leaves them unknown, and so does a queue whose ``get`` reads messages otherwise, or
    begins to read before there is one.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._arrived_ns = 0
        self._found: dict[int, Arrival] = {}  # of batches that were not handed out yet
        queue = getattr(iterator, "_data_queue", None)
        # What a multiprocessing queue calls once its pipe is readable; a queue of threads, once it has something.
        for name in ("_recv_bytes", "_get"):
            if (before := getattr(queue, name, None)) is not None and hasattr(iterator, "_rcvd_idx"):
                empty = looks_empty(queue)
                # Only of a pipe may reading begin before there is anything; a queue of threads holds its lock here.
                setattr(queue, name, self._arriving(before, empty if name == "_recv_bytes" else lambda: False))
                queue.get = self._unpacking(queue.get, empty)  # type: ignore[union-attr]
                break

    def __call__(self) -> Arrival | None:
        """Of the batch that was handed out last; None where it is not known."""
        return self._found.pop(self._iterator._rcvd_idx - 1, None) if self._found else None

    def _arriving(self, before: Callable[..., Any], empty: Callable[[], bool]) -> Callable[..., Any]:
        def arriving(*values: Any) -> Any:
            self._arrived_ns = 0 if empty() else monotonic_ns()
            return before(*values)

        return arriving

    def _unpacking(self, before: Callable[..., Any], empty: Callable[[], bool]) -> Callable[..., Any]:
        def unpacking(*values: Any, **named: Any) -> Any:
            waited, self._arrived_ns = empty(), 0
            message = before(*values, **named)
            number = message[0] if isinstance(message, tuple) else None
            if isinstance(number, int) and self._arrived_ns:
                self._found[number] = Arrival(self._arrived_ns, monotonic_ns(), waited)
            return message

        return unpacking


def looks_empty(queue: Any) -> Callable[[], bool]:
    """A question to ``queue`` that takes a microsecond: whether nothing lies in it. Its own takes ten times as long."""
    if not hasattr(queue, "_reader"):
        return lambda: not queue.qsize()
    poll = select.poll()
    poll.register(queue._reader.fileno(), select.POLLIN)
    return lambda: not poll.poll(0)
