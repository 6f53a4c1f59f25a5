"""Reads rows of parquet columns by index, through scalars (as in the founding study) or Arrow's buffers (zero-copy).

A source opens its files on first use, in the process that reads: a loader worker inherits only their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import DataConfig
from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Index = Sequence[int]


class _Columns:
    """Gives the named columns of several parquet files as one table, opened on first use."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], rows: int) -> None:
        self._files, self._names, self._rows = tuple(files), list(columns), rows

    def open(self) -> Any:
        """Return the pyarrow Table. It is decoded once, on this thread alone, so that reading uses no hidden core."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            tables = [
                pq.read_table(file, columns=self._names, use_threads=False, memory_map=True, pre_buffer=False)
                for file in self._files
            ]
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise InputError(f"{', '.join(self._files[:3])}: cannot be read ({reason})") from error
        table = pa.concat_tables(tables, promote_options="permissive")
        if table.num_rows < self._rows:
            raise InputError(
                f"{self._files[0]}: {table.num_rows} rows, {self._rows} when it was prepared; run it again"
            )
        return table


class ScalarTextSource:
    """Reads text through one Arrow scalar per row."""

    def __init__(self, files: Sequence[str], column: str, rows: int) -> None:
        self._columns, self._column, self._table = _Columns(files, [column], rows), column, None

    def read(self, indices: Index) -> list[str]:
        """The texts of these rows."""
        table = self._table = self._columns.open() if self._table is None else self._table
        return [table.column(self._column)[int(index)].as_py() for index in indices]


class ZeroCopyTextSource:
    """Reads text straight from the column's value buffer."""

    def __init__(self, files: Sequence[str], column: str, rows: int) -> None:
        self._columns, self._column = _Columns(files, [column], rows), column
        self._chunks: _Chunked | None = None

    def read(self, indices: Index) -> list[str]:
        """The texts of these rows."""
        if self._chunks is None:
            self._chunks = _chunked(self._columns.open(), self._column)
        texts = []
        for index in indices:
            (offsets, data), row = self._chunks.locate(index)
            texts.append(str(data[offsets[row] : offsets[row + 1]], "utf-8"))
        return texts


class ScalarTokenSource:
    """Reads token lists (or input ids and mask) through one Arrow scalar per row and column, as Python lists."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], rows: int) -> None:
        self._columns, self._names, self._table = _Columns(files, columns, rows), tuple(columns), None

    def read(self, indices: Index) -> list[tuple[list[int], ...]]:
        """Return for each row a tuple with one list per column."""
        table = self._table = self._columns.open() if self._table is None else self._table
        return [tuple(table.column(name)[int(index)].as_py() for name in self._names) for index in indices]


class ZeroCopyTokenSource:
    """Reads the same rows as numpy views (int32, int8) of Arrow's buffers, without a Python int."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], rows: int) -> None:
        self._columns, self._names = _Columns(files, columns, rows), tuple(columns)
        self._chunks: list[_Chunked] | None = None

    def read(self, indices: Index) -> list[tuple[NDArray[Any], ...]]:
        """Return for each row a tuple with one read-only view per column."""
        if self._chunks is None:
            table = self._columns.open()
            self._chunks = [_chunked(table, name) for name in self._names]
        rows = []
        for index in indices:
            views = []
            for chunks in self._chunks:
                (offsets, values), row = chunks.locate(index)
                views.append(values[offsets[row] : offsets[row + 1]])
            rows.append(tuple(views))
        return rows


class _Chunked:
    """Finds a row in a chunked column: offsets and values of each chunk, and its first row."""

    def __init__(self, parts: list[tuple[Any, Any]], lengths: list[int]) -> None:
        import numpy as np

        self._parts = parts
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths

    def locate(self, index: int) -> tuple[tuple[Any, Any], int]:
        """Return (offsets, values) of the chunk that holds row ``index``, and the row's place in the chunk."""
        chunk = int(self._ends.searchsorted(index, side="right"))
        return self._parts[chunk], int(index - self._starts[chunk])


def _chunked(table: Any, name: str) -> _Chunked:
    import pyarrow as pa

    chunks = [chunk for chunk in table.column(name).chunks if len(chunk)]  # an empty one may lack its buffers
    is_text = [pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type) for chunk in chunks]
    parts = [_text_part(chunk) if text else _list_part(chunk) for chunk, text in zip(chunks, is_text, strict=True)]
    return _Chunked(parts, [len(chunk) for chunk in chunks])


def _text_part(chunk: Any) -> tuple[NDArray[Any], memoryview]:
    import numpy as np
    import pyarrow as pa

    kind = np.int64 if pa.types.is_large_string(chunk.type) else np.int32
    _, offsets, data = chunk.buffers()
    first = chunk.offset
    text = memoryview(data) if data is not None else memoryview(b"")  # a chunk of empty strings may have no buffer
    return np.frombuffer(offsets, kind)[first : first + len(chunk) + 1], text


def _list_part(chunk: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    # .offsets counts from .values, also for a sliced chunk.
    return chunk.offsets.to_numpy(zero_copy_only=True), chunk.values.to_numpy(zero_copy_only=True)


def text_source(
    config: DataConfig, files: Sequence[str], column: str, rows: int
) -> ScalarTextSource | ZeroCopyTextSource:
    """Choose the text source that ``config.access`` asks for."""
    return (ScalarTextSource if config.access == "scalar" else ZeroCopyTextSource)(files, column, rows)


def token_source(config: DataConfig, folder: str, rows: int) -> ScalarTokenSource | ZeroCopyTokenSource:
    """Choose the source of a pretokenized folder that ``config.access`` asks for."""
    columns = ("tokens",) if config.path == "tokens-stream" else ("input_ids", "attention_mask")
    reader = ScalarTokenSource if config.access == "scalar" else ZeroCopyTokenSource
    return reader([str(Path(folder) / "data.parquet")], columns, rows)
