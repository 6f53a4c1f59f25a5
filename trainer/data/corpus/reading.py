"""Streams a corpus' documents in order, with bounded memory, or makes them readable by row number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import cache
from trainer.data.corpus import chat, columns, places
from trainer.data.corpus.base import CORPUS_ROW_GROUP, MAX_ROW_GROUP_BYTES, Corpus, Identity, bounded
from trainer.data.engines.base import Encoded
from trainer.errors import InputError

_RECIPE = 1  # Raise it when the content of by_row's copy changes: it is part of the cache key.


def pieces(corpus: Corpus, documents: int | None) -> Iterator[tuple[str, int, Any]]:
    """Yield (file, first row, Arrow array) for the first ``documents`` documents; an array may hold nulls."""
    remaining = documents
    for name in corpus.files:
        row = 0
        layout = corpus.format, corpus.column, corpus.content, corpus.split
        for values in columns.read(name, *layout, masked=corpus.masked):
            taken = values if remaining is None else values[:remaining]
            if corpus.content == "chat":
                taken = _rendered(corpus, taken, name, row)
            yield name, row, taken
            row += len(taken)
            if remaining is not None:
                remaining -= len(taken)
                if not remaining:
                    return


def iter_texts(corpus: Corpus, rows: int = CORPUS_ROW_GROUP) -> Iterator[list[str]]:
    """Yield the documents in order as lists of at most ``rows`` texts. Raises InputError for a corpus of token ids."""
    if corpus.content == "tokens":
        raise InputError(
            f"data.corpus: column {corpus.column!r} of {corpus.name} has token ids, not text, so no tokenizer can be "
            "trained on it or tokenize it; give the tokenizer that made them (data.tokenizer.pretrained or "
            "sentencepiece), and data.path: tokens-padded, tokens-stream or tokens-mmap"
        )
    for group in _groups(corpus, rows):
        yield [text for piece in group for text in piece.to_pylist()]


def iter_encoded(corpus: Corpus, rows: int = CORPUS_ROW_GROUP, eos_id: int | None = None) -> Iterator[Encoded]:
    """Yield documents of token ids, at most ``rows`` at a time, without a last id of ``eos_id`` (None: as is)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert corpus.content == "tokens", "a corpus of text is tokenized by an engine"
    for group in _groups(corpus, rows):
        ids = np.concatenate([piece.flatten().cast(pa.uint32()).to_numpy(zero_copy_only=False) for piece in group])
        lengths = np.concatenate([pc.list_value_length(piece).to_numpy(zero_copy_only=False) for piece in group])
        encoded = Encoded(ids, lengths.astype(np.int64))
        yield encoded if eos_id is None else _without_end(encoded, eos_id)


def iter_contents(corpus: Corpus, rows: int = CORPUS_ROW_GROUP) -> Iterator[list[bytes]]:
    """Yield lists of at most ``rows`` documents as bytes: text as UTF-8, token ids as little-endian uint32."""
    if corpus.content != "tokens":
        for texts in iter_texts(corpus, rows):
            yield [text.encode() for text in texts]
        return
    for encoded in iter_encoded(corpus, rows):
        content, ends = encoded.ids.astype("<u4", copy=False).tobytes(), encoded.lengths.cumsum() * 4
        yield [content[end - 4 * length : end] for end, length in zip(ends, encoded.lengths, strict=True)]


def check_vocabulary(corpus: Corpus, vocab_size: int) -> None:
    """Raise InputError if a corpus of token ids has an id that the tokenizer does not have."""
    if corpus.largest_id is not None and corpus.largest_id >= vocab_size:
        raise InputError(
            f"data.corpus: {corpus.largest_at}: column {corpus.column!r} holds the id {corpus.largest_id:,}, and the "
            f"tokenizer's ids end at {vocab_size - 1:,}; give the tokenizer that made them"
        )


def _groups(corpus: Corpus, rows: int) -> Iterator[list[Any]]:
    """Yield lists of Arrow arrays. A list has ``rows`` documents or, if they are large, :data:`MAX_ROW_GROUP_BYTES`."""
    group: list[Any] = []
    count = size = 0
    for _, _, values in pieces(corpus, corpus.documents):
        rest = values
        while len(rest):
            piece = next(bounded(rest, rows - count))
            if group and size + piece.nbytes > MAX_ROW_GROUP_BYTES:
                yield group
                group, count, size = [], 0, 0
            rest = rest.slice(len(piece))
            group.append(piece)
            count += len(piece)
            size += piece.nbytes
            if count == rows:
                yield group
                group, count, size = [], 0, 0
    if group:
        yield group


def _rendered(corpus: Corpus, chats: list[Any], name: str, row: int) -> Any:
    import pyarrow as pa

    assert corpus.template is not None
    if None in chats:  # The check of the corpus refuses nulls with a better message than a template.
        return pa.array([None if chat is None else "" for chat in chats], pa.large_string())
    return pa.array(chat.rendered(corpus.template, chats, name, row), pa.large_string())


def _without_end(encoded: Encoded, eos_id: int) -> Encoded:
    ends = np.cumsum(encoded.lengths) - 1
    has_end: NDArray[np.bool_] = encoded.lengths > 0
    has_end[has_end] = encoded.ids[ends[has_end]] == eos_id
    return Encoded(np.delete(encoded.ids, ends[has_end]), encoded.lengths - has_end)


def identities(files: tuple[str, ...]) -> list[Identity]:
    """Return a value for each file that changes with it: a fingerprint, or a remote file's size and ETag."""
    return [places.identity(name) if places.is_remote(name) else cache.file_fingerprint(Path(name)) for name in files]


def check_unchanged(corpus: Corpus) -> None:
    """Raise InputError if a file has changed since the corpus was checked: call it before results are cached."""
    for name, identity in zip(corpus.files, corpus.known, strict=bool(corpus.known)):
        if identities((name,)) != [identity]:
            raise InputError(f"{name}: changed while it was being read; run it again when no process writes it")


def by_row(corpus: Corpus, who: str) -> Corpus:
    """Return a corpus to read by row: itself if local Parquet of strings, else a cached copy. ``who``: for errors."""
    if corpus.content == "tokens":
        raise InputError(
            f"{who} tokenizes text, and column {corpus.column!r} of {corpus.name} holds token ids; allowed: data.path "
            "tokens-padded, tokens-stream, tokens-mmap"
        )
    is_parquet = (corpus.format, corpus.content) == ("parquet", "text")
    if is_parquet and all(_has_strings(name, corpus.column) for name in corpus.files):
        return corpus
    folder = cache.folder("corpus", ["by row", _RECIPE, corpus.fingerprint], lambda to: _write(corpus, to))
    files = (str(folder / "data.parquet"),)
    return replace(corpus, files=files, column="text", format="parquet", content="text", template=None, known=())


def _has_strings(name: str, column: str) -> bool:
    """Return True if the Parquet file ``name`` is local and ``column`` has Arrow's type string or large_string."""
    import pyarrow as pa

    if places.is_remote(name):
        return False
    kind = columns.column_type(name, "parquet", column)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _write(corpus: Corpus, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string())])
    documents = 0
    with pq.ParquetWriter(folder / "data.parquet", schema, compression="snappy") as writer:
        for texts in iter_texts(corpus):
            writer.write_table(
                pa.table({"text": pa.array(texts, pa.string())}, schema), row_group_size=CORPUS_ROW_GROUP
            )
            documents += len(texts)
    if documents != corpus.documents:
        raise InputError(f"{corpus.name}: {documents} documents, {corpus.documents} when it was checked; run it again")
    check_unchanged(corpus)
