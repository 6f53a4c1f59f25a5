"""Reads a column of Arrow IPC files and streams, such as Hugging Face's ``save_to_disk`` writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import first_line
from trainer.errors import InputError

_FILE_MAGIC = b"ARROW1"
_MOST_PADDING = 64  # bytes between a file's data, including the end mark, and its footer


def schema(name: str) -> Any:
    """Return the file's Arrow schema."""
    with _opened(name) as (_, reader):
        return reader.schema


def read(name: str, column: str) -> Iterator[Any]:
    """Yield the column's values as Arrow arrays, one for each record batch of the file."""
    for batch in batches(name):
        yield batch.column(batch.schema.get_field_index(column))


def batches(name: str) -> Iterator[Any]:
    """Yield the file's record batches. Raises InputError if the file is cut short or continues after its end."""
    with _opened(name) as (file, reader):
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
    """Yield (offset, bytes of metadata, bytes of the body) of each batch that a footer, a flatbuffer, lists.

    Arrow has verified the flatbuffer on opening the file. Fields 2 and 3 of a footer are vectors of 24-byte blocks.
    """
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
def _opened(name: str) -> Iterator[tuple[Any, Any]]:
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
