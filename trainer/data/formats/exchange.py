"""What the file formats of other trainers have in common: tokens without places, cut into documents by an id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data.formats.flat import FlatTokens
from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_TOKENS = 1 << 24  # at once: 32 MiB of uint16
CHUNK_DOCUMENTS = 1 << 16


@dataclass(frozen=True)
class Stream:
    """Tokens without places, as other trainers store them: how documents are told apart, and what is not known."""

    parts: tuple[NDArray[Any], ...]  # one after the other, mapped into memory
    eos_first: bool  # the end-of-text id stands before each document, not after it

    @property
    def tokens(self) -> int:
        """In all parts."""
        return sum(len(part) for part in self.parts)


def document_chunks(flat: FlatTokens, start: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """The documents from number ``start`` on, as many at once as fit into little memory.

    Their tokens end to end, and their lengths.
    """
    document = start
    while document < flat.documents:
        first = int(flat.places[document])
        stop = int(np.searchsorted(flat.places, first + CHUNK_TOKENS, "right")) - 1
        stop = min(max(stop, document + 1), document + CHUNK_DOCUMENTS, flat.documents)
        places = np.asarray(flat.places[document : stop + 1])
        yield np.asarray(flat.tokens[first : int(places[-1])]), np.diff(places)
        document = stop


def check_uint16(name: str, vocab_size: int) -> None:
    """Raise InputError where a vocabulary does not fit a format of 16-bit ids."""
    if vocab_size > 2**16:
        raise InputError(
            f"{name}: its ids are uint16, at most 65,536; this vocabulary has {vocab_size:,}: choose flat (uint32), or "
            "another tokenizer"
        )


def documents_of(stream: Stream, eos_id: int | None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Cut a stream into documents at its end-of-text ids, each of which then ends its document.

    Without an id everything is one document. What stands before the first end-of-text (where it stands before each
    document) or after the last one is a document too, which was cut: it gets the end-of-text id that it lacks.
    """
    held: list[NDArray[Any]] = []
    started = not stream.eos_first  # an end-of-text id ends something only where something has begun
    for part in stream.parts:
        for start in range(0, len(part), CHUNK_TOKENS):
            chunk = np.asarray(part[start : start + CHUNK_TOKENS])
            ends = np.flatnonzero(chunk == eos_id) + 1 if eos_id is not None else np.empty(0, np.int64)
            if not started and len(chunk):
                # The first id begins the first document and ends none.
                started = True
                if len(ends) and ends[0] == 1:
                    chunk, ends = chunk[1:], ends[1:] - 1
            if not len(ends):
                held.append(chunk)
                continue
            first = [*held, chunk[: ends[0]]]
            ids = np.concatenate(first)
            yield np.concatenate([ids, chunk[ends[0] : ends[-1]]]), np.concatenate([[len(ids)], np.diff(ends)])
            held = [chunk[ends[-1] :]]
    rest = np.concatenate(held) if held else np.empty(0, np.uint16)
    if len(rest):
        closed = rest if eos_id is None else np.append(rest, np.asarray(eos_id, rest.dtype))
        yield closed, np.array([len(closed)])
