"""Read, check and write tables of the results contract (parquet). pyarrow is imported only when needed."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.study.contract import ADDED_COLUMNS, RUN_COLUMNS, SCHEMA, Columns, arrow_schema
from trainer.errors import InputError
from trainer.files import naming, temporary_path, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

_Group = TypeVar("_Group")
# A table up to this size stays in memory after it was read. A larger one is read again each time, so the analysis of
# many long runs needs memory for only one.
KEPT_BYTES = 32 * 2**20
SMALL_FILE_BYTES = 4 * 2**20  # Parquet compresses these tables to about a quarter.
BATCH_ROWS = 1 << 18  # rows of a piece, for tables that are read in pieces
OF_RUN = {name for name, _ in RUN_COLUMNS}  # columns that the run's record already has; not read
# Identity and time of a step, span or sample. In any other column a null means "not measured".
ALWAYS_KNOWN = {"step", "warmup", "start_ns", "wall_ns", "end_ns", "role", "name", "t_ns", "source", "metric"}
LARGEST = 2**53  # a hundred days in nanoseconds
CLOCKS, LATEST_NS = ("start_ns", "end_ns", "t_ns"), 2**62  # time since the machine started: at most about a century


class StoredTable:
    """A table of the results contract on disk, read on demand. Its methods raise InputError if the file is not such a
    table.
    """

    def __init__(self, path: Path, columns: tuple[tuple[str, str], ...]) -> None:
        self._path, self._columns = path, columns
        self._kept: pa.Table | None = None

    def check(self, *, as_written: bool = False) -> None:
        """Raise InputError if the file is damaged. ``as_written``: True if its digest matched: a file above
        :data:`SMALL_FILE_BYTES` is then only opened, not read.
        """
        if self._path.stat().st_size <= SMALL_FILE_BYTES:
            self.read()
            return
        _give_back_at_once()
        if as_written:
            with self._opened():
                return
        import pyarrow as pa

        for _ in self.batches([name for name, _ in self._columns]):
            pass
        pa.default_memory_pool().release_unused()

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return all rows with only the columns ``names``."""
        import pyarrow as pa

        kinds = dict(self._columns)
        schema = pa.schema([(name, pa.type_for_alias(kinds[name])) for name in names])
        # Another program may have declared columns as not nullable, which differs from our schema.
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in self.batches(names))
        return pa.Table.from_batches(batches, schema)

    def read(self) -> pa.Table:
        """Return the whole table; columns that an older file lacks are null. Small tables stay in memory."""
        if self._kept is not None:
            return self._kept
        with self._opened() as file:
            # Threads cost a small table more than they save.
            threads = self._path.stat().st_size > SMALL_FILE_BYTES
            table = self._complete(file.read(_own_names(file), use_threads=threads))
        if table.nbytes <= KEPT_BYTES:
            self._kept = table
        return table

    @property
    def rows(self) -> int:
        """Number of rows, read from the file's footer alone."""
        if self._kept is not None:
            return len(self._kept)
        with self._opened() as file:
            return int(file.metadata.num_rows)

    def filtered(self, chosen: Any) -> pa.Table:
        """Return the rows that the pyarrow expression ``chosen`` selects. Row groups without such rows are not read."""
        if self._kept is not None:
            return self._kept.filter(chosen)
        import pyarrow.parquet as pq

        with self._opened() as file:
            table = pq.read_table(self._path, columns=_own_names(file), filters=chosen, page_checksum_verification=True)
        return self._complete(table)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield pieces of at most :data:`BATCH_ROWS` rows. Texts may be dictionary-encoded."""
        if self._kept is not None:
            yield from self._kept.select(columns).to_batches()
            return
        with self._opened([name for name, kind in self._columns if kind == "string"]) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            # Reading group by group takes half the time of reading across their borders.
            for group in _one_ahead(partial(file.read_row_group, columns=present), file.num_row_groups):
                yield from self._complete(group, columns).select(columns).to_batches(BATCH_ROWS)

    @contextmanager
    def _opened(self, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
        """Open the parquet file. Errors while it is read become InputError."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(
                self._path, read_dictionary=list(dictionaries), page_checksum_verification=True
            ) as file:
                check_names(self._path, file.schema_arrow.names)
                yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        # Some of Arrow's messages have several lines, and bytes of the file in them.
        reason = " ".join("".join(character if character.isprintable() else " " for character in str(error)).split())
        return InputError(f"{self._path}: not a readable parquet file ({reason})")

    def _complete(self, table: pa.Table, wanted: Sequence[str] | None = None) -> pa.Table:
        return completed(self._path, table, self._columns, wanted)


