"""Writes and checks pretokenized files, each with a manifest of its origin: the founding study's formats, and flat.

*padded*: one document per row, ``input_ids`` (list<int32>) and ``attention_mask`` (list<int8>), both of fixed length.
*token-list*: one document per row, ``tokens`` (list<int32>), whole, ending in the end-of-document id if there is one.
*flat*: the same tokens end to end in a file that is mapped into memory (:mod:`trainer.data.formats.flat`).
The first two are Parquet (Snappy) with row groups of 1000 documents, fewer if these are long.
Row i is document i of the corpus. An empty document is a row without a token (padded: mask 0 throughout).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data import cache
from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, check_unchanged
from trainer.data.formats.exchange import document_chunks
from trainer.data.formats.flat import TOKENS, FlatTokens, TokenJournal, Writer, token_type
from trainer.data.manifest import (
    MANIFEST,
    MANIFEST_SCHEMA,
    Format,
    Manifest,
    ManifestOrigin,
    Pretokenized,
    check_data,
    data_file,
    read_manifest,
)
from trainer.data.token_groups import TokenGroup, TokenGroups, corpus_groups
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.files import write_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_VALUES = 1 << 24  # values of a row group (64 MiB of int32), unless its last document alone has more
TokenSource = Callable[[int], TokenGroups]  # first document -> the tokens of all documents from it on
Progress = Callable[[int, int], object]  # called with the documents and bytes of text done since the last call


def pretokenize(
    corpus: Corpus,
    info: TokenizerInfo,
    format: Format,
    sequence_length: int,
    out: Path | None = None,
    *,
    workers: int | None = None,
    tokens: TokenSource | None = None,
    progress: Progress = lambda *_: None,
) -> Pretokenized:
    """Tokenize the corpus into ``out`` (default: the cache), unless the same data are there. Return the folder.

    Damaged data in the cache are made again. Other content in ``out`` raises InputError. Memory is bounded. After a
    kill, the next call continues. ``workers``: threads or processes (default: one per core). ``tokens``: source of the
    tokens if this process does not tokenize. ``progress`` gets the number of further documents and their bytes of text.
    """
    expected = origin_of(corpus, info, format, sequence_length)
    source = tokens or partial(corpus_groups, corpus, info, workers=workers)
    built = False

    def build(to: Path) -> dict[str, str]:
        nonlocal built
        digests = _write(corpus, info, expected, to, source, progress)
        built = True
        return digests

    def check(folder: Path) -> Manifest:
        return check_manifest(folder, corpus, info, format, sequence_length)

    if out is None:
        target = cache.folder("pretokenized", asdict(expected), build, check, resumable=True)
    else:
        target = out.absolute()
        if not target.exists():
            cache.create_folder(target, build, resumable=True)
    # Data that were just written were hashed on the way and need no check.
    return Pretokenized(str(target), read_manifest(target) if built else check(target))


def groups_of(flat: FlatTokens) -> TokenSource:
    """Return a source that takes tokens from ``flat``, so that another format is written without tokenizing again."""

    def groups(start: int) -> TokenGroups:
        for ids, lengths in document_chunks(flat, start):
            yield TokenGroup(ids, lengths, 0)

    return groups


def check_manifest(folder: Path, corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int) -> Manifest:
    """Return the manifest of ``folder``. Raises InputError if a field is not the expected one, or files changed."""
    manifest = read_manifest(folder)
    actual = asdict(manifest)
    for name, value in asdict(origin_of(corpus, info, format, sequence_length)).items():
        if actual[name] != value:
            raise InputError(
                f"{folder}: stale or foreign pretokenized data: {name} is {actual[name]!r}, expected {value!r}; "
                "delete the folder or choose another"
            )
    check_data(folder, manifest)
    return manifest


def no_separator(info: TokenizerInfo) -> str | None:
    """Return a warning that documents are joined, if the tokenizer has no end-of-text id; None if it has one."""
    if info.eos_id is not None:
        return None
    return (
        f"warning: the tokenizer {info.location} has no end-of-text token: documents are joined without a separator, "
        "so a model cannot learn where they end; use one that has it (eos_token of tokenizer_config.json, eos_id of a "
        "SentencePiece model)"
    )


def truncation_warning(manifest: Manifest) -> str | None:
    """Return a warning that padded rows cut tokens; None if they cut none."""
    if not manifest.cut:
        return None
    return (
        f"warning: rows of {manifest.sequence_length} tokens cut {manifest.cut:,} of the {manifest.tokens:,} tokens of "
        f"{manifest.corpus} ({manifest.cut / manifest.tokens:.1%}); longer rows cut fewer, packed rows (*-stream, "
        "tokens-mmap) none"
    )


def padding_id(info: TokenizerInfo) -> int:
    """Return the id that fills padding: the tokenizer's own, or 0. Its mask is 0 and its label -100 either way."""
    return info.pad_id if info.pad_id is not None else 0


