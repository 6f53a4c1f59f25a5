"""Interface of all tokenization engines: documents in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Encoded:
    """Token ids of several documents end to end, (tokens,) uint32, and the documents' lengths, (documents,) int64."""

    ids: NDArray[np.uint32]
    lengths: NDArray[np.int64]


class Engine(Protocol):
    """Encodes text to plain token ids, without special tokens. One instance may serve several threads at once."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of one document."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each document, in order."""

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all documents in a single array, by the engine's fastest method."""


def utf8_bytes(text: str) -> int:
    """Return the number of bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def flat(encoded: Sequence[Sequence[int]]) -> Encoded:
    """Join the documents' lists of ids into one array."""
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.uint32, count=int(lengths.sum()))
    return Encoded(ids, lengths)


def joined(encoded: Sequence[NDArray[Any]]) -> Encoded:
    """Join the documents' arrays of ids into one array."""
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.concatenate(encoded).astype(np.uint32, copy=False) if len(encoded) else np.empty(0, dtype=np.uint32)
    return Encoded(ids, lengths)


def lists(encoded: Encoded) -> list[list[int]]:
    """Return the ids of each document as a list."""
    ids, ends = encoded.ids.tolist(), np.cumsum(encoded.lengths).tolist()
    return [ids[end - length : end] for length, end in zip(encoded.lengths.tolist(), ends, strict=True)]


def concatenated(parts: Sequence[Encoded]) -> Encoded:
    """Join several groups of documents into one, in order."""
    if not parts:
        return flat([])
    return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))


_FEW_TEXTS = 48  # Up to this number of documents, copying each is faster than np.insert.


def _with_each(encoded: Encoded, lengths: NDArray[np.int64], eos_id: int) -> Encoded:
    ids = np.empty(int(lengths.sum()), dtype=encoded.ids.dtype)
    begin = target = 0
    for length in encoded.lengths.tolist():
        if length:
            ids[target : target + length] = encoded.ids[begin : begin + length]
            ids[target + length] = eos_id
            begin, target = begin + length, target + length + 1
    return Encoded(ids, lengths)


def with_end_of_text(encoded: Encoded, eos_id: int | None) -> Encoded:
    """Return the documents with ``eos_id`` (if any) after each that has a token. An empty document stays empty."""
    if eos_id is None:
        return encoded
    is_nonempty = encoded.lengths > 0
    lengths = encoded.lengths + is_nonempty
    if len(lengths) <= _FEW_TEXTS:
        return _with_each(encoded, lengths, eos_id)
    return Encoded(np.insert(encoded.ids, np.cumsum(encoded.lengths)[is_nonempty], eos_id), lengths)
