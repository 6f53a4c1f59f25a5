"""Reads tables in batches: Parquet, and Arrow IPC files and streams (Hugging Face's ``save_to_disk``)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import CORPUS_ROW_GROUP, MAX_ROW_GROUP_BYTES, Format, first_line
from trainer.errors import InputError

_READ_BUFFER_BYTES = 8 * 2**20  # one read over the network
_LOCAL_BUFFER_BYTES = 2**20
_FILE_MAGIC = b"ARROW1"
_MOST_PADDING = 64  # bytes between an Arrow file's data, including the end mark, and its footer


def schema(name: str, format: Format) -> Any:
    """Return the Arrow schema of a Parquet or Arrow file."""
    import pyarrow as pa

    if format == "arrow":
        with _opened_arrow(name) as (_, reader):
            return reader.schema
    try:
        return open_parquet(name).schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(name, error) from error


def batches(name: str, format: Format, columns: list[str] | None = None, skip: int = 0) -> Iterator[Any]:
    """Yield bounded record batches. Parquet only: ``columns`` (None: all), rows to ``skip``. Raises InputError."""
    return _arrow_batches(name) if format == "arrow" else _parquet_batches(name, columns, skip)


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


def _damaged(name: str, error: BaseException) -> InputError:
    return InputError(f"{name}: damaged parquet file ({first_line(error)})")


def _parquet_batches(name: str, columns: list[str] | None, skip: int) -> Iterator[Any]:
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
                    yield batch.slice(skip)
                skip = max(skip - len(batch), 0)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(name, error) from error


def _rows(metadata: Any) -> int:
    """Return how many rows to read at once: :data:`MAX_ROW_GROUP_BYTES`, at most :data:`CORPUS_ROW_GROUP`."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    mean = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=0.0)
    return max(1, min(CORPUS_ROW_GROUP, int(MAX_ROW_GROUP_BYTES / mean))) if mean else CORPUS_ROW_GROUP


def _arrow_batches(name: str) -> Iterator[Any]:
    """Yield an Arrow file's record batches. Raises InputError if it is cut short or continues after its end."""
    with _opened_arrow(name) as (file, reader):
        count = getattr(reader, "num_record_batches", None)  # missing for a stream
        if count is None:
            yield from _to_the_end(name, file, reader)
        else:
            _check_one_file(name, file)
            for number in range(count):
                yield reader.get_batch(number)


def _to_the_end(name: str, file: Any, reader: Any) -> Iterator[Any]:
    """Yield a stream's batches. Raises InputError if its end mark is missing, or is not the end of the file."""
    while True:
        position = file.tell()
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        yield batch
    if file.tell() == position:
        raise InputError(
            f"{name}: the Arrow stream has no end mark: it was cut short, or its writer was not closed; copy or write "
            "it again"
        )
    if (trailing := file.size() - file.tell()) > 0:
        raise InputError(
            f"{name}: {trailing:,} bytes follow the end of the Arrow stream, such as a second stream; give each a "
            "file of its own"
        )


def _check_one_file(name: str, file: Any) -> None:
    """Raise InputError if several Arrow files were joined, because the footer describes only the last one."""
    size = file.size()
    tail = file.read_at(10, size - 10)  # the footer's length and the closing magic
    length = struct.unpack("<i", tail[:4])[0]
    footer = file.read_at(length, size - 10 - length)
    end = max((offset + metadata + body for offset, metadata, body in _blocks(footer)), default=None)
    if end is not None and size - 10 - length - end > _MOST_PADDING:
        raise InputError(
            f"{name}: its footer does not belong to all of its data: several Arrow files stand in one; give each a "
            "file of its own"
        )


def _blocks(footer: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, bytes of metadata, bytes of body) of the blocks in the footer's flatbuffer, fields 2 and 3."""
    table = struct.unpack_from("<I", footer)[0]
    fields = table - struct.unpack_from("<i", footer, table)[0]
    for number in (2, 3):
        slot = 4 + 2 * number
        offset = (
            struct.unpack_from("<H", footer, fields + slot)[0]
            if slot < struct.unpack_from("<H", footer, fields)[0]
            else 0
        )
        if offset:
            vector = table + offset + struct.unpack_from("<I", footer, table + offset)[0]
            for place in range(struct.unpack_from("<I", footer, vector)[0]):
                yield struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * place)


@contextmanager
def _opened_arrow(name: str) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    with places.open_file(name, mapped=True) as file:
        try:
            is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            file.seek(0)
            with ipc.open_file(file) if is_file else ipc.open_stream(file) as reader:
                yield file, reader
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}: truncated or damaged Arrow file, or none ({first_line(error)})") from error
