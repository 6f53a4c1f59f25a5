"""Builds packed batches straight out of flat tokens: ``tokens-mmap``, and ``tokens-stream`` with zero-copy access.

Each token is widened once, from the memory map (or Arrow's buffer) into a buffer that is used again and again; the
labels are a second copy of the row. Python does a few dozen operations for a batch, however many tokens, rows and
documents it has. For many short documents one gather copies them all; a few long ones are copied piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainer import telemetry
from trainer.data.batch import IGNORED, Batch
from trainer.data.buffers import Buffers
from trainer.data.flat_plan import RowPlan, TokenStretch
from trainer.data.packing_arrays import positions_within
from trainer.data.position import Position
from trainer.inject import Injector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.data.masking import Masker

# Pieces of a batch up to which each is copied by itself. A piece costs some 0.25 us beside its tokens, a gather some
# 1 ns for each token: of 8192 tokens they are even at 35 pieces (python -m tests.benchmarks.batches --copies).
MAX_PIECES_OF_A_ROW = 32


class EveryNth(NamedTuple):
    """Which of the batches of one global order a shard makes: number ``first``, and every ``of``-th after it."""

    first: int = 0
    of: int = 1


class FlatPipeline:
    """Runs a packed data path over flat tokens in one process, one batch at a time.

    ``opened`` opens the tokens, within the first batch's reading, and says what to make of them. A dose
    (``extra_reads``) repeats the reading of each batch inside its span. Nothing is repeated or marked where ``marked``
    is False.
    """

    def __init__(
        self,
        opened: Callable[[], tuple[NDArray[Any], RowPlan]],
        shape: tuple[int, int],
        per_epoch: int,
        injector: Injector,
        buffers: Buffers,
        *,
        masker: Masker | None = None,
        separated: bool = False,
        every: EveryNth = EveryNth(),  # noqa: B008  # a tuple never changes
        extra_reads: int = 0,
        marked: bool = True,
        start: Position = Position(),  # noqa: B008  # a tuple never changes
    ) -> None:
        """``shape``: rows and tokens of each. ``per_epoch``: documents (or windows) of the shard in an epoch."""
        self._open, self._rows, self._length = opened, *shape
        self._size = self._rows * self._length
        self._tokens: NDArray[Any] | None = None
        self._plan: RowPlan | None = None
        self._per_epoch, self._injector, self._buffers = per_epoch, injector, buffers
        self._masker, self._separated, self._every = masker, separated, every
        self._skips = self._every.of > 1
        self._extra_reads, self._marked = extra_reads if marked else 0, marked
        self._worker, self._batches = start.worker, start.batches
        self._wide = np.arange(self._size)
        self._narrow: NDArray[Any] = np.empty(0)
        self._costs = any(injector.cost_ms(name) for name in (*telemetry.STAGES, "transfer"))
        self._span: Callable[[str], AbstractContextManager[None]] = telemetry.span if marked else _unmarked
        injector.skip(start.batches)

    @property
    def remainder(self) -> int:
        """Tokens held back because they do not fill a row yet."""
        return self._plan.remainder if self._plan is not None else 0

    def next_batch(self) -> Batch | None:
        """Build the next batch: spend the declared costs inside its stages and attach its trace."""
        injector, span, costs = self._injector, self._span, self._costs
        with span("read"):
            plan = self._plan or self._begin()
            if self._skips:
                plan.skip(self._skipped())
            found = plan.next(self._rows)
            if found is not None:
                buffer = self._buffers.take()
                ids, labels = buffer.flat_ids, buffer.flat_labels
                if found.tokens < self._size:
                    ids, labels = ids[: found.tokens], labels[: found.tokens]
                self._widen(found, ids)
                for _ in range(self._extra_reads):
                    self._widen(found, ids)
            if costs:
                injector.spend("read")
        if found is None:
            return None
        if costs and injector.cost_ms("tokenize"):  # it is per batch, even where nothing is tokenized
            with span("tokenize"):
                injector.spend("tokenize")
        with span("pack"):
            size, length = found.tokens, self._length
            rows = size // length
            labels[:] = ids
            labels[found.starts] = IGNORED
            inputs, targets, _ = buffer.tensors(rows)
            trained = rows * (length - 1) - found.inner
            self._batches += 1
            position = Position(self._worker, found.document, found.used, self._batches, self._per_epoch)
            batch = Batch(inputs, targets, None, size, trained, rows, position=position)
            if self._separated:
                batch.position_ids = positions_within(found.starts, rows, length)
            if self._masker is not None:
                batch = self._masker.mask(batch)
            if costs:
                injector.spend("pack")
        if costs:
            injector.spend("transfer")
        if self._marked:
            batch.trace = telemetry.take()
        return batch

    def _begin(self) -> RowPlan:
        self._tokens, self._plan = self._open()
        self._narrow = np.empty(self._size, dtype=self._tokens.dtype)
        return self._plan

    def _skipped(self) -> int:
        """Rows of the batches that others make before the next one."""
        batches = self._every.of - 1 if self._batches else self._every.first
        return batches * self._rows

    def _widen(self, found: TokenStretch, ids: NDArray[np.int64]) -> None:
        """Copy the pieces, end to end, as int64."""
        tokens, size = self._tokens, found.tokens
        assert tokens is not None
        if found.adjacent or len(found.sources) == 1:
            begin = found.sources.item(0) + found.cut
            ids[:] = tokens[begin : begin + size]
        elif len(found.sources) <= MAX_PIECES_OF_A_ROW:
            begins, ends = found.sources.tolist(), found.ends.tolist()
            begins[0] += found.cut
            ends[-1] -= found.overhang
            views = [tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
            np.concatenate(views, out=ids, casting="unsafe")
        else:
            lengths = found.ends - found.sources
            lengths[0] -= found.cut
            lengths[-1] -= found.overhang
            offsets = found.sources - lengths.cumsum()  # of each piece's place in the tokens from that in the stretch
            offsets += lengths
            offsets[0] += found.cut
            at = offsets.repeat(lengths)
            at += self._wide[:size]
            narrow = self._narrow[:size]
            tokens.take(at, out=narrow, mode="clip")  # "raise" would copy once more; every place is within
            ids[:] = narrow


def _unmarked(_: str) -> AbstractContextManager[None]:
    return nullcontext()
