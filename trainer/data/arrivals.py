"""Records when each batch of a DataLoader arrives in this process and when it is unpacked: the cost of receiving it.

A fetch that waits for its batch hides that cost. The program has the batch only when its message has been unpickled and
the memory of its tensors has been fetched from the worker. That takes milliseconds of the main thread, for a batch that
was ready as well as for one that was waited for:

    main thread  |.......... waits for a message ..........|--- unpacks it ---|--- hands it out ---|
                 fetch begins                              arrived            unpacked             fetch ends

Batches of several workers come through one pipe, in the order in which they were built. A batch that is early is
unpacked within an earlier fetch. With pinned memory a thread unpacks; a batch then arrives when the main thread takes
it from that thread.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """Times (CLOCK_MONOTONIC, ns) at which a batch arrived (if ``waited``; else reading it began) and was unpacked."""

    arrived_ns: int
    unpacked_ns: int
    waited: bool


class Arrivals:
    """Records the arrivals of one DataLoader iterator; a call returns the last. Unknown if torch's queues differ."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._arrived_ns = 0
        self._arrivals: dict[int, Arrival] = {}  # arrivals of batches that were not handed out yet
        queue = getattr(iterator, "_data_queue", None)
        # A multiprocessing queue calls _recv_bytes once its pipe is readable, a queue of threads _get once it has one.
        for name in ("_recv_bytes", "_get"):
            if (method := getattr(queue, name, None)) is not None and hasattr(iterator, "_rcvd_idx"):
                empty = looks_empty(queue)
                # Only a pipe may be read before it has data; a queue of threads holds its lock here.
                setattr(queue, name, self._arriving(method, empty if name == "_recv_bytes" else lambda: False))
                queue.get = self._unpacking(queue.get, empty)  # type: ignore[union-attr]
                break

    def __call__(self) -> Arrival | None:
        """Return the arrival times of the batch that the iterator handed out last; None if they are unknown."""
        return self._arrivals.pop(self._iterator._rcvd_idx - 1, None) if self._arrivals else None

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
                self._arrivals[number] = Arrival(self._arrived_ns, monotonic_ns(), waited)
            return message

        return unpacking


def looks_empty(queue: Any) -> Callable[[], bool]:
    """Return a function that checks if ``queue`` is empty, in a tenth of the time of the queue's own method."""
    if not hasattr(queue, "_reader"):
        return lambda: not queue.qsize()
    poll = select.poll()
    poll.register(queue._reader.fileno(), select.POLLIN)
    return lambda: not poll.poll(0)
