"""Builds batches: a data pipeline of source, tokenization and packing, with every stage marked for the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any

import numpy as np

from trainer import telemetry
from trainer.config import DataConfig, DataInject
from trainer.data.batch import Batch, BatchPipeline, RepeatedBatches, to_repeat
from trainer.data.buffers import BatchBuffers, Buffers
from trainer.data.engines.base import Encoded, with_end_of_text
from trainer.data.flat_pipeline import FlatPipeline, windows_of
from trainer.data.masking import Masker
from trainer.data.order import ComputedSampler, EmptyEpochs, IndexSampler, ShardedSampler
from trainer.data.packing import Document, PaddedRows, make_packer
from trainer.data.position import Bookmark, Position
from trainer.data.prepare import Prepared
from trainer.data.pretokenize import padding_id
from trainer.data.sources import text_source, token_source
from trainer.data.strategies import by_strategy
from trainer.data.tokenizers import document_tokens, load_tokenizer
from trainer.data.user_source import UserPipeline
from trainer.errors import InputError
from trainer.inject import Injector

_MOST_ROWS_PER_READ = 1024
# Packed arrays: each read fetches 1.5 to 6 times the tokens that the batch lacks, because a second read costs as much
# as the first. The factor grows while a read takes less than a millisecond.
_LEAST_AHEAD, _MOST_AHEAD, _SHORT_READ_S = 1.5, 6.0, 1e-3
_HELD_OUT = 0, 2**31  # seed and worker for the masks of held-out documents: no run has that worker

# Each `data.source` that this process has opened: True if it gave an iterable dataset.
iterable_sources: dict[str, bool] = {}


class DataPipeline:
    """Runs one data path in one process: read, tokenize, pack, one batch at a time. :func:`pipeline_of` makes it.

    A dose (``extra_reads``, ``extra_tokenizations``) repeats a stage's work in its span, only if ``marked``.
    """

    def __init__(
        self,
        config: DataConfig,
        prepared: Prepared,
        order: IndexSampler,
        injector: Injector,
        marked: bool = True,
        draws: tuple[int, int] = (0, 0),
        start: Position = Position(),  # noqa: B008  # a tuple never changes
        buffers: Buffers | None = None,
    ) -> None:
        """Set up the stages. ``draws``: seed and worker of masks. ``buffers``: memory for batches; None: own."""
        corpus = prepared.corpus
        reads_text, scalar = config.path.startswith("text-"), config.access == "scalar"
        self._packed, self._batch_size, self._length = is_packed(config), config.batch_size, config.sequence_length
        self._source: Any
        if reads_text:
            self._source = text_source(config, corpus.files, corpus.column, corpus.documents)
        else:
            assert prepared.pretokenized is not None, "prepare() was given another data path"
            self._source = token_source(config, prepared.pretokenized, corpus.documents)
        self._tokenizer = by_strategy(load_tokenizer(prepared.tokenizer), config) if reads_text else None
        self._eos_id = prepared.tokenizer.eos_id
        self._scalar, separated = scalar, config.documents == "separated"
        memory = None if scalar else buffers or buffers_of(config)
        pad_id = padding_id(prepared.tokenizer)
        self._packer = make_packer(self._packed, self._length, pad_id, memory, separated=separated)
        self._order, self._injector, self._marked = order, injector, marked
        self._masker = None if prepared.masking is None else Masker(prepared.masking, *draws, start.batches)
        self._charged: set[str] = set()
        self._extra_reads = config.extra_reads if marked else 0
        self._extra_tokenizations = config.extra_tokenizations if marked else 0
        # The running mean of tokens per document determines how many documents to read for packed rows. It starts as a
        # guess.
        self._documents, self._tokens = 1, self._length
        self._ahead = _LEAST_AHEAD
        self._worker, self._batches = start.worker, start.batches
        self._per_epoch, self._skip = order.documents_per_epoch, start.used
        self._bookmark = Bookmark(start)
        if start.document:
            order.seek(start.document)
        injector.skip(start.batches)
        self._empty_epochs = EmptyEpochs(order)

    @property
    def remainder(self) -> int:
        """Number of tokens held back because they do not fill a row yet."""
        return self._packer.remainder

    def next_batch(self) -> Batch | None:
        """Return the next batch, with its trace if ``marked``, after artificial costs; None at the order's end."""
        self._charged.clear()
        while missing := self._packer.missing_tokens(self._batch_size):
            began = monotonic()
            documents = self._read_documents(self._rows_for(missing))
            if documents is None:
                break
            self._look_ahead(monotonic() - began)
            with self._span("pack"):
                self._packer.add(self._with_tokens(documents))
                if self._skip:  # Resuming: an earlier run has packed part of the first document.
                    self._packer.skip(self._skip)
                    self._skip = 0
        rows = min(self._batch_size, self._packer.ready)
        if not rows:
            return None
        for stage in ("read", "tokenize"):  # A declared cost is per batch, even if the batch needed no read.
            if stage not in self._charged and self._injector.cost_ms(stage):
                with self._span(stage):
                    self._charge(stage)
        with self._span("pack"):
            batch: Batch = self._packer.pack(rows)
            if self._masker is not None:
                batch = self._masker.mask(batch)
            batch.position = self._after(rows)
            self._charge("pack")
        self._injector.spend("transfer")
        if self._marked:
            batch.trace = telemetry.take()
        return batch

    def _read_documents(self, rows: int) -> Any:
        """Read 1 to ``rows`` documents, as Encoded, PaddedRows or a list of either; None at the order's end."""
        with self._span("read"):
            indices = self._order.take(rows)
            for _ in range(self._extra_reads):
                self._source.read(indices)
            documents: list[Any] = self._source.read(indices)
            self._charge("read")
        if not len(indices):
            return None
        if self._tokenizer is not None:
            with self._span("tokenize"):
                for _ in range(self._extra_tokenizations):
                    self._tokenized(documents)
                tokenized = self._tokenized(documents)
                self._charge("tokenize")
            return tokenized
        return [tokens for (tokens,) in documents] if self._packed else documents

    def _tokenized(self, texts: list[str]) -> Any:
        assert self._tokenizer is not None
        if self._scalar:
            return document_tokens(self._tokenizer.encode_batch(texts), self._eos_id)
        return with_end_of_text(self._tokenizer.encode_flat(texts), self._eos_id)

    def _with_tokens(self, documents: Any) -> Any:
        """Return the documents with a token, which count for the mean length; all advance the bookmark."""
        if isinstance(documents, PaddedRows):
            has_tokens = documents.mask[:, 0] != 0
            self._bookmark.add(has_tokens)
            self._count(int(np.count_nonzero(has_tokens)), 0)
            return documents if has_tokens.all() else PaddedRows(documents.ids[has_tokens], documents.mask[has_tokens])
        if isinstance(documents, Encoded):
            lengths = documents.lengths
            has_tokens = lengths > 0
            self._bookmark.add(lengths if self._packed else has_tokens)
            self._count(int(np.count_nonzero(has_tokens)), len(documents.ids))
            return documents if has_tokens.all() else Encoded(documents.ids, lengths[has_tokens])
        listed: list[Document] = [document for document in documents if _has_tokens(document)]
        counts = [len(document) if self._packed else _has_tokens(document) for document in documents]
        self._bookmark.add(np.array(counts, dtype=np.int64))
        self._count(len(listed), sum(counts))
        return listed

    def _after(self, rows: int) -> Position:
        """Return the position after a batch of ``rows`` rows, from which a resumed run continues."""
        self._bookmark.pack(rows * self._length if self._packed else rows)
        self._batches += 1
        mark = self._bookmark
        return Position(self._worker, mark.document, mark.used, self._batches, self._per_epoch)

    def _rows_for(self, missing_tokens: int) -> int:
        tokens_per_document = self._tokens / self._documents if self._packed else self._length
        if self._packed and not self._scalar:
            missing_tokens = round(missing_tokens * self._ahead)
        return min(_MOST_ROWS_PER_READ, max(1, round(missing_tokens / tokens_per_document)))

    def _look_ahead(self, took_s: float) -> None:
        """Read twice as many documents after a short read, whose fixed cost counts, half as many after a long one."""
        if took_s < _SHORT_READ_S:
            self._ahead = min(_MOST_AHEAD, self._ahead * 2)
        elif took_s > 3 * _SHORT_READ_S:
            self._ahead = max(_LEAST_AHEAD, self._ahead / 2)

    def _count(self, filled: int, tokens: int) -> None:
        """Count ``filled`` documents and their tokens. Raises InputError after EMPTY_EPOCHS epochs without one."""
        self._empty_epochs.check(filled)
        if self._packed:
            self._documents += filled
            self._tokens += tokens

    def _charge(self, stage: str) -> None:
        if stage not in self._charged:
            self._charged.add(stage)
            self._injector.spend(stage)

    def _span(self, stage: str) -> AbstractContextManager[None]:
        return telemetry.span(stage) if self._marked else nullcontext()