def _own_names(file: Any) -> list[str]:
    """Return the names of a parquet file's columns, without those that repeat the run's arm and block."""
    return [name for name in file.schema_arrow.names if name not in OF_RUN]


def _one_ahead(read: Callable[[int], _Group], count: int) -> Iterator[_Group]:
    """Yield ``read(0)`` to ``read(count - 1)``. While the caller uses one result, a thread reads the next."""
    if count < 2:
        yield from map(read, range(count))
        return
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(read, 0)
        for number in range(1, count + 1):
            group = ahead.result()
            if number < count:
                ahead = reader.submit(read, number)
            yield group


def _give_back_at_once() -> None:
    """Make glibc return freed arrays of 8 MiB and more to the system at once. It keeps smaller ones: to request new
    memory for each would take a quarter of an analysis's time.
    """
    m_mmap_threshold, m_trim_threshold = -3, -1  # malloc.h
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 8 << 20)
        libc.mallopt(m_trim_threshold, 16 << 20)


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if two columns of the table at ``path`` have the same name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise _wrong(path, f"{times} columns named {name!r}")


def completed(
    path: Path, table: pa.Table, columns: tuple[tuple[str, str], ...], wanted: Sequence[str] | None = None
) -> pa.Table:
    """Return ``table`` with the types of ``columns``. Missing columns of later versions are added as nulls. ``wanted``:
    the columns that the result must have; None: all of ``columns``. Raises InputError for a missing column, wrong type
    or value.
    """
    import pyarrow as pa

    types = {field.name: field.type for field in table.schema}
    for name, kind in columns:
        if name in types:
            if types[name] != pa.type_for_alias(kind):
                table = _typed(path, table, name, pa.type_for_alias(kind))
            if name in ALWAYS_KNOWN and table.column(name).null_count:
                raise _wrong(path, f"column {name!r} holds nulls")
            if kind == "string":
                _check_text(path, table, name)
            elif kind == "int64":
                _check_range(path, table, name)
            continue
        if wanted is not None and name not in wanted:
            continue
        if name not in ADDED_COLUMNS:
            raise _wrong(path, f"no column {name!r}")
        table = table.append_column(name, pa.nulls(len(table), pa.type_for_alias(kind)))
    return table


