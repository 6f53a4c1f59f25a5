"""Definition of a corpus: its files, how they are read, and counts of its documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

# flat: tokens.bin of harness data pretokenize; it has no scenario key, see trainer.data.corpus.columns
Format = Literal["parquet", "jsonl", "text", "arrow", "flat"]
Identity = str | list[str | int]  # a local file's fingerprint, or places.identity of a remote file
Content = Literal["text", "tokens", "chat"]  # strings; lists of token ids; lists of messages, rendered by a template
Split = Literal["file", "line", "blank-line"]
# Reasons that a file or a folder is not read; finding.REASONS has the text of each.
Reason = Literal["hidden", "output", "repeated", "folder", "special", "format", "suffix", "unnamed"]

CORPUS_ROW_GROUP = 1000  # rows per row group of every parquet file this package writes
MAX_ROW_GROUP_BYTES = 16 * 2**20  # documents that are passed on together, unless a single one is larger
LARGEST_DOCUMENT = 2**31 - 1  # bytes: the offsets of Arrow's strings and lists are int32
MOST_CHARACTERS = 300  # limit for another library's error message


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template for chats. It is picklable. ``tokens``: values of bos_token and so on that it may use."""

    source: str
    tokens: tuple[tuple[str, str], ...]
    name: str


@dataclass(frozen=True)
class PassedOver:
    """Files or folders under the corpus' path that are skipped for one reason, with the first few ``names``."""

    reason: Reason
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Files of a corpus (picklable), how to read them, and counts of its first ``documents`` rows by the check."""

    name: str
    files: tuple[str, ...]  # absolute paths, or URLs
    column: str
    documents: int  # rows used, including empty ones
    empty: int  # empty documents, which every data path skips
    fingerprint: str  # hash of the files' content, the column, the number of documents, and how they are read
    format: Format = "parquet"
    content: Content = "text"
    split: Split = "file"  # unit of a text file that is one document
    template: ChatTemplate | None = None  # only for chats
    largest_id: int | None = None  # only for token ids
    largest_at: str = ""  # place of that id, for messages
    text_bytes: int | None = None  # length of the documents in UTF-8; None for token ids and chats
    masked: bool = False  # True if the column attention_mask marks the token ids that are padding
    pretokenized: tuple[str, ...] = ()  # pretokenized folders with these documents; the first one is read
    known: tuple[Identity, ...] = ()  # identities of the files when they were checked; () for a copy in the cache
    passed_over: tuple[PassedOver, ...] = ()  # files of the folder or glob that are not read
    rows_expected: int | None = None  # rows of a whole split of save_to_disk, by its dataset_info.json


def bounded(values: Any, rows: int) -> Iterator[Any]:
    """Yield slices of an Arrow array: at most ``rows`` rows and, unless it is one row, :data:`MAX_ROW_GROUP_BYTES`."""
    start = 0
    while start < len(values):
        piece = values.slice(start, rows)
        while len(piece) > 1 and piece.nbytes > MAX_ROW_GROUP_BYTES:
            piece = piece.slice(0, len(piece) // 2)
        yield piece
        start += len(piece)


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, shortened; the error's class if there is none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:MOST_CHARACTERS]
