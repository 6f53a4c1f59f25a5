"""Reads and writes flat tokens: all documents end to end in one file, which is mapped into memory, and their places.

A folder holds ``tokens.bin`` (little-endian uint16, or uint32 if the vocabulary is larger than 65,536) and
``documents.bin`` (little-endian int64, documents + 1 of them): document i is tokens[places[i]:places[i + 1]].

They are written with a journal, so that finished groups of documents survive a kill. The journal has a line after each
group: the numbers of documents and tokens so far, and the digests of both files up to there. The next process reads the
groups whose digests agree, cuts off the rest, and continues.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from trainer.errors import InputError
from trainer.files import remove
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    from numpy.typing import NDArray


TOKENS = "tokens.bin"
PLACES = "documents.bin"


def token_type(vocab_size: int) -> np.dtype[Any]:
    """Return the data type of flat tokens: uint16 if it holds every id, else uint32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True)
class FlatTokens:
    """Token ids of all documents end to end, and ``places`` (documents + 1): where each begins, and the end."""

    tokens: NDArray[Any]
    places: NDArray[np.int64]

    @property
    def documents(self) -> int:
        return len(self.places) - 1

    def document(self, number: int) -> NDArray[Any]:
        """Return a view of the tokens of document ``number``, counted from 0."""
        return self.tokens[self.places[number] : self.places[number + 1]]


def open_flat(folder: Path, dtype: np.dtype[Any]) -> FlatTokens:
    """Return the flat tokens of ``folder``, mapped into memory. Raises InputError unless its files fit together."""
    places = _mapped(folder / PLACES, np.dtype("<i8"))
    tokens = _mapped(folder / TOKENS, dtype)
    if not len(places) or places[0] != 0 or places[-1] != len(tokens):
        last = int(places[-1]) if len(places) else 0
        raise InputError(f"{folder}: {TOKENS} holds {len(tokens):,} tokens, {PLACES} has {last:,}")
    return FlatTokens(tokens, places)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise InputError(f"{path}: {size:,} bytes are no whole number of {dtype.itemsize}-byte values")
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)  # An empty file cannot be mapped.
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


