"""Reads text files in blocks, decompressed: each is a document, or each of its lines or paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainer.data.corpus import places
from trainer.data.corpus.base import LARGEST_DOCUMENT, Split
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
    head = read_bytes(name, file, _LONGEST_MAGIC)
    file.seek(0)
    codec = next((codec for magic, codec in _MAGIC.items() if re.match(magic, head)), None)
    return file if codec is None else pa.CompressedInputStream(file, codec)


def read_bytes(name: str, stream: Any, most: int) -> bytes:
    """Return the next ``most`` bytes of ``stream``. Raises InputError if the file ``name`` is damaged."""
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
        while block := read_bytes(name, stream, BLOCK):
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


def too_large(name: str) -> InputError:
    return InputError(f"{name}: a document of more than {LARGEST_DOCUMENT:,} bytes; divide it")


_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")


def read(name: str, split: Split) -> Iterator[Any]:
    """Yield documents as Arrow strings, without line ends around and a byte order mark; a paragraph is never empty."""
    import pyarrow as pa

    row = 0
    for documents in _whole(name) if split == "file" else _lines(name) if split == "line" else _paragraphs(name):
        values = pa.array(documents, pa.binary())
        try:
            yield values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise _not_text(name, documents, row, split) from error
        row += len(documents)


def _whole(name: str) -> Iterator[list[bytes]]:
    with open_stream(name) as stream:
        content = read_bytes(name, stream, LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise too_large(name)
    yield [content.removeprefix(_BOM)]


def _lines(name: str) -> Iterator[list[bytes]]:
    for number, block in enumerate(blocks(name)):
        parts = (block.removeprefix(_BOM) if number == 0 else block).split(b"\n")
        if not parts[-1]:
            parts.pop()
        yield [line.removesuffix(b"\r") for line in parts]


def _paragraphs(name: str) -> Iterator[list[bytes]]:
    held, size = [b"\n"], 0  # begin of a paragraph that may continue, after a line end so that blank lines match
    for number, block in enumerate(blocks(name)):
        block = block.removeprefix(_BOM) if number == 0 else block
        held.append(block)
        size += len(block)
        if size > LARGEST_DOCUMENT:
            raise too_large(name)
        # The blank lines may begin with the last line of the block before.
        if _BLANK_LINES.search(block) or not block.strip() or block[: block.find(b"\n") + 1].strip() == b"":
            *paragraphs, last = _BLANK_LINES.split(b"".join(held))
            yield _with_text(paragraphs)
            held, size = [b"\n", last], len(last)
    # The added line end makes a last line of white space blank even without one.
    yield _with_text(_BLANK_LINES.split(b"".join(held) + b"\n"))


def _with_text(paragraphs: list[bytes]) -> list[bytes]:
    return [text for paragraph in paragraphs if (text := paragraph.strip(b"\r\n")).strip()]


def _not_text(name: str, documents: list[bytes], row: int, split: Split) -> InputError:
    for number, document in enumerate(documents, start=row):
        try:
            document.decode()
        except UnicodeDecodeError as error:
            place = name if split == "file" else f"{name}, row {number} (from 0)"
            return InputError(f"{place}: not UTF-8 text (byte {error.start}: {document[error.start]:#04x})")
    raise AssertionError("Arrow and Python disagree about UTF-8")
