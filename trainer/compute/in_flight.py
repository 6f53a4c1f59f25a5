"""Keeps batches whose copy to a device outlasts the call that started it, until it is done.

The memory of a batch may be written again as soon as nothing holds it (:mod:`trainer.data.buffers`). An asynchronous
copy from page-locked memory returns at once and reads it later, of which Python knows nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainer.data.batch import Batch


class InFlight:
    """Batches that are being copied, in the order of their copies, which is the order in which they are done."""

    def __init__(self) -> None:
        self._held: deque[tuple[Callable[[], bool], Batch]] = deque()

    def hold(self, batch: Batch, is_done: Callable[[], bool]) -> None:
        """Keep ``batch`` until ``is_done()``; let go of those before it whose copies are done by now."""
        while self._held and self._held[0][0]():
            self._held.popleft()
        self._held.append((is_done, batch))

    def __len__(self) -> int:
        return len(self._held)
