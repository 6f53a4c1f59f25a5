"""Offers any corpus of text row by row: as it is where it is a local Parquet file, else from a copy in the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainer.data import cache
from trainer.data.corpus import columns, places
from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus
from trainer.data.corpus.prepare import check_unchanged
from trainer.data.corpus.reading import iter_texts
from trainer.errors import InputError

_RECIPE = 1  # raise it when what is written changes: it is part of the cache key


def by_row(corpus: Corpus, who: str) -> Corpus:
    """The same documents where ``trainer.data.sources`` can read each by its row. ``who``: the key that asks for it.

    The copy is made once, with memory for some documents only. Raises InputError for a corpus of token ids.
    """
    if corpus.content == "tokens":
        raise InputError(
            f"{who} tokenizes text, and column {corpus.column!r} of {corpus.name} holds token ids; allowed: data.path "
            "tokens-padded, tokens-stream, tokens-mmap"
        )
    if (
        corpus.format == "parquet"
        and corpus.content == "text"
        and all(_strings(name, corpus.column) for name in corpus.files)
    ):
        return corpus
    folder = cache.folder("corpus", ["by row", _RECIPE, corpus.fingerprint], lambda to: _write(corpus, to))
    return replace(
        corpus, files=(str(folder / "data.parquet"),), column="text", format="parquet", content="text", template=None,
        known=(),
    )  # fmt: skip


def _strings(name: str, column: str) -> bool:
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
