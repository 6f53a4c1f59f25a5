"""Reads whole rows of a corpus, with all columns, a bounded number at a time, under one schema.

A row of JSON Lines is its line, as bytes: a table would change numbers that do not fit its types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.data.corpus import arrow, jsonl, parquet, text
from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus, bounded, first_line
from trainer.errors import InputError

LINE = "line"  # the only column of JSON Lines


def schema_of(corpus: Corpus) -> Any:
    """Return one Arrow schema for the rows of all files. A column that a file lacks is null there.

    Raises InputError if the types of two files conflict, and for a type that Parquet does not have.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    merged = None
    for name in corpus.files:
        schema = _schema(corpus, name)
        try:
            merged = schema if merged is None else pa.unify_schemas([merged, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{name}: its columns are not those of the rows before ({first_line(error)}); rows of one type can "
                "be written"
            ) from error
    assert merged is not None, "a corpus has files"
    if len(set(merged.names)) < len(merged.names):
        raise InputError(f"{corpus.name}: several columns of one name ({', '.join(merged.names)}); names must differ")
    schema = pa.schema([field.with_type(_stored(field.type)) for field in merged])
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        raise InputError(f"{corpus.name}: a column cannot be written as Parquet ({first_line(error)})") from error
    return schema


def _stored(kind: Any) -> Any:
    """Return the Arrow type in which a column of type ``kind`` is written.

    Views become plain strings or bytes, because some Parquet readers lack them.
    """
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _schema(corpus: Corpus, name: str) -> Any:
    import pyarrow as pa

    if corpus.format == "text":
        return pa.schema([(corpus.column, pa.string())])
    if corpus.format == "jsonl":
        return pa.schema([(LINE, pa.binary())])
    return (parquet if corpus.format == "parquet" else arrow).schema(name).remove_metadata()


def rows_from(corpus: Corpus, schema: Any, first: int, count: int) -> Iterator[Any]:
    """Yield ``count`` rows from document ``first`` on as Arrow tables.

    Parquet row groups before ``first`` are not read.
    """
    skip, remaining = first, count
    for name in corpus.files:
        tables: Iterator[Any]
        if corpus.format == "parquet":
            total = parquet.open_parquet(name).metadata.num_rows
            if skip >= total:
                skip -= total
                continue
            tables, skip = parquet.tables(name, skip), 0
        else:
            tables = _tables(corpus, name)
        for table in tables:
            taken = table.slice(skip, remaining)
            skip = max(skip - table.num_rows, 0)
            remaining -= taken.num_rows
            if taken.num_rows:
                yield _under(schema, taken, name)
            if not remaining:
                return


class RowStream:
    """Yields whole rows share by share. It reads a file only once for consecutive shares."""

    def __init__(self, corpus: Corpus, schema: Any) -> None:
        self._corpus, self._schema = corpus, schema
        self._at = -1  # next document
        self._tables: Iterator[Any] = iter(())
        self._rest: Any = None

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield ``count`` rows from document ``first`` on as tables; fewer at the end."""
        if first != self._at:
            self._rest = None
            self._tables = rows_from(self._corpus, self._schema, first, self._corpus.documents - first)
        self._at = first + count
        while count:
            table = self._rest if self._rest is not None else next(self._tables, None)
            if table is None:
                return
            taken = table.slice(0, count)
            self._rest = table.slice(taken.num_rows) if taken.num_rows < table.num_rows else None
            count -= taken.num_rows
            yield taken


def _tables(corpus: Corpus, name: str) -> Iterator[Any]:
    import pyarrow as pa

    if corpus.format == "text":
        for values in text.read(name, corpus.split):
            for piece in bounded(values, CORPUS_ROW_GROUP):
                yield pa.table({corpus.column: piece})
    elif corpus.format == "jsonl":
        for rows in jsonl.rows(name):
            yield pa.table({LINE: pa.array(rows, pa.binary())})
    else:
        for batch in arrow.batches(name):
            yield pa.Table.from_batches([batch])


def _under(schema: Any, table: Any, name: str) -> Any:
    """Return ``table`` with the columns, order and types of ``schema``. A missing column is null.

    Raises InputError if a value does not fit. ``name``: the table's file, for messages.
    """
    import pyarrow as pa

    try:
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in table.schema.names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)
    except (pa.ArrowException, KeyError) as error:
        raise InputError(
            f"{name}: a value does not fit the type that its column has in all files together, or the file was changed "
            f"({first_line(error)})"
        ) from error