def training_order(
    config: DataConfig, prepared: Prepared, seed: int, worker: int = 0, workers: int = 1, endless: bool = True
) -> IndexSampler:
    """Return the order of a worker's documents, or windows of them. Raises InputError for too few windows."""
    if config.shuffle == "windows":
        windows, kept = windows_of(config, prepared)
        if workers > windows:
            raise InputError(
                f"data.shuffle: windows: {prepared.corpus.name} has {windows} of {config.sequence_length} tokens, less "
                f"than the {workers} workers and ranks that divide them; allowed: fewer of those, or global_order true"
            )
        return ComputedSampler(windows, seed, worker, workers, endless, kept)
    split = prepared.split
    rows = None if split is None else split.training_rows()
    count = prepared.corpus.documents if rows is None else len(rows)
    if config.shuffle == "documents":
        return ComputedSampler(count, seed, worker, workers, endless, rows)
    return ShardedSampler(count, seed, config.shuffle, worker, workers, endless, rows)


def pipeline_of(
    config: DataConfig,
    prepared: Prepared,
    order: IndexSampler,
    injector: Injector,
    marked: bool = True,
    draws: tuple[int, int] = (0, 0),
    start: Position = Position(),  # noqa: B008  # a tuple never changes
    buffers: Buffers | None = None,
    every: tuple[int, int] = (0, 1),
) -> DataPipeline | FlatPipeline:
    """Return the pipeline of ``config.path``. ``every``: (offset, stride) of batches; others than (0, 1) need flat."""
    if not config.is_flat:
        assert every == (0, 1), "the configuration refuses it"
        return DataPipeline(config, prepared, order, injector, marked, draws, start, buffers)
    buffers = buffers or buffers_of(config)
    return FlatPipeline(config, prepared, order, injector, marked, draws, start, buffers, every)


