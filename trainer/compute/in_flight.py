"""Keeps batches until their asynchronous copy to a device is done.

The memory of a batch may be reused as soon as nothing holds it (:mod:`trainer.data.buffers`). An asynchronous copy from
page-locked memory returns at once and reads it later, without a reference in Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainer.data.batch import Batch


class InFlight:
    """Holds batches while they are copied to a device, so that their memory is not reused.

    They are in the order in which their copies end.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Callable[[], bool], Batch]] = deque()

    def hold(self, batch: Batch, is_done: Callable[[], bool]) -> None:
        """Keep ``batch`` until ``is_done()`` returns True. Drop earlier batches whose copies are done."""
        while self._held and self._held[0][0]():
            self._held.popleft()
        self._held.append((is_done, batch))

    def __len__(self) -> int:
        return len(self._held)
