"""Counts exact duplicates with bounded memory: hashes go to temporary files, each with a share of all hashes."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import numpy as np

_PARTS = 64
# In memory until there are so many (24 MB), then in files: 24 bytes a document on the disk of temporary files.
_HELD = 1_000_000
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("size", "<i8")])


@dataclass(frozen=True)
class Duplicates:
    """Documents that an equal one precedes, and their bytes. Empty documents are not counted."""

    documents: int
    bytes: int


class DuplicateCounter:
    """Takes documents' contents, then counts. Two documents are equal where 128 bits of their BLAKE2b are.

    Use it as a context: its temporary files have no names and are gone with it, however it ends.
    """

    def __init__(self) -> None:
        self.bytes = 0  # of all that were taken
        self._held: list[bytes] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> DuplicateCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, contents: Iterable[bytes]) -> None:
        """Take the contents of some documents."""
        for content in contents:
            if content:
                self.bytes += len(content)
                digest = hashlib.blake2b(content, digest_size=16).digest()
                self._held.append(digest + len(content).to_bytes(8, "little"))
        if len(self._held) >= _HELD:
            self._spill()

    def count(self) -> Duplicates:
        """What was found among all that were taken."""
        if not self._files:
            return _count(self._rows())
        self._spill()
        documents = size = 0
        for file in self._files:
            file.seek(0)
            found = _count(np.frombuffer(file.read(), _ROW))
            documents += found.documents
            size += found.bytes
        return Duplicates(documents, size)

    def _rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(b"".join(self._held), _ROW)

    def _spill(self) -> None:
        if not self._files:
            self._files = [self._stack.enter_context(_temporary()) for _ in range(_PARTS)]
        rows = self._rows()
        part = rows["high"] % _PARTS
        for number, file in enumerate(self._files):
            file.write(rows[part == number].tobytes())
        self._held = []


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _count(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> Duplicates:
    """Sort by hash; a row that equals the one before it is a duplicate."""
    if not len(rows):
        return Duplicates(0, 0)
    order = np.lexsort((rows["low"], rows["high"]))
    high, low = rows["high"][order], rows["low"][order]
    again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return Duplicates(int(again.sum()), int(rows["size"][order][1:][again].sum()))
