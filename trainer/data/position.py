"""Says where a data path goes on after a batch, so that a resumed training reads on as if it had never ended.

The order of the documents does not depend on how many of them are read at once. So the place of one document in its
worker's endless sequence, and how much of it was used, say everything: what was read ahead and held back (in a
packer, in a loader's queue) is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Position(NamedTuple):
    """Where worker ``worker`` goes on. It travels with each batch: a few integers.

    ``document``: the first document that is not wholly used, counted over all epochs of the worker's shard; ``used``:
    its tokens that batches hold already; ``per_epoch``: documents of the shard in an epoch (0 where nobody knows).
    A source of the user's own counts batches in place of documents. ``batches``: how many the worker has made.
    ``state``: what a user's dataset says of itself (``state_dict``), asked for where ``keeps_state``.
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
        """How many epochs of the shard are used; None where nobody knows how long one is."""
        return self.document / self.per_epoch if self.per_epoch else None


class Bookmark:
    """Follows which documents' tokens have gone into batches: a few operations for each read and each batch."""

    def __init__(self, start: Position) -> None:
        import numpy as np

        self.document = start.document
        self._ends = np.empty(0, dtype=np.int64)  # of the documents that are held, counted from the first one's begin
        self._added = self._start = 0
        self._packed = start.used

    def add(self, tokens: NDArray[Any]) -> None:
        """The next documents were read; ``tokens``: how many each has (of a path of one document a row: 1, or 0)."""
        import numpy as np

        if len(tokens):
            ends = self._added + np.cumsum(tokens, dtype=np.int64)
            self._ends, self._added = np.concatenate([self._ends, ends]), int(ends[-1])

    def pack(self, tokens: int) -> None:
        """So many tokens went into a batch."""
        self._packed += tokens
        if done := int(self._ends.searchsorted(self._packed, side="right")):
            self._start = int(self._ends[done - 1])
            self._ends = self._ends[done:]
            self.document += done

    @property
    def used(self) -> int:
        """Tokens of the first document that is not wholly used which batches hold already."""
        return self._packed - self._start


class DataPosition:
    """Where the batches go on: how many were received, and the latest position of each part of the documents.

    A part is one worker's; ``positions`` has them by the part's number among those of all ranks.

    DataLoader takes a batch of each worker in turn. So the worker that the next batch comes from follows from the
    number of batches received.
    """

    def __init__(
        self,
        workers: int,
        received: int = 0,
        positions: Mapping[int, Position] | None = None,
        keeps_state: bool = False,
    ) -> None:
        """``workers``: at least 1, the process itself where there are no loader workers; ``keeps_state``: whether a
        user's dataset is asked for its state with every batch, only where it will be kept."""
        self.workers, self.received, self.keeps_state = workers, received, keeps_state
        self.positions = dict(positions or {})

    def receive(self, position: Position | None) -> None:
        """A batch was received."""
        self.received += 1
        if position is not None:
            self.positions[position.worker] = position

    def role(self, process: int) -> int:
        """Which worker's part loader process ``process`` takes, so that the turns go on where they were."""
        return (process + self.received) % self.workers

    def of(self, part: int) -> Position:
        """Where the worker of that part goes on."""
        return self.positions.get(part, Position(part))._replace(keeps_state=self.keeps_state)

    @property
    def epochs(self) -> float | None:
        """Whole and part epochs that every worker has used at least; None where nobody knows."""
        if len(self.positions) < self.workers:
            return 0.0
        found = [position.epochs for position in self.positions.values()]
        return None if None in found else min(one for one in found if one is not None)

    def state_dict(self) -> Any:
        """It as plain data, and whatever a user's dataset said of itself."""
        return {
            "workers": self.workers,
            "received": self.received,
            "positions": [list(self.positions[worker]) for worker in sorted(self.positions)],
        }

    @classmethod
    def from_state(cls, state: Any, workers: int, keeps_state: bool = False) -> DataPosition:
        """What :meth:`state_dict` gave. Raises InputError for another number of workers, or what is none."""
        try:
            found = [Position(*one) for one in state["positions"]]
            by_worker = {one.worker: one for one in found}
            position = cls(int(state["workers"]), int(state["received"]), by_worker, keeps_state)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint's data position cannot be read ({error!r})") from error
        if position.workers != max(1, workers):
            raise InputError(
                f"data.workers: {workers}, but the checkpoint was made with {position.workers}; allowed: the same"
            )
        return position


def epochs_of(position: DataPosition) -> float | None:
    """Return the epochs that are done at ``position``, which changes as the batches are read."""
    return position.epochs
