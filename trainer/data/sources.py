"""Reads rows of parquet columns by index, by Arrow's scalars (the founding study's way) or buffers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import DataConfig
from trainer.data.formats.flat import FlatTokens
from trainer.data.packing import PaddedRows
from trainer.errors import InputError

Index = Sequence[int]


class _Columns:
    """Opens columns of Parquet files as one table. Raises InputError if it has fewer than ``rows`` rows."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], rows: int) -> None:
        self._files, self._names, self._rows = tuple(files), list(columns), rows

    def open(self) -> Any:
        """Return the pyarrow Table of all files, decoded in this thread alone, so that reading uses no hidden core."""
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
        """Return the texts of the rows ``indices``, in that order."""
        table = self._table = self._columns.open() if self._table is None else self._table
        return [table.column(self._column)[int(index)].as_py() for index in indices]


class ZeroCopyTextSource:
    """Reads text from the value buffers of an Arrow column, row by row, without an Arrow object for each row."""

    def __init__(self, files: Sequence[str], column: str, rows: int) -> None:
        self._columns, self._column = _Columns(files, [column], rows), column
        self._parts: list[tuple[NDArray[Any], memoryview]] = []  # (offsets, UTF-8) of each chunk
        self._ends: list[int] = []  # row after each chunk's last one

    def read(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the texts of the rows ``indices``, in that order."""
        if not self._parts:
            column = self._columns.open().column(self._column)
            chunks = [chunk for chunk in column.chunks if len(chunk)]  # An empty chunk may lack its buffers.
            self._parts = [_text_part(chunk) for chunk in chunks]
            self._ends = list(accumulate(map(len, chunks)))
        return [self._text(index) for index in indices.tolist()]

    def _text(self, index: int) -> str:
        chunk = bisect_right(self._ends, index)
        offsets, data = self._parts[chunk]
        row = index - (self._ends[chunk - 1] if chunk else 0)
        return str(data[offsets.item(row) : offsets.item(row + 1)], "utf-8")


class ScalarTokenSource:
    """Reads token lists (or input ids and mask) through one Arrow scalar per row and column."""

    def __init__(self, files: Sequence[str], columns: Sequence[str], rows: int) -> None:
        self._columns, self._names, self._table = _Columns(files, columns, rows), tuple(columns), None

    def read(self, indices: Index) -> list[tuple[list[int], ...]]:
        """Return for each row of ``indices`` a tuple with one list per column."""
        table = self._table = self._columns.open() if self._table is None else self._table
        return [tuple(table.column(name)[int(index)].as_py() for name in self._names) for index in indices]


class PaddedSource:
    """Reads rows of a padded file from Arrow's buffers (int32, int8)."""

    def __init__(self, files: Sequence[str], rows: int, length: int) -> None:
        self._columns, self._length = _Columns(files, ["input_ids", "attention_mask"], rows), length
        self._ids: list[NDArray[Any]] | None = None
        self._masks: list[NDArray[Any]] = []
        self._ends: NDArray[np.int64]

    def read(self, indices: NDArray[np.int64]) -> PaddedRows:
        """Return input ids and attention mask of the rows ``indices``, each of shape (rows, sequence length)."""
        if self._ids is None:
            table = self._columns.open()
            self._ids, self._masks = (self._matrices(table.column(name)) for name in ("input_ids", "attention_mask"))
            self._ends = np.cumsum([len(matrix) for matrix in self._ids])
        if len(self._ids) == 1:
            return PaddedRows(self._ids[0][indices], self._masks[0][indices])
        chunks = self._ends.searchsorted(indices, side="right")
        ids = np.empty((len(indices), self._length), dtype=self._ids[0].dtype)
        masks = np.empty((len(indices), self._length), dtype=self._masks[0].dtype)
        for chunk in np.unique(chunks).tolist():
            positions = np.flatnonzero(chunks == chunk)
            rows = indices[positions] - (self._ends[chunk] - len(self._ids[chunk]))
            ids[positions], masks[positions] = self._ids[chunk][rows], self._masks[chunk][rows]
        return PaddedRows(ids, masks)

    def _matrices(self, column: Any) -> list[NDArray[Any]]:
        parts = [_list_part(chunk) for chunk in column.chunks if len(chunk)]
        return [values[offsets[0] : offsets[-1]].reshape(-1, self._length) for offsets, values in parts]


def flat_of_lists(file: str, column: str, rows: int) -> FlatTokens:
    """Return token lists as flat int32, a view if in one chunk. Raises InputError for fewer than ``rows`` rows."""
    table = _Columns([file], [column], rows).open()
    parts = [_list_part(chunk) for chunk in table.column(column).chunks if len(chunk)]
    del table  # Each part can then be freed once it is copied.
    if len(parts) == 1:
        offsets, values = parts[0]
        return FlatTokens(values[offsets[0] : offsets[-1]], (offsets - offsets[0]).astype(np.int64))
    tokens = np.empty(sum(int(offsets[-1] - offsets[0]) for offsets, _ in parts), dtype=np.int32)
    places = np.zeros(1 + sum(len(offsets) - 1 for offsets, _ in parts), dtype=np.int64)
    filled = documents = 0
    parts.reverse()
    while parts:
        offsets, values = parts.pop()
        copied, added = int(offsets[-1] - offsets[0]), len(offsets) - 1
        tokens[filled : filled + copied] = values[offsets[0] : offsets[-1]]
        places[documents + 1 : documents + 1 + added] = offsets[1:] - offsets[0] + filled
        filled, documents = filled + copied, documents + added
    return FlatTokens(tokens, places)


def _text_part(chunk: Any) -> tuple[NDArray[Any], memoryview]:
    import pyarrow as pa

    kind = np.int64 if pa.types.is_large_string(chunk.type) else np.int32
    _, offsets, data = chunk.buffers()
    first = chunk.offset
    text = memoryview(data) if data is not None else memoryview(b"")  # A chunk of empty strings may have no buffer.
    return np.frombuffer(offsets, kind)[first : first + len(chunk) + 1], text


def _list_part(chunk: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    # .offsets counts from .values, also for a sliced chunk.
    return chunk.offsets.to_numpy(zero_copy_only=True), chunk.values.to_numpy(zero_copy_only=True)


def text_source(
    config: DataConfig, files: Sequence[str], column: str, rows: int
) -> ScalarTextSource | ZeroCopyTextSource:
    """Return the source of at least ``rows`` texts for ``config.access``: Arrow scalars or value buffers."""
    return (ScalarTextSource if config.access == "scalar" else ZeroCopyTextSource)(files, column, rows)


def token_source(config: DataConfig, folder: str, rows: int) -> ScalarTokenSource | PaddedSource:
    """Return the source of a pretokenized folder; packed zero-copy rows use :func:`flat_of_lists` instead."""
    files = [str(Path(folder) / "data.parquet")]
    if config.access == "zero-copy":
        assert config.path == "tokens-padded", config.path
        return PaddedSource(files, rows, config.sequence_length)
    columns = ("tokens",) if config.path == "tokens-stream" else ("input_ids", "attention_mask")
    return ScalarTokenSource(files, columns, rows)
