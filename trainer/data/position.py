"""Position of a data path after a batch, from which a resumed training continues as if it had never stopped.

The order of the documents does not depend on how many are read at once. The place of one document in its worker's
endless sequence, and how much of it was used, are therefore enough. Documents that were read ahead (in a packer or in a
loader's queue) are read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Position(NamedTuple):
    """Position of worker ``worker``: a few integers that travel with each batch.

    ``document``: the first document that is not wholly used, counted over all epochs of the worker's shard; ``used``:
    its tokens that batches hold already; ``per_epoch``: documents of the shard in an epoch (0: unknown). A user's
    source counts batches instead of documents. ``batches``: batches that the worker has made. ``state``: state_dict of
    a user's dataset, if ``keeps_state``.
    """

    worker: int = 0
    document: int = 0
    used: int = 0
    batches: int = 0
    per_epoch: int = 0
    state: Any = None
    keeps_state: bool = False

    @property
    def epochs(self) -> float | None:
        """Number of epochs of the shard that batches have used, with fractions; None if it is unknown."""
        return self.document / self.per_epoch if self.per_epoch else None


class Bookmark:
    """Tracks which documents' tokens have gone into batches. It gives the place from which a resumed run continues."""

    def __init__(self, start: Position) -> None:
        import numpy as np

        self.document = start.document
        self._ends = np.empty(0, dtype=np.int64)  # ends of the held documents, counted from the first one's begin
        self._added = self._start = 0
        self._packed = start.used

    def add(self, tokens: NDArray[Any]) -> None:
        """Add documents that were read. ``tokens``: length of each (in padded rows: 1 if it has a token, else 0)."""
        import numpy as np

        if len(tokens):
            ends = self._added + np.cumsum(tokens, dtype=np.int64)
            self._ends, self._added = np.concatenate([self._ends, ends]), int(ends[-1])

    def pack(self, tokens: int) -> None:
        """Advance by ``tokens`` tokens (rows, if padded) that went into a batch."""
        self._packed += tokens
        if done := int(self._ends.searchsorted(self._packed, side="right")):
            self._start = int(self._ends[done - 1])
            self._ends = self._ends[done:]
            self.document += done

    @property
    def used(self) -> int:
        """Number of tokens of ``document`` that batches hold already."""
        return self._packed - self._start


class DataPosition:
    """Position of all workers: received batches, which tell the next one's worker, and each shard's position."""

    def __init__(
        self,
        workers: int,
        received: int = 0,
        positions: Mapping[int, Position] | None = None,
        keeps_state: bool = False,
    ) -> None:
        """Start after ``received`` batches of ``workers`` workers (1: this process). ``positions``: of each shard."""
        self.workers, self.received, self.keeps_state = workers, received, keeps_state
        self.positions = dict(positions or {})

    def receive(self, position: Position | None) -> None:
        """Count a received batch. ``position``: position of its worker after it; None if it has none."""
        self.received += 1
        if position is not None:
            self.positions[position.worker] = position

    def role(self, process: int) -> int:
        """Return whose shard process ``process`` reads: after a resume, process 0 makes the next batch."""
        return (process + self.received) % self.workers

    def of(self, part: int) -> Position:
        """Return the position of shard ``part``; its beginning if no batch of it was received."""
        return self.positions.get(part, Position(part))._replace(keeps_state=self.keeps_state)

    @property
    def epochs(self) -> float | None:
        """Completed epochs, with fractions: the minimum over all workers. None if epoch lengths are unknown."""
        if len(self.positions) < self.workers:
            return 0.0
        epochs = [position.epochs for position in self.positions.values()]
        return None if None in epochs else min(count for count in epochs if count is not None)

    def state_dict(self) -> Any:
        """Return the position as plain data for a checkpoint, including the state of a user's dataset."""
        return {
            "workers": self.workers,
            "received": self.received,
            "positions": [list(self.positions[worker]) for worker in sorted(self.positions)],
        }

    @classmethod
    def from_state(cls, state: Any, workers: int, keeps_state: bool = False) -> DataPosition:
        """Return the position of :meth:`state_dict`. Raises InputError if it is damaged or of other ``workers``."""
        try:
            positions = [Position(*values) for values in state["positions"]]
            by_worker = {position.worker: position for position in positions}
            restored = cls(int(state["workers"]), int(state["received"]), by_worker, keeps_state)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint's data position cannot be read ({error!r})") from error
        if restored.workers != max(1, workers):
            raise InputError(
                f"data.workers: {workers}, but the checkpoint was made with {restored.workers}; allowed: the same"
            )
        return restored


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
