"""Keeps flat tokens that are being written so that they survive a kill: finished groups of documents are kept.

A journal says after each group how many documents and tokens there are, and the digests of both files up to there.
Whoever opens it again reads what these vouch for, cuts off the rest, and writes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainer.data.formats.flat import PLACES, TOKENS
from trainer.json_types import JsonObject
from trainer.leftovers import remove

if TYPE_CHECKING:
    from numpy.typing import NDArray

JOURNAL = "journal.jsonl"
_VERSION = 1


class TokenJournal:
    """Flat tokens in ``folder``, written group by group, with what a killed process left there.

    ``origin``: what they are made from; what was begun from anything else is removed. First all of :meth:`kept` is
    read, then groups are added.
    """

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
        """What is there already: ids and lengths of each group. What is damaged or half written is cut off."""
        for line in self._kept:
            group = self._read(line)
            if group is None:
                break
            yield group
        for file in (self._tokens, self._places, self._journal):
            file.seek(0, os.SEEK_CUR)  # between reading and writing
            file.truncate()

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append a group of documents. A process that is killed from here on has kept it."""
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
        """Close the files, and put both where the journal's folder lies. Returns the digest of each."""
        self.close()
        digests = {}
        for name, digest in zip((TOKENS, PLACES), self._hashes, strict=True):
            _put(self._folder / name, self._folder.parent / name)
            digests[name] = digest.hexdigest()
        return digests

    def close(self) -> None:
        """Close the files; they stay."""
        for file in (self._tokens, self._places, self._journal):
            with suppress(OSError):  # a full disk: what could not be written is cut off the next time
                file.close()

    def __enter__(self) -> TokenJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _lines(self) -> list[str]:
        try:
            content = (self._folder / JOURNAL).read_text(errors="replace")
        except OSError:
            return []
        return content.split("\n")[:-1]  # the last one is empty, or half written

    def _line(self) -> str:
        digests = [digest.hexdigest() for digest in self._hashes]
        return json.dumps([self.documents, self.tokens, *digests]) + "\n"

    def _read(self, line: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """The next group, where the files hold what the line says of it."""
        try:
            documents, tokens = (int(value) for value in json.loads(line)[:2])
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        before = (
            self._tokens.seek(0, os.SEEK_CUR),
            self._places.seek(0, os.SEEK_CUR),
            self.documents,
            self.tokens,
            self._hashes,
        )
        sizes = (tokens - self.tokens) * self._dtype.itemsize, (documents - self.documents) * 8
        left = [os.fstat(file.fileno()).st_size - place for file, place in zip(self._files, before[:2], strict=True)]
        if all(0 <= size <= most for size, most in zip(sizes, left, strict=True)):
            contents = [file.read(size) for file, size in zip(self._files, sizes, strict=True)]
            self._hashes = [digest.copy() for digest in self._hashes]
            for digest, content in zip(self._hashes, contents, strict=True):
                digest.update(content)
            self.documents, self.tokens = documents, tokens
            if self._line() == line + "\n":
                self._journal.seek(len(line.encode()) + 1, os.SEEK_CUR)
                places = np.frombuffer(contents[1], "<i8")
                return np.frombuffer(contents[0], self._dtype), np.diff(places, prepend=before[3])
        self._tokens.seek(before[0])
        self._places.seek(before[1])
        self.documents, self.tokens, self._hashes = before[2:]
        return None

    @property
    def _files(self) -> tuple[IO[bytes], IO[bytes]]:
        return self._tokens, self._places


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return path.open("r+b")


def _put(path: Path, place: Path) -> None:
    """A second name for the file: the journal's stays, and is good for another start, until the folder is whole."""
    remove(place)
    try:
        place.hardlink_to(path)
    except OSError:  # a file system without
        path.rename(place)
