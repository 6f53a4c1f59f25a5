"""Reads whole rows of a corpus, with all columns, and writes those that are kept.

A row of JSON Lines stays its line, as bytes: a table would change numbers that do not fit its types.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus import jsonl, tables, text
from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus, bounded, first_line
from trainer.data.corpus.dedup.pairs import Removals, similarities
from trainer.data.corpus.dedup.sketches import DedupJob, Sets, unseen
from trainer.data.corpus.formats import COMPRESSED
from trainer.errors import InputError
from trainer.files import remove

LINE = "line"  # the only column of JSON Lines


def schema_of(corpus: Corpus) -> Any:
    """Return one schema for all files (a missing column is null). Raises InputError if types conflict."""
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
    """Return the Arrow type to write ``kind`` as: plain instead of views, which some Parquet readers lack."""
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
    return tables.schema(name, corpus.format).remove_metadata()


def rows_from(corpus: Corpus, schema: Any, first: int, count: int) -> Iterator[Any]:
    """Yield ``count`` rows from document ``first`` on as tables. Parquet row groups before are not read."""
    skip, remaining = first, count
    for name in corpus.files:
        unread = 0
        if corpus.format == "parquet":
            total = tables.open_parquet(name).metadata.num_rows
            if skip >= total:
                skip -= total
                continue
            unread, skip = skip, 0
        for table in _tables(corpus, name, unread):
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


def _tables(corpus: Corpus, name: str, skip: int) -> Iterator[Any]:
    import pyarrow as pa

    if corpus.format == "text":
        for values in text.read(name, corpus.split):
            for piece in bounded(values, CORPUS_ROW_GROUP):
                yield pa.table({corpus.column: piece})
    elif corpus.format == "jsonl":
        for rows in jsonl.rows(name):
            yield pa.table({LINE: pa.array(rows, pa.binary())})
    else:
        for batch in tables.batches(name, corpus.format, skip=skip):
            yield pa.Table.from_batches([batch])


def _under(schema: Any, table: Any, name: str) -> Any:
    """Return ``table`` with the columns, order and types of ``schema``. Raises InputError if a value does not fit."""
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


KEPT, REMOVED = "kept", "removed"  # folders of the result
COLUMNS = ("removed_row", "kept_row", "jaccard", "neighbour_row", "neighbour_jaccard")


def part(job: DedupJob, folder: str, number: int) -> Path:
    """Return the file of share ``number`` in ``folder``. Kept lines are compressed if a file of the corpus was."""
    suffix = ".parquet"
    if folder == KEPT and job.corpus.format == "jsonl":
        is_compressed = any(name.lower().endswith(COMPRESSED) for name in job.corpus.files)
        suffix = ".jsonl.zst" if is_compressed else ".jsonl"
    return Path(job.out) / folder / f"part-{number:06}{suffix}"


def check_parts(job: DedupJob) -> None:
    """Raise InputError if a file of a share is missing: an executor wrote it into another machine's folder."""
    for folder in (KEPT, REMOVED):
        for number in range(job.count):
            if not part(job, folder, number).is_file():
                raise unseen(job)


def write_parts(job: DedupJob, number: int, tables: Iterable[Any], gone: Removals, sets: Sets) -> None:
    """Write share ``number`` atomically: kept rows of ``tables``, and the removals ``gone`` with similarities."""
    if not Path(job.work).is_dir():
        raise unseen(job)
    first, end = job.bounds(number)
    kept = np.ones(end - first, np.bool_)
    kept[gone.removed - first] = False

    def rows(file: Path) -> None:
        import pyarrow as pa

        row = 0
        with _rows_writer(job, file) as write:
            for table in tables:
                write(table.filter(pa.array(kept[row : row + table.num_rows])))
                row += table.num_rows
        if row != end - first:
            raise InputError(f"{job.corpus.name}: was changed after it was counted; run it again")

    def removals(file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        exact = similarities(sets, gone.removed, gone.kept)
        columns = (gone.removed, gone.kept, exact, gone.neighbours, gone.similarities)
        pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), file, compression="snappy")

    _in_place(part(job, KEPT, number), rows)
    _in_place(part(job, REMOVED, number), removals)


@contextmanager
def _rows_writer(job: DedupJob, file: Path) -> Iterator[Callable[[Any], None]]:
    """Open ``file`` and yield a function that appends an Arrow table of whole rows, as Parquet or JSON Lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if job.corpus.format != "jsonl":
        with pq.ParquetWriter(file, job.schema, compression="snappy") as writer:
            yield lambda table: writer.write_table(table, row_group_size=CORPUS_ROW_GROUP)
        return
    packed = part(job, KEPT, 0).suffix == ".zst"
    with pa.CompressedOutputStream(str(file), "zstd") if packed else file.open("wb") as stream:

        def write(table: Any) -> None:
            stream.write(b"".join(line + b"\n" for line in table.column(LINE).to_pylist()))

        yield write


def _in_place(path: Path, write: Callable[[Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # A task may be tried twice, on two machines.
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        remove(temporary)
