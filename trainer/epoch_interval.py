"""Reports the end of every interval of a number of epochs, like every_steps for steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainer.errors import InputError

_SLACK = 1e-9  # intervals; covers the rounding of the division at the end of an epoch

Epochs = Callable[[], float | None]  # returns the completed epochs; None if their length is unknown


class EpochInterval:
    """Tells after which steps an interval of ``every`` epochs ends, such as for checkpoints or evaluation."""

    def __init__(self, every: float, epochs: Epochs, key: str) -> None:
        """Count from here. ``epochs``: returns the finished epochs. ``key``: names the interval in an error."""
        self._every, self._epochs, self._key = every, epochs, key
        self._counted = self._done()

    def is_over(self) -> bool:
        """Return True if an interval ended since the last call of :meth:`ends`."""
        return self._done() > self._counted

    def ends(self) -> bool:
        """Return True once for the step in which an interval ended. Call it after each step."""
        previous, self._counted = self._counted, self._done()
        return self._counted > previous

    def _done(self) -> int:
        epochs = self._epochs()
        if epochs is None:
            raise InputError(f"{self._key}: the length of an epoch of these batches is unknown; give every_steps")
        return math.floor(epochs / self._every + _SLACK)
