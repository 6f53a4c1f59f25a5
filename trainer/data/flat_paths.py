"""Opens the flat tokens of a data path, and builds its pipeline: which order, which plan, which batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import DataConfig
from trainer.data.buffers import Buffers
from trainer.data.flat_pipeline import EveryNth, FlatPipeline
from trainer.data.flat_plan import DocumentPlan, RowPlan, WindowPlan
from trainer.data.formats.flat import FlatTokens, open_flat, token_type
from trainer.data.masking import Masker
from trainer.data.order import IndexSampler
from trainer.data.position import Position
from trainer.data.prepare import Prepared
from trainer.data.sources import flat_of_lists
from trainer.errors import InputError
from trainer.inject import Injector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def open_tokens(config: DataConfig, prepared: Prepared) -> FlatTokens:
    """The flat tokens of ``tokens-mmap``, or those of ``tokens-stream`` as its file has them."""
    folder, documents = prepared.pretokenized, prepared.corpus.documents
    assert folder is not None, "prepare() was given another data path"
    if config.path != "tokens-mmap":
        return flat_of_lists(str(Path(folder) / "data.parquet"), "tokens", documents)
    flat = open_flat(Path(folder), token_type(prepared.tokenizer.vocab_size))
    if flat.documents < documents:
        raise InputError(f"{folder}: {flat.documents} documents, {documents} when it was prepared; run it again")
    # Slices of numpy's memmap class cost four times as much as those of an array over the same memory.
    return FlatTokens(_plain(flat.tokens), _plain(flat.places[: documents + 1]))


def windows_of(config: DataConfig, prepared: Prepared) -> tuple[int, NDArray[np.int64] | None]:
    """How many windows of a row's length are trained on, and which (None: all that the flat tokens hold).

    Without those that a held-out document reaches into. Raises InputError where there is none.
    """
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
    """Those of ``count`` windows that hold no token of ``documents``, ascending: (windows,)."""
    import numpy as np

    begins, ends = flat.places[documents], flat.places[documents + 1]
    full = ends > begins
    # One more where a document's first window begins, one less behind its last: sums above 0 are windows within. What
    # is left over behind the last window counts as one more.
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, begins[full] // length, 1)
    np.add.at(change, (ends[full] - 1) // length + 1, -1)
    return np.flatnonzero(np.cumsum(change[:count]) == 0)


def flat_pipeline(
    config: DataConfig,
    prepared: Prepared,
    order: IndexSampler,
    injector: Injector,
    marked: bool,
    draws: tuple[int, int],
    start: Position,
    buffers: Buffers,
    every: tuple[int, int],
) -> FlatPipeline:
    """The pipeline over ``order``; ``every``: which of its batches, the first one and every how many-th."""
    length = config.sequence_length
    masker = None
    if prepared.masking is not None and config.global_order:  # whoever makes a batch, the same tokens are masked
        masker = Masker(prepared.masking, draws[0], 0, every[0] + start.batches * every[1], every[1])
    elif prepared.masking is not None:
        masker = Masker(prepared.masking, *draws, start.batches)

    def opened() -> tuple[NDArray[Any], RowPlan]:
        flat = open_tokens(config, prepared)
        if config.shuffle == "windows":
            return flat.tokens, WindowPlan(flat, order, length, start.document)
        return flat.tokens, DocumentPlan(flat, order, length, start.document, start.used)

    return FlatPipeline(
        opened,
        (config.batch_size, length),
        order.documents_per_epoch,
        injector,
        buffers,
        masker=masker,
        separated=config.documents == "separated",
        every=EveryNth(*every),
        extra_reads=config.extra_reads,
        marked=marked,
        start=start,
    )


def _plain(mapped: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return mapped.view(np.ndarray)
