"""Reads text files: each is a document, or each line of it, or each of its paragraphs between blank lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainer.data.corpus import lines
from trainer.data.corpus.base import LARGEST_DOCUMENT, Split
from trainer.errors import InputError

_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")


def read(name: str, split: Split) -> Iterator[Any]:
    """Yield the file's documents as Arrow arrays of strings.

    ``line``: a blank line is an empty document. ``blank-line``: no document is empty. Line ends around a document and a
    byte order mark at the file's start are not part of it.
    """
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
    with lines.open_stream(name) as stream:
        content = lines.read(name, stream, LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise lines.too_large(name)
    yield [content.removeprefix(_BOM)]


def _lines(name: str) -> Iterator[list[bytes]]:
    for number, block in enumerate(lines.blocks(name)):
        parts = (block.removeprefix(_BOM) if number == 0 else block).split(b"\n")
        if not parts[-1]:
            parts.pop()
        yield [line.removesuffix(b"\r") for line in parts]


def _paragraphs(name: str) -> Iterator[list[bytes]]:
    held, size = [b"\n"], 0  # begin of a paragraph that may continue, after a line end so that blank lines match
    for number, block in enumerate(lines.blocks(name)):
        block = block.removeprefix(_BOM) if number == 0 else block
        held.append(block)
        size += len(block)
        if size > LARGEST_DOCUMENT:
            raise lines.too_large(name)
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
