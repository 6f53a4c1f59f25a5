"""Builds packed batches straight out of flat tokens: ``tokens-mmap``, and ``tokens-stream`` with zero-copy access.

Each token is widened once, from the memory map (or Arrow's buffer) into a buffer that is used again and again; the
labels are a second copy of the row. Python does a few dozen operations for a batch, however many tokens, rows and
documents it has. For many short documents one gather copies them all; a few long ones are copied piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer import telemetry
from trainer.config import DataConfig
from trainer.data.batch import IGNORED, Batch
from trainer.data.buffers import Buffers
from trainer.data.flat_plan import DocumentPlan, RowPlan, TokenStretch, WindowPlan
from trainer.data.formats.flat import FlatTokens, open_flat, token_type
from trainer.data.masking import Masker
from trainer.data.order import IndexSampler
from trainer.data.packing import positions_within
from trainer.data.position import Position
from trainer.data.prepare import Prepared
from trainer.data.sources import flat_of_lists
from trainer.errors import InputError
from trainer.inject import Injector

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A batch of more pieces is gathered at once instead of copied piece by piece. A piece costs 0.25 us in addition to its
# tokens, a gather 1 ns per token: they are even at 35 pieces of 8192 tokens (tests.benchmarks.batches --copies).
MAX_PIECES_OF_A_ROW = 32


class FlatPipeline:
    """Makes packed batches from flat tokens, one at a time. ``marked``: with spans, and repeated reads (a dose)."""

    def __init__(
        self,
        config: DataConfig,
        prepared: Prepared,
        order: IndexSampler,
        injector: Injector,
        marked: bool,
        draws: tuple[int, int],
        start: Position,
        buffers: Buffers,
        every: tuple[int, int],
    ) -> None:
        """Set up the pipeline. ``draws``: (seed, worker) of masks. ``every``: (offset, stride) of the batches."""
        self._config, self._prepared, self._order, self._start = config, prepared, order, start
        self._rows, self._length = config.batch_size, config.sequence_length
        self._size = self._rows * self._length
        self._tokens: NDArray[Any] | None = None
        self._plan: RowPlan | None = None
        self._injector, self._buffers, self._every = injector, buffers, every
        self._per_epoch, self._separated = order.documents_per_epoch, config.documents == "separated"
        self._extra_reads, self._marked = config.extra_reads if marked else 0, marked
        self._masker: Masker | None = None
        if prepared.masking is not None and config.global_order:  # A batch's masks must not depend on its worker.
            self._masker = Masker(prepared.masking, draws[0], 0, every[0] + start.batches * every[1], every[1])
        elif prepared.masking is not None:
            self._masker = Masker(prepared.masking, *draws, start.batches)
        self._worker, self._batches = start.worker, start.batches
        self._wide = np.arange(self._size)
        self._narrow: NDArray[Any] = np.empty(0)
        self._costs = any(injector.cost_ms(name) for name in (*telemetry.STAGES, "transfer"))
        self._span: Callable[[str], AbstractContextManager[Any]] = telemetry.span if marked else nullcontext
        injector.skip(start.batches)

    @property
    def remainder(self) -> int:
        """Number of tokens held back because they do not fill a row yet."""
        return self._plan.remainder if self._plan is not None else 0

    def next_batch(self) -> Batch | None:
        """Return the next batch with its trace, after its declared costs; None at the end of one epoch."""
        injector, span, costs = self._injector, self._span, self._costs
        first, stride = self._every
        with span("read"):
            plan = self._plan or self._begin()
            if stride > 1:  # Other workers make the rows between two batches of this one.
                plan.skip((stride - 1 if self._batches else first) * self._rows)
            stretch = plan.next(self._rows)
            if stretch is not None:
                buffer = self._buffers.take()
                ids, labels = buffer.flat_ids, buffer.flat_labels
                if stretch.tokens < self._size:
                    ids, labels = ids[: stretch.tokens], labels[: stretch.tokens]
                self._widen(stretch, ids)
                for _ in range(self._extra_reads):
                    self._widen(stretch, ids)
            if costs:
                injector.spend("read")
        if stretch is None:
            return None
        if costs and injector.cost_ms("tokenize"):  # A declared cost is per batch, even if nothing is tokenized.
            with span("tokenize"):
                injector.spend("tokenize")
        with span("pack"):
            size, length = stretch.tokens, self._length
            rows = size // length
            labels[:] = ids
            labels[stretch.starts] = IGNORED
            inputs, targets, _ = buffer.tensors(rows)
            trained = rows * (length - 1) - stretch.inner
            self._batches += 1
            position = Position(self._worker, stretch.document, stretch.used, self._batches, self._per_epoch)
            batch = Batch(inputs, targets, None, size, trained, rows, position=position)
            if self._separated:
                batch.position_ids = positions_within(stretch.starts, rows, length)
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
        flat, start = open_tokens(self._config, self._prepared), self._start
        if self._config.shuffle == "windows":
            self._plan = WindowPlan(flat, self._order, self._length, start.document)
        else:
            self._plan = DocumentPlan(flat, self._order, self._length, start.document, start.used)
        self._tokens, self._narrow = flat.tokens, np.empty(self._size, dtype=flat.tokens.dtype)
        return self._plan

    def _widen(self, stretch: TokenStretch, ids: NDArray[np.int64]) -> None:
        """Copy the tokens of ``stretch`` into ``ids``, its pieces end to end, as int64."""
        tokens, size = self._tokens, stretch.tokens
        assert tokens is not None
        if stretch.adjacent or len(stretch.sources) == 1:
            begin = stretch.sources.item(0) + stretch.cut
            ids[:] = tokens[begin : begin + size]
        elif len(stretch.sources) <= MAX_PIECES_OF_A_ROW:
            begins, ends = stretch.sources.tolist(), stretch.ends.tolist()
            begins[0] += stretch.cut
            ends[-1] -= stretch.overhang
            views = [tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
            np.concatenate(views, out=ids, casting="unsafe")
        else:
            lengths = stretch.ends - stretch.sources
            lengths[0] -= stretch.cut
            lengths[-1] -= stretch.overhang
            offsets = stretch.sources - lengths.cumsum()  # each piece's place in the tokens minus that in the stretch
            offsets += lengths
            offsets[0] += stretch.cut
            indices = offsets.repeat(lengths)
            indices += self._wide[:size]
            narrow = self._narrow[:size]
            tokens.take(indices, out=narrow, mode="clip")  # Every place is within; mode "raise" would copy once more.
            ids[:] = narrow


def open_tokens(config: DataConfig, prepared: Prepared) -> FlatTokens:
    """Return the flat tokens of ``tokens-mmap``, or the lists of ``tokens-stream`` as such. Raises InputError."""
    folder, documents = prepared.pretokenized, prepared.corpus.documents
    assert folder is not None, "prepare() was given another data path"
    if config.path != "tokens-mmap":
        return flat_of_lists(str(Path(folder) / "data.parquet"), "tokens", documents)
    flat = open_flat(Path(folder), token_type(prepared.tokenizer.vocab_size))
    if flat.documents < documents:
        raise InputError(f"{folder}: {flat.documents} documents, {documents} when it was prepared; run it again")
    # Slices of numpy's memmap class cost four times as much as slices of a plain array over the same memory.
    return FlatTokens(flat.tokens.view(np.ndarray), flat.places[: documents + 1].view(np.ndarray))


def windows_of(config: DataConfig, prepared: Prepared) -> tuple[int, NDArray[np.int64] | None]:
    """Return the number of windows without a held-out token, and their numbers (None: all). Raises InputError."""
    flat = open_tokens(config, prepared)
    tokens = len(flat.tokens)
    if tokens < config.sequence_length:
        raise InputError(
            f"data.shuffle: windows of {config.sequence_length} tokens, but {prepared.corpus.name} has {tokens} under "
            "this tokenizer; allowed: a smaller data.sequence_length, or shuffle true, documents, false"
        )
    count = tokens // config.sequence_length
    if prepared.split is None:
        return count, None
    kept = _windows_without(prepared.split.held_out_rows(), flat, config.sequence_length, count)
    if not len(kept):
        raise InputError(
            f"data.shuffle: windows of {config.sequence_length} tokens, and a document that is held out reaches into "
            f"each of {prepared.corpus.name}'s {count}; allowed: a smaller data.sequence_length or share that is held "
            "out, or shuffle true, documents, false"
        )
    return len(kept), kept


def _windows_without(documents: NDArray[np.int64], flat: FlatTokens, length: int, count: int) -> NDArray[np.int64]:
    """Return the numbers of the windows of ``length`` tokens that have no token of ``documents``, ascending."""
    begins, ends = flat.places[documents], flat.places[documents + 1]
    is_nonempty = ends > begins
    # Add 1 at a document's first window and -1 after its last one: a running sum above 0 marks a window with a part of
    # a document. The tokens after the last whole window count as one more window.
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, begins[is_nonempty] // length, 1)
    np.add.at(change, (ends[is_nonempty] - 1) // length + 1, -1)
    return np.flatnonzero(np.cumsum(change[:count]) == 0)
