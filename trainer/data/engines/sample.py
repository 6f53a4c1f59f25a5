"""Chooses the text of a corpus on which an engine must prove itself: always the same of the same corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainer.data.corpus import Corpus, iter_texts

SAMPLE_VERSION = 1  # raise it when another text is chosen: it is part of what a proof is remembered by
SAMPLE_BYTES = 4_000_000  # at most, and at least half of it where the corpus has as much
PIECE_CHARACTERS = 65_536  # longer documents are cut into such pieces, of which each may be chosen
RARE_CHARACTERS = 500_000  # besides the sample, at most
WINDOW_CHARACTERS = 200  # on either side of a character that no document before had
_SEARCHED_CHARACTERS = 100_000_000  # for those: about 4 s
_PART_BYTES = 500_000


class Excerpt(NamedTuple):
    """A document, or some of a long one: from its character ``start`` on."""

    document: int
    start: int
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"document {self.document}" + (f" from character {self.start}" if self.start else "")


def sample(corpus: Corpus) -> list[Excerpt]:
    """Every k-th piece of the corpus, k a power of 2, and of the others the places where a character first appears."""
    kept: list[Excerpt] = []
    rare = _RareCharacters()
    stride, size = 1, 0
    for number, piece in enumerate(_pieces(corpus)):
        rare.search(piece)
        if number % stride == 0:
            kept.append(piece)
            size += byte_length(piece.text)
            while size > SAMPLE_BYTES and len(kept) > 1:
                stride *= 2
                kept = kept[::2]
                size = sum(byte_length(one.text) for one in kept)
    return sorted({*kept, *rare.found})


class _RareCharacters:
    """Collects a window of text around the first place of each character beyond ASCII."""

    def __init__(self) -> None:
        self.found: list[Excerpt] = []
        self._seen = set(map(chr, range(128)))
        self._taken = self._searched = 0

    def search(self, piece: Excerpt) -> None:
        text = piece.text
        if text.isascii() or self._searched >= _SEARCHED_CHARACTERS:
            return
        self._searched += len(text)
        while self._taken < RARE_CHARACTERS and not self._seen.issuperset(text):
            place = next(at for at, character in enumerate(text) if character not in self._seen)
            start, end = max(0, place - WINDOW_CHARACTERS), place + WINDOW_CHARACTERS
            window = text[start:end]
            self._seen.update(window)
            self._taken += len(window)
            self.found.append(Excerpt(piece.document, piece.start + start, window))


def whole(corpus: Corpus) -> Iterator[Excerpt]:
    """Every document, uncut."""
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            yield Excerpt(document, 0, text)
            document += 1


def parts(pieces: Iterable[Excerpt]) -> Iterator[list[Excerpt]]:
    """Neighbours together, about half a megabyte each."""
    held: list[Excerpt] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += byte_length(piece.text)
        if size >= _PART_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def byte_length(text: str) -> int:
    """Of its UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _pieces(corpus: Corpus) -> Iterator[Excerpt]:
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            for start in range(0, max(len(text), 1), PIECE_CHARACTERS):
                yield Excerpt(document, start, text[start : start + PIECE_CHARACTERS])
            document += 1