def _typed(path: Path, table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    """Return ``table`` with the column ``name`` converted to ``kind``. Raises InputError if that is not possible."""
    import pyarrow as pa

    actual = table.schema.field(name).type
    if pa.types.is_dictionary(actual) and actual.value_type == kind:
        return table
    try:
        column = table.column(name).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(path, f"column {name!r} is {actual}, not {kind}") from error
    return table.set_column(table.schema.get_field_index(name), name, column)


def _check_text(path: Path, table: pa.Table, name: str) -> None:
    """Raise InputError if the column ``name`` has text that is not UTF-8, which would fail later."""
    import pyarrow as pa

    try:
        table.column(name).validate(full=True)
    except pa.ArrowInvalid as error:
        raise _wrong(path, f"column {name!r} holds bytes that are no text") from error


def _check_range(path: Path, table: pa.Table, name: str) -> None:
    """Raise InputError for a value below -2**53 or above 2**53, because sums would not be exact in floats. Clock times,
    which are not summed, may be from 0 to 2**62.
    """
    import pyarrow.compute as pc

    extremes = pc.min_max(table.column(name))
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    low, high = (0, LATEST_NS) if name in CLOCKS else (-LARGEST, LARGEST)
    if least is not None and not low <= least <= most <= high:
        raise _wrong(path, f"column {name!r} holds {least if least < low else most}, not {low} to {high}")


def _wrong(path: Path, what: str) -> InputError:
    return InputError(f"{path}: not a results table of schema {SCHEMA}: {what}")


TABLE_ROW_GROUP = 1 << 18  # maximum rows; a reader of some steps reads only the row groups that have them


def make_table(columns: tuple[tuple[str, str], ...], rows: Columns) -> pa.Table:
    """Return ``rows`` ({column: values}) as a table with exactly ``columns``; a missing column is null."""
    import pyarrow as pa

    count = len(next(iter(rows.values()))) if rows else 0
    arrays = {name: rows.get(name, pa.nulls(count, pa.type_for_alias(kind))) for name, kind in columns}
    return pa.table(arrays, schema=arrow_schema(columns))


def write_table(path: Path, columns: tuple[tuple[str, str], ...], rows: Columns) -> None:
    """Write ``rows`` as parquet (a missing column is null), below runs/ARM/BLOCK with columns for arm and block."""
    table = with_run(path, make_table(columns, rows))
    write_atomically(path, lambda temporary: write_parquet(temporary, table))


def with_run(path: Path, table: pa.Table) -> pa.Table:
    """Return ``table`` with leading columns ``arm`` and ``block`` if ``path`` is runs/ARM/BLOCK/FILE; else itself."""
    import pyarrow as pa

    runs, arm, block = ("", "", "", *path.absolute().parts)[-4:-1]
    if runs != "runs" or not block.isdecimal():
        return table
    for (name, kind), value in reversed(list(zip(RUN_COLUMNS, (arm, int(block)), strict=True))):
        table = table.add_column(0, name, pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), len(table)))
    return table


def read_table(path: Path, columns: tuple[tuple[str, str], ...]) -> pa.Table | None:
    """Return the table at ``path``; None if there is no file. Raises InputError if it does not follow the contract."""
    return StoredTable(path, columns).read() if path.exists() else None


class TableFile:
    """Writes a table in portions to a temporary file. :meth:`append` returns once the portion is on disk."""

    def __init__(self, path: Path, columns: tuple[tuple[str, str], ...]) -> None:
        self._path, self._columns = path, columns
        self._temporary = temporary_path(path)
        self._writer: Any = None

    def append(self, rows: Columns) -> None:
        """Add a portion of rows ({column: values}). A missing column is null."""
        import pyarrow.parquet as pq

        table = with_run(self._path, make_table(self._columns, rows))
        with naming(self._path, self._temporary):
            if self._writer is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = pq.ParquetWriter(self._temporary, table.schema, **_options(table.schema))
            self._writer.write_table(table, TABLE_ROW_GROUP)

    def close(self) -> None:
        """Finish the file and give it its final name. Until then no reader sees it."""
        if self._writer is None:
            self.append({})
        with naming(self._path, self._temporary):
            self._writer.close()
            self._temporary.replace(self._path)

    def discard(self) -> None:
        """Remove the temporary file, after a failure. Does nothing after :meth:`close`."""
        try:
            if self._writer is not None:
                with naming(self._path, self._temporary):
                    self._writer.close()  # Closing writes the file's footer, which fails on a full disk.
        finally:
            self._temporary.unlink(missing_ok=True)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write ``table`` to ``path`` with the options that all tables of a study have. Not atomic."""
    import pyarrow.parquet as pq

    pq.write_table(table, path, TABLE_ROW_GROUP, **_options(table.schema))


def _options(schema: pa.Schema) -> dict[str, Any]:
    """Return parquet options: page checksums; dictionaries for texts only, because for times they save nothing."""
    import pyarrow as pa

    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return {"write_page_checksum": True, "use_dictionary": texts}
