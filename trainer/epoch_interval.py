"""Says when another so many epochs of the documents are done, as every_steps does for steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainer.errors import InputError

_SLACK = 1e-9  # of intervals: an epoch that ends with a step is done, whatever the division rounds to

Epochs = Callable[[], float | None]  # that are done; None where an epoch has no known length


class EpochInterval:
    """Counts the intervals of ``every`` epochs that are done."""

    def __init__(self, every: float, epochs: Epochs, key: str) -> None:
        """Count from where the training stands. ``key``: names the interval in an error."""
        self._every, self._epochs, self._key = every, epochs, key
        self._counted = self._done()

    def is_over(self) -> bool:
        """Return True if an interval ended since the last call of :meth:`ends`."""
        return self._done() > self._counted

    def ends(self) -> bool:
        """Return True once for the step in which an interval ended. Call it after each step."""
        before, self._counted = self._counted, self._done()
        return self._counted > before

    def _done(self) -> int:
        epochs = self._epochs()
        if epochs is None:
            raise InputError(f"{self._key}: an epoch of these batches has no known length; give every_steps")
        return math.floor(epochs / self._every + _SLACK)