def origin_of(corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int) -> ManifestOrigin:
    """Return the origin that the manifest of this corpus must state in ``format``."""
    return ManifestOrigin(
        schema=MANIFEST_SCHEMA,
        format=format,
        sequence_length=sequence_length if format == "padded" else None,
        corpus_fingerprint=corpus.fingerprint,
        tokenizer_fingerprint=info.fingerprint,
        engine=info.engine,
        pad_id=padding_id(info),
        eos_id=info.eos_id,
        documents=corpus.documents,
    )


class _Tally:
    """Counts documents, their tokens, and the tokens that remain if each is cut to ``longest`` tokens (None: uncut)."""

    def __init__(self, longest: int | None) -> None:
        self.documents = self.empty = self.tokens = self.rows_tokens = 0
        self._longest = longest

    def add(self, lengths: NDArray[np.int64]) -> None:
        self.documents += len(lengths)
        self.empty += len(lengths) - int(np.count_nonzero(lengths))
        self.tokens += int(lengths.sum())
        self.rows_tokens += int((lengths if self._longest is None else np.minimum(lengths, self._longest)).sum())


def _write(
    corpus: Corpus, info: TokenizerInfo, expected: ManifestOrigin, to: Path, source: TokenSource, progress: Progress
) -> dict[str, str]:
    """Write ``to``, after what its journal kept. Return SHA-256 by file name (flat only). Raises InputError."""
    kind, tally = token_type(info.vocab_size), _Tally(expected.sequence_length)
    with TokenJournal(to / cache.JOURNAL, asdict(expected), kind) as journal, _rows_writer(expected, to) as rows:
        for ids, lengths in journal.kept():
            tally.add(lengths)
            rows.add(ids, lengths)
        progress(journal.documents, 0)
        for group in source(journal.documents):
            journal.add(group.ids, group.lengths)
            tally.add(group.lengths)
            rows.add(group.ids, group.lengths)
            progress(len(group.lengths), group.text_bytes)
        digests = journal.finish() if expected.format == "flat" else {}
    if tally.documents != corpus.documents:
        raise InputError(
            f"data.corpus: {tally.documents} documents in {corpus.name}, {corpus.documents} when it was prepared; run "
            "it again"
        )
    check_unchanged(corpus)
    if not tally.tokens:
        raise InputError(
            f"data.corpus: none of {corpus.name}'s {tally.documents} documents has a token under this tokenizer"
        )
    data = to / data_file(expected.format)
    flat = expected.format == "flat"
    library = "numpy" if flat else "pyarrow"
    manifest = Manifest(
        **asdict(expected),
        corpus=corpus.name,
        tokenizer=info.kind,
        empty=tally.empty,
        tokens=tally.tokens,
        rows_tokens=tally.rows_tokens,
        data_bytes=data.stat().st_size,
        data_fingerprint=digests[TOKENS][: cache.FINGERPRINT_LENGTH] if flat else cache.file_fingerprint(data),
        writer=f"{library} {version(library)}",
        token_type=kind.name if flat else None,
    )
    write_text(to / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    return digests


class _NoRows:
    """Stand-in for a parquet writer in the flat format, whose files are the token journal's."""

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None: ...


def _rows_writer(expected: ManifestOrigin, to: Path) -> AbstractContextManager[Any]:
    if expected.format == "flat":
        return nullcontext(_NoRows())
    data = to / data_file(expected.format)
    if expected.format == "token-list":
        return TokenListWriter(data)
    assert expected.sequence_length is not None
    return PaddedWriter(data, expected.sequence_length, expected.pad_id)


class _ParquetWriter(Writer):
    """Collects documents into row groups and writes them. The bounds of row groups depend only on the documents."""

    def __init__(self, path: Path, fields: dict[str, Any], rows: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema([(name, pa.list_(kind)) for name, kind in fields.items()])
        self._file = pq.ParquetWriter(path, self._schema, compression="snappy")
        self._rows = rows
        self._held: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        self._documents = self._values = 0

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents: their ids end to end, and the length of each."""
        ids, lengths = self._kept(ids, lengths)
        ends = np.cumsum(lengths)
        document = token = 0
        while document < len(lengths):
            # The row group ends with the document that makes it full.
            full = int(np.searchsorted(ends, token + MOST_VALUES - self._values)) + 1
            stop = min(document + self._rows - self._documents, max(full, document + 1), len(lengths))
            end = int(ends[stop - 1])
            self._held.append((ids[token:end], lengths[document:stop]))
            self._documents += stop - document
            self._values += end - token
            document, token = stop, end
            if self._documents == self._rows or self._values >= MOST_VALUES:
                self._flush()

    def close(self) -> None:
        """Write the last row group and the file's end."""
        if self._documents:
            self._flush()
        self._file.close()

    def abandon(self) -> None:
        self._file.close()

    def _kept(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return ids, lengths

    def _columns(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> list[Any]:
        raise NotImplementedError

    def _flush(self) -> None:
        import pyarrow as pa

        ids = np.concatenate([held_ids for held_ids, _ in self._held])
        lengths = np.concatenate([held_lengths for _, held_lengths in self._held])
        self._held, self._documents, self._values = [], 0, 0
        self._file.write_table(pa.table(self._columns(ids, lengths), schema=self._schema), row_group_size=len(lengths))


class TokenListWriter(_ParquetWriter):
    """Writes a column ``tokens`` (list<int32>) of whole documents."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        super().__init__(path, {"tokens": pa.int32()}, CORPUS_ROW_GROUP)

    def _columns(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> list[Any]:
        return [_lists(ids.astype(np.int32), np.cumsum(lengths))]


class PaddedWriter(_ParquetWriter):
    """Writes ``input_ids`` (list<int32>) and ``attention_mask`` (list<int8>), rows cut or padded to ``length``."""

    def __init__(self, path: Path, length: int, pad_id: int) -> None:
        import pyarrow as pa

        rows = max(1, min(CORPUS_ROW_GROUP, MOST_VALUES // length))
        super().__init__(path, {"input_ids": pa.int32(), "attention_mask": pa.int8()}, rows)
        self._length, self._pad_id = length, pad_id

    def _kept(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if not len(lengths) or lengths.max() <= self._length:
            return ids, lengths
        kept = np.minimum(lengths, self._length)
        starts = np.cumsum(lengths) - lengths
        rows = [ids[start : start + length] for start, length in zip(starts.tolist(), kept.tolist(), strict=True)]
        return np.concatenate(rows), kept

    def _columns(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> list[Any]:
        mask = np.arange(self._length) < lengths[:, None]
        padded = np.full(mask.shape, self._pad_id, np.int32)
        padded[mask] = ids
        ends = np.arange(1, len(lengths) + 1) * self._length
        return [_lists(values.reshape(-1), ends) for values in (padded, mask.view(np.int8))]


def _lists(values: NDArray[Any], ends: NDArray[np.int64]) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