class Writer:
    """Context manager that calls :meth:`close`, or :meth:`abandon` (whose own error is dropped) after an error."""

    def close(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            with suppress(Exception):
                self.abandon()


class FlatWriter(Writer):
    """Writes documents one after the other into a folder's two files, with bounded memory."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self._dtype, self._last = dtype, 0
        self._tokens: IO[bytes] = (folder / TOKENS).open("wb")
        self._places: IO[bytes] = (folder / PLACES).open("wb")
        self._places.write(np.zeros(1, "<i8").tobytes())

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64] | Sequence[int]) -> None:
        """Append documents: their ids end to end, and the length of each."""
        ends = self._last + np.cumsum(np.asarray(lengths, "<i8"), dtype="<i8")
        # tofile is not used, because its error for a full disk has no errno.
        for file, values in ((self._tokens, np.ascontiguousarray(ids, self._dtype)), (self._places, ends)):
            file.write(values.data.cast("B") if len(values) else b"")
        if len(ends):
            self._last = int(ends[-1])

    def close(self) -> None:
        self._tokens.close()
        self._places.close()


JOURNAL = "journal.jsonl"
_VERSION = 1


class TokenJournal(Writer):
    """Flat tokens in groups, after those that a killed process of the same ``origin`` left: read kept() first."""

    def __init__(self, folder: Path, origin: JsonObject, dtype: np.dtype[Any]) -> None:
        self.documents = self.tokens = 0
        self._folder, self._dtype = folder, dtype
        header = json.dumps({"version": _VERSION, "origin": origin, "token_type": dtype.name}, sort_keys=True)
        lines = self._lines()
        if lines[:1] != [header]:
            remove(folder)
            folder.mkdir()
            (folder / JOURNAL).write_text(header + "\n")
            lines = [header]
        self._kept = lines[1:]
        self._journal = (folder / JOURNAL).open("r+b")
        self._journal.seek(len(header.encode()) + 1)
        self._tokens, self._places = _open(folder / TOKENS), _open(folder / PLACES)
        self._hashes = [hashlib.sha256(), hashlib.sha256()]
        first = np.zeros(1, "<i8").tobytes()
        self._places.write(first)
        self._hashes[1].update(first)

    def kept(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (token ids, lengths) of each intact group of an earlier process, then cut off the data after them."""
        for line in self._kept:
            group = self._read(line)
            if group is None:
                break
            yield group
        for file in (self._tokens, self._places, self._journal):
            file.seek(0, os.SEEK_CUR)  # required between reading and writing
            file.truncate()

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append a group of documents (ids end to end, and lengths), which then survives a kill of the process."""
        ids = np.ascontiguousarray(ids, self._dtype)
        places = (self.tokens + np.cumsum(lengths)).astype("<i8")
        for file, digest, values in zip((self._tokens, self._places), self._hashes, (ids, places), strict=True):
            content = values.data.cast("B") if len(values) else memoryview(b"")
            file.write(content)
            file.flush()
            digest.update(content)
        self.documents += len(lengths)
        self.tokens += len(ids)
        self._journal.write(self._line().encode())
        self._journal.flush()

    def finish(self) -> dict[str, str]:
        """Close the journal and link (or move) both files into its parent. Return the SHA-256 of each by name."""
        self.close()
        digests = {}
        for name, digest in zip((TOKENS, PLACES), self._hashes, strict=True):
            _put(self._folder / name, self._folder.parent / name)
            digests[name] = digest.hexdigest()
        return digests

    def close(self) -> None:
        """Close the files; they stay."""
        for file in (self._tokens, self._places, self._journal):
            with suppress(OSError):  # The next process cuts off what a full disk left half written.
                file.close()

    def _lines(self) -> list[str]:
        try:
            content = (self._folder / JOURNAL).read_text(errors="replace")
        except OSError:
            return []
        return content.split("\n")[:-1]  # The last one is empty or half written.

    def _line(self) -> str:
        digests = [digest.hexdigest() for digest in self._hashes]
        return json.dumps([self.documents, self.tokens, *digests]) + "\n"

    def _read(self, line: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the next group (ids, lengths), or None, with files where they were, if ``line`` does not match it."""
        try:
            documents, tokens = (int(value) for value in json.loads(line)[:2])
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        files = self._tokens, self._places
        positions = [file.seek(0, os.SEEK_CUR) for file in files]
        previous = self.documents, self.tokens, self._hashes
        sizes = (tokens - self.tokens) * self._dtype.itemsize, (documents - self.documents) * 8
        available = [
            os.fstat(file.fileno()).st_size - position for file, position in zip(files, positions, strict=True)
        ]
        if all(0 <= size <= most for size, most in zip(sizes, available, strict=True)):
            contents = [file.read(size) for file, size in zip(files, sizes, strict=True)]
            self._hashes = [digest.copy() for digest in self._hashes]
            for digest, content in zip(self._hashes, contents, strict=True):
                digest.update(content)
            self.documents, self.tokens = documents, tokens
            if self._line() == line + "\n":
                self._journal.seek(len(line.encode()) + 1, os.SEEK_CUR)
                places = np.frombuffer(contents[1], "<i8")
                return np.frombuffer(contents[0], self._dtype), np.diff(places, prepend=previous[1])
        for file, position in zip(files, positions, strict=True):
            file.seek(position)
        self.documents, self.tokens, self._hashes = previous
        return None


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return path.open("r+b")


def _put(path: Path, place: Path) -> None:
    """Give ``path`` a second name ``place``, so that the journal is valid until the folder is whole."""
    remove(place)
    try:
        place.hardlink_to(path)
    except OSError:  # a file system without hard links
        path.rename(place)