def buffers_of(config: DataConfig, *, pinned: bool = False) -> BatchBuffers:
    """Return reusable batch buffers, allocated on first use. ``pinned``: True for page-locked (needs CUDA)."""
    return BatchBuffers(config.batch_size, config.sequence_length, mask=not is_packed(config), pinned=pinned)


def held_out_batches(config: DataConfig, prepared: Prepared, most: int) -> list[Batch]:
    """Return ``most`` batches of held-out documents, the same for each path, without costs. Raises InputError."""
    rows = None if prepared.split is None else prepared.split.held_out_rows()
    if prepared.held_out is not None:
        prepared = prepared.held_out
    else:
        assert rows is not None, "prepare() was given no evaluation"
    documents = prepared.corpus.documents if rows is None else len(rows)
    order = ShardedSampler(documents, 0, shuffle=False, endless=False, rows=rows)
    # The order consists of documents, even if training uses windows.
    config = config.model_copy(update={"shuffle": False})
    pipeline = pipeline_of(config, prepared, order, Injector(None, 0), marked=False, draws=_HELD_OUT)
    batches: list[Batch] = []
    while len(batches) < most and (batch := pipeline.next_batch()) is not None:
        batches.append(batch)
    if not any(batch.trained_tokens for batch in batches):
        raise InputError(
            f"evaluation: the {documents} documents held out of {prepared.corpus.name} give no batch with a token to "
            f"predict; give {'more of them' if rows is None else 'a larger fraction'}"
        )
    return batches


