"""Reads files in blocks of whole lines, decompressed if they are gzip, Zstandard or bzip2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import LARGEST_DOCUMENT
from trainer.errors import InputError

BLOCK = 8 * 2**20  # bytes
# First bytes of each compression; bzip2 has two, for content and for an empty file.
_MAGIC = {
    rb"\x1f\x8b": "gzip",
    rb"\x28\xb5\x2f\xfd": "zstd",
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": "bz2",
}
_LONGEST_MAGIC = 10  # bytes


def open_stream(name: str) -> Any:
    """Open the file's bytes, decompressed if its first bytes say so. Close the stream after use."""
    import pyarrow as pa

    file = places.open_file(name)
    head = read(name, file, _LONGEST_MAGIC)
    file.seek(0)
    codec = next((codec for magic, codec in _MAGIC.items() if re.match(magic, head)), None)
    return file if codec is None else pa.CompressedInputStream(file, codec)


def read(name: str, stream: Any, most: int) -> bytes:
    """Return the next ``most`` bytes of ``stream``, fewer at its end.

    Raises InputError if the file ``name`` is damaged.
    """
    import pyarrow as pa

    parts = []
    try:
        while most > 0 and (part := stream.read(most)):
            parts.append(part)
            most -= len(part)
    except (pa.ArrowException, OSError) as error:
        raise places.unreadable(name, error) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def blocks(name: str) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines. A line longer than a block is a block of its own."""
    with open_stream(name) as stream:
        parts: list[bytes] = []
        size = 0
        while block := read(name, stream, BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                parts.append(block[:end])
                yield b"".join(parts) if len(parts) > 1 else parts[0]
                parts, size = [], 0
            parts.append(block[end:])
            size += len(block) - end
            if size > LARGEST_DOCUMENT:
                raise too_large(name)
        if last := b"".join(parts):
            yield last


def too_large(name: str, row: int | None = None) -> InputError:
    place = name if row is None else f"{name}, row {row}"
    return InputError(f"{place}: a document of more than {LARGEST_DOCUMENT:,} bytes; divide it")
