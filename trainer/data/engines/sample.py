"""Chooses the text of a corpus on which an engine must prove itself. The same corpus always gives the same text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainer.data.corpus import Corpus, iter_texts
from trainer.data.engines.base import utf8_bytes

SAMPLE_VERSION = 1  # Raise it when the choice changes: it is part of a proof's cache key.
SAMPLE_BYTES = 4_000_000  # maximum; a larger corpus gives at least half of it
PIECE_CHARACTERS = 65_536  # length of the pieces into which longer documents are cut
RARE_CHARACTERS = 500_000  # maximum of the windows around new characters, in addition to the sample
WINDOW_CHARACTERS = 200  # text on either side of a new character
_SEARCHED_CHARACTERS = 100_000_000  # text that is searched for new characters: about 4 s
_PART_BYTES = 500_000


class Excerpt(NamedTuple):
    """A document of the corpus, or a part of a long one that begins at its character ``start``.

    ``document``: its number.
    """

    document: int
    start: int
    text: str

    @property
    def place(self) -> str:
        """Name of the excerpt's place, for messages."""
        return f"document {self.document}" + (f" from character {self.start}" if self.start else "")


def sample(corpus: Corpus) -> list[Excerpt]:
    """Return excerpts of limited size: every k-th piece of the corpus, and the first places of rare characters.

    k is a power of 2. Rare characters are those beyond ASCII.
    """
    kept: list[Excerpt] = []
    rare = _RareCharacters()
    stride, size = 1, 0
    for number, piece in enumerate(_pieces(corpus)):
        rare.search(piece)
        if number % stride == 0:
            kept.append(piece)
            size += utf8_bytes(piece.text)
            while size > SAMPLE_BYTES and len(kept) > 1:
                stride *= 2
                kept = kept[::2]
                size = sum(utf8_bytes(excerpt.text) for excerpt in kept)
    return sorted({*kept, *rare.found})


class _RareCharacters:
    """Collects an excerpt around the first place of each character beyond ASCII."""

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
            place = next(index for index, character in enumerate(text) if character not in self._seen)
            start, end = max(0, place - WINDOW_CHARACTERS), place + WINDOW_CHARACTERS
            window = text[start:end]
            self._seen.update(window)
            self._taken += len(window)
            self.found.append(Excerpt(piece.document, piece.start + start, window))


def whole(corpus: Corpus) -> Iterator[Excerpt]:
    """Yield every document uncut, as an excerpt."""
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            yield Excerpt(document, 0, text)
            document += 1


def parts(pieces: Iterable[Excerpt]) -> Iterator[list[Excerpt]]:
    """Yield groups of neighbouring excerpts, about half a megabyte each."""
    group: list[Excerpt] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += utf8_bytes(piece.text)
        if size >= _PART_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _pieces(corpus: Corpus) -> Iterator[Excerpt]:
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            for start in range(0, max(len(text), 1), PIECE_CHARACTERS):
                yield Excerpt(document, start, text[start : start + PIECE_CHARACTERS])
            document += 1
