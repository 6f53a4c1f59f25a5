"""Defines a corpus: which files its documents lie in, how they are read, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

# flat: tokens.bin of harness data pretokenize, which no key names: see trainer.data.corpus.pretokenized
Format = Literal["parquet", "jsonl", "text", "arrow", "flat"]
Identity = str | list[str | int]  # of a file: its content's fingerprint or, where it is remote, what changes with it
Content = Literal["text", "tokens", "chat"]  # strings; lists of token ids; lists of messages, which a template renders
Split = Literal["file", "line", "blank-line"]
# Reasons that a file or a folder is not read; finding.REASONS has the text of each.
Reason = Literal["hidden", "output", "repeated", "folder", "special", "format", "suffix", "unnamed"]

CORPUS_ROW_GROUP = 1000  # rows per row group of every parquet file this package writes
MAX_ROW_GROUP_BYTES = 16 * 2**20  # of documents that are handed on together, unless a single one is larger
LARGEST_DOCUMENT = 2**31 - 1  # bytes: the offsets of Arrow's strings and lists are int32
MOST_CHARACTERS = 300  # of another library's message in one of ours


@dataclass(frozen=True)
class ChatTemplate:
    """A template's text, and the tokens that it may write. It is picklable."""

    source: str
    tokens: tuple[tuple[str, str], ...]  # bos_token and its like
    name: str


@dataclass(frozen=True)
class PassedOver:
    """Files, or folders, that are not read for one reason. ``names``: the first of them."""

    reason: Reason
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Documents, in the order of ``files`` and rows. Only the first ``documents`` are used. It is picklable."""

    name: str
    files: tuple[str, ...]  # absolute paths, or URLs
    column: str
    documents: int  # rows used, empty ones included
    empty: int  # how many of these are the empty string: counted here, skipped by every data path
    fingerprint: str  # of the files' content, the column, the number of documents, and how they are read
    format: Format = "parquet"
    content: Content = "text"
    split: Split = "file"  # what a document of a text file is
    template: ChatTemplate | None = None  # of a column of chats
    largest_id: int | None = None  # of a column of token ids
    largest_at: str = ""  # where that id is, for messages
    text_bytes: int | None = None  # length of the documents in UTF-8; None for token ids and chats
    masked: bool = False  # The column attention_mask marks the token ids that are padding.
    pretokenized: tuple[
        str, ...
    ] = ()  # folders of harness data pretokenize that hold these documents, the read one first
    known: tuple[Identity, ...] = ()  # each of the files when it was checked; () of a copy in the cache
    passed_over: tuple[PassedOver, ...] = ()  # files of the folder or glob that are not read
    rows_expected: int | None = None  # rows of a whole split of save_to_disk, by its dataset_info.json


def bounded(values: Any, rows: int) -> Iterator[Any]:
    """Cut an Arrow array into slices of at most ``rows`` and, unless it is one row, :data:`MAX_ROW_GROUP_BYTES`."""
    start = 0
    while start < len(values):
        piece = values.slice(start, rows)
        while len(piece) > 1 and piece.nbytes > MAX_ROW_GROUP_BYTES:
            piece = piece.slice(0, len(piece) // 2)
        yield piece
        start += len(piece)


def first_line(error: BaseException) -> str:
    """Another library's message in a line that a terminal can show."""
    return (str(error).splitlines() or [type(error).__name__])[0][:MOST_CHARACTERS]