def make_pipeline(
    config: DataConfig,
    prepared: Prepared,
    seed: int,
    worker: int,
    workers: int,
    start: Position | None = None,
    buffers: Buffers | None = None,
) -> BatchPipeline:
    """Return the endless pipeline of worker ``worker`` of ``workers``, continued from ``start`` if given."""
    start = start or Position(worker)
    if config.source is not None:
        return _of_source(config, prepared.objective == "causal", seed, worker, workers, start)
    injector = Injector(_dosed(config), seed * 1_000_003 + worker)
    if config.replay:
        # Every worker repeats the same batch, the first one of the first worker.
        order = training_order(config, prepared, seed, 0, 1 if config.global_order else workers)
        first = pipeline_of(config, prepared, order, Injector(None, seed), marked=False, draws=(seed, 0))
        batch = first.next_batch()
        assert batch is not None
        return RepeatedBatches([batch], injector, start)
    every, shard = ((worker, workers), (0, 1)) if config.global_order else ((0, 1), (worker, workers))
    order = training_order(config, prepared, seed, *shard)
    draws = seed, worker
    return pipeline_of(config, prepared, order, injector, True, draws, start, buffers, every)


def _of_source(
    config: DataConfig, shifted: bool, seed: int, worker: int, workers: int, start: Position
) -> BatchPipeline:
    injector = Injector(config.inject, seed * 1_000_003 + worker)  # A dose makes the whole batch again.
    assert config.source is not None
    if config.replay:
        first = UserPipeline(config, seed, 0, workers, Injector(None, seed), marked=False, shifted=shifted)
        iterable_sources[config.source] = first._source.order is None
        return RepeatedBatches(to_repeat(first), injector, start)
    pipeline = UserPipeline(config, seed, worker, workers, injector, shifted=shifted, start=start)
    iterable_sources[config.source] = pipeline._source.order is None
    return pipeline


def _dosed(config: DataConfig) -> DataInject | None:
    """Return the artificial costs; those of reading and tokenizing times 1 + repetitions, by one draw of jitter."""
    if config.inject is None:
        return None
    costs = {
        "read_ms": config.inject.read_ms * (1 + config.extra_reads),
        "tokenize_ms": config.inject.tokenize_ms * (1 + config.extra_tokenizations),
    }
    return config.inject.model_copy(update=costs)


class Epoch:
    """Iterates once over the batches of one epoch, built in this process. The last batch may have fewer rows."""

    def __init__(self, config: DataConfig, prepared: Prepared, seed: int) -> None:
        order = training_order(config, prepared, seed, endless=False)
        self._pipeline = pipeline_of(config, prepared, order, Injector(None, seed), marked=False, draws=(seed, 0))

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self._pipeline.next_batch()) is not None:
            yield batch

    @property
    def remainder(self) -> int:
        """Number of tokens of the epoch that fill no row, final after the last batch."""
        return self._pipeline.remainder


def is_packed(config: DataConfig) -> bool:
    """Return True if the path packs documents end to end (the ``*-stream`` paths and ``tokens-mmap``)."""
    return not config.path.endswith("-padded")


def _has_tokens(document: Document) -> bool:
    if isinstance(document, tuple):
        return bool(document[1][0])  # first position of the mask
    return len(document) > 0
