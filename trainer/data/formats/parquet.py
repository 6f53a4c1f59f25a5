"""Writes tokens as the founding study's parquet files: Snappy, row groups of 1000 documents.

A row group has fewer documents if they are so long that a thousand would need much memory. Arrow's lists take the
arrays without a Python object for a token.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data.corpus import CORPUS_ROW_GROUP
from trainer.data.formats.flat import Writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_VALUES = 1 << 24  # values of a row group (64 MiB of int32), unless its last document alone has more


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
