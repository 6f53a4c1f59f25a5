"""Writes tables of the results contract as parquet files; pyarrow is imported only when one is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.study.contract import RUN_COLUMNS, Columns, arrow_schema
from harness.study.run_data import StoredTable
from trainer.files import naming, write_atomically
from trainer.leftovers import temporary_path

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROW_GROUP = 1 << 18  # rows at most: a reader who wants some steps reads the row groups that have them


def make_table(columns: tuple[tuple[str, str], ...], rows: Columns) -> pa.Table:
    """``rows`` ({column: values}) as a table with exactly ``columns``; a missing column is all null."""
    import pyarrow as pa

    count = len(next(iter(rows.values()))) if rows else 0
    given = {name: rows.get(name, pa.nulls(count, pa.type_for_alias(kind))) for name, kind in columns}
    return pa.table(given, schema=arrow_schema(columns))


def write_table(path: Path, columns: tuple[tuple[str, str], ...], rows: Columns) -> None:
    """Write ``rows`` ({column: values}) as parquet: what run it is of, then ``columns``; a missing one is all null."""
    table = with_run(path, make_table(columns, rows))
    write_atomically(path, lambda temporary: write_parquet(temporary, table))


def with_run(path: Path, table: pa.Table) -> pa.Table:
    """``table`` behind the columns that say of which run it is, as the folder says: ``path`` is runs/ARM/BLOCK/FILE.

    As it is where ``path`` is another one.
    """
    import pyarrow as pa

    runs, arm, block = ("", "", "", *path.absolute().parts)[-4:-1]
    if runs != "runs" or not block.isdecimal():
        return table
    for (name, kind), value in reversed(list(zip(RUN_COLUMNS, (arm, int(block)), strict=True))):
        table = table.add_column(0, name, pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), len(table)))
    return table


def read_table(path: Path, columns: tuple[tuple[str, str], ...]) -> pa.Table | None:
    """The table at ``path``; None where there is none; InputError where it is not one of ours."""
    return StoredTable(path, columns).read() if path.exists() else None


class TableFile:
    """A table that is written in portions: each is on disk, and out of memory, when :meth:`append` returns."""

    def __init__(self, path: Path, columns: tuple[tuple[str, str], ...]) -> None:
        self._path, self._columns = path, columns
        self._temporary = temporary_path(path)
        self._writer: Any = None

    def append(self, rows: Columns) -> None:
        """Add rows ({column: values}); a missing column is all null."""
        import pyarrow.parquet as pq

        table = with_run(self._path, make_table(self._columns, rows))
        with naming(self._path, self._temporary):
            if self._writer is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = pq.ParquetWriter(self._temporary, table.schema, **_options(table.schema))
            self._writer.write_table(table, TABLE_ROW_GROUP)

    def close(self) -> None:
        """Give the file its name: until then nobody sees it."""
        if self._writer is None:
            self.append({})
        with naming(self._path, self._temporary):
            self._writer.close()
            self._temporary.replace(self._path)

    def discard(self) -> None:
        """Leave nothing; harmless after :meth:`close`."""
        try:
            if self._writer is not None:
                with naming(self._path, self._temporary):
                    self._writer.close()  # which writes its end: not on a full disk
        finally:
            self._temporary.unlink(missing_ok=True)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write ``table`` to ``path`` as all tables are written here; not atomically."""
    import pyarrow.parquet as pq

    pq.write_table(table, path, TABLE_ROW_GROUP, **_options(table.schema))


def _options(schema: pa.Schema) -> dict[str, Any]:
    """Page checksums; and dictionaries of texts only, as of times one takes half of all writing and saves nothing."""
    import pyarrow as pa

    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return {"write_page_checksum": True, "use_dictionary": texts}
