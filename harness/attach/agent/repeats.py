"""Count rows on the CPU that an epoch serves again where commands take turns, as their losses are not recorded."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from _harness_agent import batches, guard, record
from torch import Tensor

NOTE = "repeated_rows"  # note: number of repeated rows among the first 1, 2, 4, ... rows
COUNTED_ROWS_MAX = 1 << 16  # maximum rows per run; their digests take about 5 MB
DIGESTED_VALUES_MAX = 1 << 16  # maximum values of a batch; in a larger batch, each n-th value counts
WORD_BYTES = 8


class _Repeats:
    """Counts of one process: digests of the rows seen in this epoch, number of rows, and of repeated rows."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.rows = self.repeated = 0
        self.counts: list[int] = []
        self.weights: dict[int, Any] = {}


_rows = _Repeats()


def forget() -> None:
    global _rows
    _rows = _Repeats()


def epoch_ended() -> None:
    """Start the next epoch: all its rows count as new."""
    _rows.seen.clear()


def batch_arrived(batch: Any) -> None:
    """Count rows of a training batch that this epoch already served. Only called where commands take turns."""
    tally = _rows
    if batches.state.unknown or tally.rows >= COUNTED_ROWS_MAX:
        return
    try:
        from _harness_agent import loading

        digests = _digests(loading.first_tensor(batch))
    except Exception as error:
        guard.let_through(error)
        digests = []
    if not digests:
        tally.rows = COUNTED_ROWS_MAX  # Later batches have the same form.
    for digest in digests:
        tally.rows += 1
        tally.repeated += digest in tally.seen
        tally.seen.add(digest)
        if tally.rows & (tally.rows - 1) == 0:
            tally.counts.append(tally.repeated)
            record.note(NOTE, tuple(tally.counts))


def _digests(batch: Any) -> list[int]:
    """Return per row the sum of values x random odd numbers, modulo 2**64; empty unless a plain CPU tensor."""
    numpy = sys.modules.get("numpy")
    plain = type(batch) is Tensor and batch.is_cpu and batch.layout is torch.strided and not batch.is_nested
    if numpy is None or not plain or batch.ndim < 2 or not batch.numel() or not batch.is_contiguous():
        return []
    content = batch.detach().reshape(len(batch), -1).view(torch.uint8).numpy()
    values = content.view(numpy.int64) if content.shape[1] % WORD_BYTES == 0 else content.astype(numpy.int64)
    values = values[:, :: -(-values.size // DIGESTED_VALUES_MAX)]
    width = values.shape[1]
    if width not in _rows.weights:
        drawn = random.Random(0)  # the program's random state does not change
        _rows.weights[width] = numpy.array([2 * drawn.getrandbits(62) + 1 for _ in range(width)], numpy.int64)
    digests: list[int] = (values @ _rows.weights[width]).tolist()
    return digests
