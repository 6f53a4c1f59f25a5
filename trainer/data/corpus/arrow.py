"""Reads a column of Arrow IPC files and streams, such as Hugging Face's ``save_to_disk`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import first_line
from trainer.errors import InputError

_FILE_MAGIC = b"ARROW1"


def schema(name: str) -> Any:
    """The file's Arrow schema."""
    with _opened(name) as reader:
        return reader.schema


def read(name: str, column: str) -> Iterator[Any]:
    """Yield the column's values as Arrow arrays, one for each record batch of the file."""
    for batch in batches(name):
        yield batch.column(batch.schema.get_field_index(column))


def batches(name: str) -> Iterator[Any]:
    """Yield the file's record batches."""
    with _opened(name) as reader:
        count = getattr(reader, "num_record_batches", None)  # of a file; a stream is read to its end
        if count is None:
            yield from reader
        else:
            for number in range(count):
                yield reader.get_batch(number)


@contextmanager
def _opened(name: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    with places.open_file(name, mapped=True) as file:
        try:
            is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            file.seek(0)
            with ipc.open_file(file) if is_file else ipc.open_stream(file) as reader:
                yield reader
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}: truncated or damaged Arrow file, or none ({first_line(error)})") from error
