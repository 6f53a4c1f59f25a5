"""Counts rows that training receives again, by content. Arms without a loss are compared by this count.

A batch that is trained four times is cheap to make, and no other figure of an emulated device shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.data.batch import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COUNTED_ROWS_MAX = 1 << 16  # rows of a run; their digests take about 5 MB


class RepeatedRows:
    """Counts the rows of one run that it has trained on before, by digests of their token ids."""

    def __init__(self, *, by_epoch: bool) -> None:
        """Start counting. ``by_epoch``: a row counts as new in each epoch, because a corpus has each document once an
        epoch.
        """
        self._by_epoch = by_epoch
        self._seen: set[tuple[int, int]] = set()
        self._rows = self._repeated = 0
        self._counts: list[int] = []
        self._weights: dict[int, NDArray[np.int64]] = {}

    def add(self, batch: Batch) -> None:
        """Count the rows of a batch, at about 1 ns a token. Rows after the first COUNTED_ROWS_MAX are ignored."""
        if self._rows >= COUNTED_ROWS_MAX:
            return
        epoch = self._epoch(batch)
        for digest in self._digests(batch):
            self._rows += 1
            self._repeated += (epoch, digest) in self._seen
            self._seen.add((epoch, digest))
            if self._rows & (self._rows - 1) == 0:
                self._counts.append(self._repeated)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of repeated rows among the first 1, 2, 4, ... rows. Runs of any length share some of these counts."""
        return tuple(self._counts)

    def _epoch(self, batch: Batch) -> int:
        position = batch.position
        if not self._by_epoch or position is None or not position.per_epoch:
            return 0
        return max(0, position.document - 1) // position.per_epoch  # last document with a part in the batch

    def _digests(self, batch: Batch) -> list[int]:
        """Return one 64-bit digest per row: the sum of its ids times random odd numbers, modulo 2**64.

        Equal rows have equal digests.
        """
        import numpy as np

        ids = batch.input_ids.numpy()
        width = ids.shape[1]
        if width not in self._weights:
            numbers = np.random.default_rng(0).integers(-(2**62), 2**62, width, dtype=np.int64)
            self._weights[width] = np.asarray(numbers * 2 + 1)
        digests: list[int] = (ids @ self._weights[width]).tolist()
        return digests
