"""Reads a column of a Parquet file, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import CORPUS_ROW_GROUP, MAX_ROW_GROUP_BYTES, first_line
from trainer.errors import InputError

_READ_BUFFER_BYTES = 8 * 2**20  # one read over the network
_LOCAL_BUFFER_BYTES = 2**20


def open_parquet(name: str) -> Any:
    """Return an open ParquetFile. Raises InputError, different for a truncated file and for no Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if places.is_remote(name):
        file = places.open_file(name)
        try:
            return pq.ParquetFile(file, buffer_size=_READ_BUFFER_BYTES)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            file.seek(0)
            raise _not_parquet(name, file.read(4), error) from error
    try:
        # Without mapping and reading ahead: their pages and row groups would stay in memory until the file's end.
        return pq.ParquetFile(name, buffer_size=_LOCAL_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        with Path(name).open("rb") as file:
            head = file.read(4)
        raise _not_parquet(name, head, error) from error
    except OSError as error:
        raise places.unreadable(name, error) from error


def _not_parquet(name: str, head: bytes, error: BaseException) -> InputError:
    if head == b"PAR1":
        return InputError(f"{name}: truncated or damaged parquet file (its footer cannot be read)")
    if isinstance(error, OSError):
        return InputError(f"{name}: cannot be read ({first_line(error)})")
    return InputError(f"{name}: not a parquet file")


def schema(name: str) -> Any:
    """Return the file's Arrow schema."""
    import pyarrow as pa

    try:
        return open_parquet(name).schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(name, error) from error


def batches(name: str, columns: list[str]) -> Iterator[Any]:
    """Yield the named columns as Arrow record batches. Batches have fewer rows if the rows are large."""
    import pyarrow as pa

    file = open_parquet(name)
    try:
        rows = _rows(file.metadata)
        yield from file.iter_batches(rows, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(name, error) from error


def tables(name: str, skip: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the file's rows (``columns`` None: all) without the first ``skip``, whose row groups are not read."""
    import pyarrow as pa

    file = open_parquet(name)
    try:
        rows = _rows(file.metadata)
        for number in range(file.num_row_groups):
            if skip >= file.metadata.row_group(number).num_rows:
                skip -= file.metadata.row_group(number).num_rows
                continue
            for batch in file.iter_batches(rows, [number], columns=columns, use_threads=False):
                if skip < len(batch):
                    yield pa.Table.from_batches([batch.slice(skip)])
                skip = max(skip - len(batch), 0)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(name, error) from error


def damaged(name: str, error: BaseException) -> InputError:
    return InputError(f"{name}: damaged parquet file ({first_line(error)})")


def _rows(metadata: Any) -> int:
    """Return the number of rows to read at once, for about :data:`MAX_ROW_GROUP_BYTES` of the largest rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    mean = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0.0)
    return max(1, min(CORPUS_ROW_GROUP, int(MAX_ROW_GROUP_BYTES / mean))) if mean else CORPUS_ROW_GROUP
