"""Proves that tokenizing on the fly and reading pretokenized files give identical batches, by plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.config import DataConfig
from trainer.data.batch import IGNORED, Batch
from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, by_row, iter_texts, prepare_corpus
from trainer.data.dataset import Epoch, is_packed
from trainer.data.manifest import Format, Pretokenized
from trainer.data.prepare import Prepared, format_of
from trainer.data.pretokenize import Progress, padding_id, pretokenize
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer, prepare_tokenizer

_BY_ACCESS = ("text-padded", "tokens-padded", "text-stream", "tokens-stream")
_PATHS = (*((path, access) for path in _BY_ACCESS for access in ("scalar", "zero-copy")), ("tokens-mmap", "zero-copy"))
_FORMATS: tuple[Format, ...] = ("token-list", "padded", "flat")
Rows = dict[str, NDArray[np.int64]]
Shown = Callable[[str, int], AbstractContextManager[Progress]]  # (stage, its documents) -> its progress


@dataclass(frozen=True)
class VerifyReport:
    """Result of a verification: counts of what was compared, and the first difference (None: all is identical)."""

    documents: int
    empty: int  # documents without a token, skipped by every path
    tokens: int  # tokens of all documents, including end-of-document ids
    truncated_tokens: int  # tokens cut off by padded rows
    remainder_tokens: int  # tokens that packed paths carry into the next epoch
    batches: int  # batches compared, over all paths
    paths: tuple[str, ...]  # paths compared, as path/access
    difference: str | None

    @property
    def identical(self) -> bool:
        """True if no difference was found."""
        return self.difference is None


class _DifferenceError(Exception):
    pass


def verify(config: DataConfig, shown: Shown = lambda *_: nullcontext(lambda *_: None)) -> VerifyReport:
    """Compare all data paths for ``config``. Return counts and the first difference. ``shown``: shows a stage."""
    corpus = by_row(prepare_corpus(config.corpus), "harness data verify")
    info = prepare_tokenizer(config.tokenizer, corpus)
    pretokenized = {}
    for format in _FORMATS:
        with shown(f"tokenizing to {format} by {info.engine}", corpus.documents) as progress:
            pretokenized[format] = pretokenize(corpus, info, format, config.sequence_length, progress=progress)
    token_lists, padded, flat = (pretokenized[format] for format in _FORMATS)
    manifest = token_lists.manifest
    batches, remainder, compared, difference = 0, 0, [], None
    try:
        with shown(f"comparing pretokenized files, tokenizing by {info.engine}", corpus.documents) as progress:
            _compare_documents(corpus, info, token_lists, padded, flat, config.sequence_length, progress)
        for path, access in _PATHS:
            name = path if path == "tokens-mmap" else f"{path}/{access}"
            update = {"path": path, "access": access, "shuffle": False, "workers": 0, "replay": False}
            variant = config.model_copy(update=update)
            needed = format_of(variant)
            prepared = Prepared(corpus, info, None if needed is None else pretokenized[needed].folder)
            engine_text = f" by {info.engine}" if needed is None else ""
            with shown(f"comparing batches of {name}{engine_text}", corpus.documents) as progress:
                count, rest = _compare_epoch(name, variant, prepared, token_lists, progress)
            batches += count
            remainder = max(remainder, rest)
            compared.append(name)
    except _DifferenceError as error:
        difference = str(error)
    return VerifyReport(
        documents=manifest.documents,
        empty=manifest.empty,
        tokens=manifest.tokens,
        truncated_tokens=manifest.tokens - padded.manifest.rows_tokens,
        remainder_tokens=remainder,
        batches=batches,
        paths=tuple(compared),
        difference=difference,
    )


def _compare_documents(
    corpus: Corpus,
    info: TokenizerInfo,
    whole: Pretokenized,
    padded: Pretokenized,
    flat: Pretokenized,
    length: int,
    progress: Progress,
) -> None:
    tokenizer = load_tokenizer(info)
    progress(0, 0)
    pad_id, total, total_kept, index = padding_id(info), 0, 0, 0
    stored = zip_longest(
        _rows(whole.data, "tokens"),
        _rows(padded.data, "input_ids"),
        _rows(padded.data, "attention_mask"),
        _flat_rows(flat),
    )
    for texts in iter_texts(corpus):
        for text in texts:
            tokens = tokenizer.encode(text)
            if tokens and info.eos_id is not None:
                tokens = [*tokens, info.eos_id]
            kept = tokens[:length]
            ids = kept + [pad_id] * (length - len(kept))
            mask = [1] * len(kept) + [0] * (length - len(kept))
            for name, expected, stored_row in zip(
                ("tokens", "input_ids", "attention_mask", "flat tokens"),
                (tokens, ids, mask, tokens),
                next(stored, (None,) * 4),
                strict=True,
            ):
                if stored_row != expected:
                    raise _DifferenceError(f"document {index}: stored {name} differ from tokenizing it afresh")
            total += len(tokens)
            total_kept += len(kept)
            index += 1
            progress(1, 0)
    if next(stored, None) is not None:
        raise _DifferenceError(f"the pretokenized files hold more than the corpus' {index} documents")
    for name, counted, stated in (
        ("the documents", total, whole.manifest.tokens),
        ("padded rows", total_kept, padded.manifest.rows_tokens),
    ):
        if counted != stated:
            raise _DifferenceError(f"{counted} tokens in {name}, {stated} in the manifest")


def _compare_epoch(
    name: str, config: DataConfig, prepared: Prepared, whole: Pretokenized, progress: Progress
) -> tuple[int, int]:
    """Compare an epoch of a path with rows made of ``whole``. Return (batches, tokens left over), or raise."""
    packed, length = is_packed(config), config.sequence_length
    batches = tokens = expected = 0

    def documents() -> Iterator[list[int]]:
        """Yield the documents that batches are made of."""
        nonlocal expected
        for document in _counted(_rows(whole.data, "tokens"), progress):
            if document:
                expected += len(document) if packed else min(len(document), length)
                yield document

    rows = (_packed_rows if packed else _padded_rows)(documents(), length, padding_id(prepared.tokenizer))
    epoch = Epoch(config, prepared, seed=0)
    for batch in epoch:
        _compare_batch(f"{name}, batch {batches}", batch, rows, packed)
        batches += 1
        mask = batch.attention_mask
        tokens += batch.input_ids.numel() if mask is None else int(mask.sum())
    if next(rows, None) is not None:
        raise _DifferenceError(f"{name}: ends after {batches} batches, too early")
    remainder = epoch.remainder
    if tokens + remainder != expected:
        raise _DifferenceError(
            f"{name}: {tokens} tokens in batches and a remainder of {remainder}, expected {expected}"
        )
    return batches, remainder


def _compare_batch(where: str, batch: Batch, rows: Iterator[Rows], packed: bool) -> None:
    tensors = {"input_ids": batch.input_ids, "labels": batch.labels}
    if not packed:
        if batch.attention_mask is None:
            raise _DifferenceError(f"{where}: no attention mask")
        tensors["attention_mask"] = batch.attention_mask
    trained = 0
    for sample in range(batch.samples):
        expected = next(rows, None)
        if expected is None:
            raise _DifferenceError(f"{where}: row {sample} is one too many")
        for name, tensor in tensors.items():
            differs = np.flatnonzero(tensor[sample].numpy() != expected[name])
            if len(differs):
                column = int(differs[0])
                raise _DifferenceError(
                    f"{where}: {name}[{sample}, {column}] is {int(tensor[sample, column])}, "
                    f"expected {expected[name][column]}"
                )
        trained += int((expected["labels"][1:] != IGNORED).sum())
    if trained != batch.trained_tokens:
        raise _DifferenceError(f"{where}: trained_tokens is {batch.trained_tokens}, expected {trained}")


def _counted(documents: Iterator[list[int]], progress: Progress) -> Iterator[list[int]]:
    progress(0, 0)
    for tokens in documents:
        yield tokens
        progress(1, 0)


def _rows(data: Path, column: str) -> Iterator[list[int]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(data).iter_batches(CORPUS_ROW_GROUP, columns=[column]):
        yield from batch.column(0).to_pylist()


def _flat_rows(flat: Pretokenized) -> Iterator[list[int]]:
    tokens = flat.flat()
    for number in range(tokens.documents):
        yield tokens.document(number).tolist()


def _padded_rows(documents: Iterator[list[int]], length: int, pad_id: int) -> Iterator[Rows]:
    for tokens in documents:
        kept = min(len(tokens), length)
        padding = [0] * (length - kept)
        yield {
            "input_ids": np.array(tokens[:kept] + [pad_id for _ in padding]),
            "labels": np.array([IGNORED] + tokens[1:kept] + [IGNORED for _ in padding]),
            "attention_mask": np.array([1] * kept + padding),
        }


def _packed_rows(documents: Iterator[list[int]], length: int, _: int) -> Iterator[Rows]:
    ids: list[int] = []
    labels: list[int] = []
    for tokens in documents:
        ids += tokens
        labels += [IGNORED, *tokens[1:]]
        filled = len(ids) - len(ids) % length
        for cut in range(0, filled, length):
            yield {"input_ids": np.array(ids[cut : cut + length]), "labels": np.array(labels[cut : cut + length])}
        del ids[:filled], labels[:filled]
