"""Reads and writes flat tokens: all documents end to end in one file, which is mapped into memory, and their places.

A folder holds ``tokens.bin`` (little-endian uint16, or uint32 if the vocabulary is larger than 65,536) and
``documents.bin`` (little-endian int64, documents + 1 of them): document i is tokens[places[i]:places[i + 1]].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS = "tokens.bin"
PLACES = "documents.bin"


def token_type(vocab_size: int) -> np.dtype[Any]:
    """Return the data type of flat tokens: uint16 if it holds every id, else uint32."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True)
class FlatTokens:
    """Folder of flat tokens, mapped into memory. ``tokens``: (tokens,) read-only; ``places``: (documents + 1,)."""

    tokens: NDArray[Any]
    places: NDArray[np.int64]

    @property
    def documents(self) -> int:
        return len(self.places) - 1

    def document(self, number: int) -> NDArray[Any]:
        """Return a view of the tokens of document ``number``, counted from 0."""
        return self.tokens[self.places[number] : self.places[number + 1]]


def open_flat(folder: Path, dtype: np.dtype[Any]) -> FlatTokens:
    """Return the flat tokens of ``folder``, mapped into memory. ``dtype``: type of the ids.

    Raises InputError if its files are cut short or do not belong together.
    """
    places = _mapped(folder / PLACES, np.dtype("<i8"))
    tokens = _mapped(folder / TOKENS, dtype)
    if not len(places) or places[0] != 0 or places[-1] != len(tokens):
        last = int(places[-1]) if len(places) else 0
        raise InputError(f"{folder}: {TOKENS} holds {len(tokens):,} tokens, {PLACES} speaks of {last:,}")
    return FlatTokens(tokens, places)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise InputError(f"{path}: {size:,} bytes are no whole number of {dtype.itemsize}-byte values")
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)  # An empty file cannot be mapped.
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


class FlatWriter:
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

    def __enter__(self) -> FlatWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
