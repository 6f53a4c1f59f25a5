"""Queues of processes that a program has made its own, as DataLoader's multiprocessing_context lets it."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.multiprocessing


class _Impatient(Queue):  # type: ignore[type-arg]
    """Begins to read at once, with no limit of time."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get()


class _Own(Queue):  # type: ignore[type-arg]
    """Reads from its pipe by itself."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        found = ForkingPickler.loads(self._reader.recv_bytes())
        self._sem.release()
        return found


def own_queue(way: str) -> Any:
    """A queue that brings one message, (0, "a batch"): while it is being read from, or before."""
    kind = _Impatient if way == "reads before there is a message" else _Own
    pipe: Any = kind(ctx=torch.multiprocessing.get_context("fork"))
    pipe._sem.acquire()

    def send() -> None:  # as put does it, but for the thread that sends
        pipe._writer.send_bytes(ForkingPickler.dumps((0, "a batch")))

    def read_late() -> Any:
        send()
        return pipe._reader.recv_bytes()

    if kind is _Impatient:
        pipe._recv_bytes = read_late
    else:
        send()
    return pipe
