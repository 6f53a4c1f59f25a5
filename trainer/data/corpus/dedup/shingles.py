"""Turns documents into sets of shingles, runs of words or of characters (Broder 1997), as 64-bit hashes.

White space makes no difference. A document shorter than a shingle is one shingle; one of white space has none. Two
different shingles have the same hash with a probability of 2**-64.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainer.data.order import mixed
from trainer.errors import InputError

Hashes = NDArray[np.uint64]
Kind = Literal["word", "char"]
Form = Literal["nfc", "nfkc", "none"]
Case = Literal["lower", "fold", "keep"]
_FORMS: dict[Form, Literal["NFC", "NFKC"]] = {"nfc": "NFC", "nfkc": "NFKC"}
LARGEST_SIZE = 64  # words or characters; a longer shingle hardly ever survives an edit
_PIECE = 1 << 20  # characters of a document that are processed at once
_WHOLE = 1 << 16  # characters within which a piece is extended to white space
_MOST_HELD = 1 << 20  # cached word hashes (about 150 MB)
_MERGED = 1 << 22  # shingles of a long document that are held before they are merged
_SPACE = re.compile(r"\s")
STEP = 0x9E3779B97F4A7C15  # the golden ratio, as SplitMix64 steps by


@dataclass(frozen=True)
class Shingling:
    """A shingle: ``size`` words or characters, with a form of Unicode and a case. Raises InputError."""

    kind: Kind = "word"
    size: int = 5
    unicode: Form = "nfc"
    case: Case = "lower"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"--shingles {self.kind}: allowed: {', '.join(get_args(Kind))}")
        if not 1 <= self.size <= LARGEST_SIZE:
            raise InputError(f"--shingle-size {self.size}: allowed: 1 to {LARGEST_SIZE}")


@dataclass(frozen=True)
class ShingleSets:
    """Shingle sets of documents in one array, each sorted and without repetition; ``lengths``: size of each."""

    hashes: Hashes
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths
        return starts

    def filled(self) -> ShingleSets:
        """Return the sets without the empty ones, in the same order."""
        return ShingleSets(self.hashes, self.lengths[self.lengths > 0])


class Shingler:
    """Makes the shingle sets of texts. It caches the hashes of words, and several threads may call it."""

    def __init__(self, shingling: Shingling) -> None:
        self._shingling = shingling
        self._known = _WordHashes()

    def sets(self, texts: Sequence[str]) -> ShingleSets:
        """Return the shingle sets of ``texts``, in order. A long document is processed in pieces."""
        texts = self._normal(texts)
        if len(self._known) > _MOST_HELD:
            self._known.clear()
        parts: list[ShingleSets] = []
        start = 0
        for place, text in enumerate(texts):
            if len(text) > _PIECE:
                parts += [self._short(texts[start:place]), self._long(text)]
                start = place + 1
        parts.append(self._short(texts[start:]))
        if len(parts) == 1:
            return parts[0]
        return ShingleSets(
            np.concatenate([part.hashes for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def _normal(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts in the requested Unicode form, case-folded if requested."""
        form, fold = _FORMS.get(self._shingling.unicode), self._shingling.case == "fold"

        def normal(text: str) -> str:
            return text if form is None or text.isascii() else unicodedata.normalize(form, text)

        # Case folding may decompose letters; the second normalization composes them again.
        return [normal(normal(text).casefold()) if fold else normal(text) for text in texts]

    def _cased(self, text: str) -> str:
        return text.lower() if self._shingling.case == "lower" else text

    def _short(self, texts: Sequence[str]) -> ShingleSets:
        size = self._shingling.size
        units, lengths = self._units(texts)
        counts = np.where(lengths < size, np.minimum(lengths, 1), lengths - size + 1)
        ends = np.cumsum(lengths)
        hashes = np.empty(int(counts.sum()), np.uint64)
        is_short = lengths < size
        if len(units) >= size:
            is_inside = np.arange(size, len(units) + 1) <= np.repeat(ends, lengths)[: len(units) - size + 1]
            hashes[np.repeat(~is_short, counts)] = _combined(units, size)[is_inside]
        if short := np.flatnonzero(is_short & (lengths > 0)).tolist():
            shorter = [_combined(units[ends[row] - lengths[row] : ends[row]], int(lengths[row])) for row in short]
            hashes[np.repeat(is_short, counts)] = np.concatenate(shorter)
        first = np.ones(len(hashes), np.bool_)
        starts = np.cumsum(counts) - counts
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            hashes[start : start + count].sort()
        np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
        first[starts[counts > 0]] = True
        if first.all():
            return ShingleSets(hashes, counts)
        before = np.concatenate([[0], np.cumsum(first)])
        return ShingleSets(hashes[first], before[starts + counts] - before[starts])

    def _units(self, texts: Sequence[str]) -> tuple[Hashes, NDArray[np.int64]]:
        """Return (hashes of all words or all characters, number per document), documents end to end."""
        split = [self._cased(text).split() for text in texts]
        if self._shingling.kind == "word":
            lengths = np.fromiter(map(len, split), np.int64, len(split))
            units = np.fromiter(map(self._known.__getitem__, chain.from_iterable(split)), np.uint64, int(lengths.sum()))
            return units, lengths
        plain = [" ".join(parts) for parts in split]
        return _points("".join(plain)), np.fromiter(map(len, plain), np.int64, len(plain))

    def _long(self, text: str) -> ShingleSets:
        size = self._shingling.size
        units = self._word_pieces(text) if self._shingling.kind == "word" else self._character_pieces(text)
        parts: list[Hashes] = []
        carried = np.empty(0, np.uint64)
        held_count, limit = 0, _MERGED
        for piece in units:
            run = np.concatenate([carried, piece])
            if len(run) >= size:
                parts.append(np.unique(_combined(run, size)))
                held_count += len(parts[-1])
                carried = run[len(run) - size + 1 :]
            else:
                carried = run
            if held_count > limit:
                parts = [np.unique(np.concatenate(parts))]
                held_count = len(parts[0])
                limit = max(_MERGED, 2 * held_count)
        if not parts and len(carried):  # The document is shorter than a shingle.
            parts.append(_combined(carried, len(carried)))
        shingles = np.unique(np.concatenate(parts)) if parts else carried
        return ShingleSets(shingles, np.array([len(shingles)]))

    def _word_pieces(self, text: str) -> Iterator[Hashes]:
        for piece in _pieces(text, whole=True):
            units = self._cased(piece).split()
            yield np.fromiter(map(self._known.__getitem__, units), np.uint64, len(units))

    def _character_pieces(self, text: str) -> Iterator[Hashes]:
        begun = separated = False  # True if earlier pieces had text; True if white space followed that text
        for piece in _pieces(text, whole=False):
            plain = " ".join(self._cased(piece).split())
            if plain:
                separated = separated or piece[0].isspace()
                yield _points(f" {plain}" if begun and separated else plain)
            begun, separated = begun or bool(plain), piece[-1].isspace() or (separated and not plain)


class _WordHashes(dict[str, int]):
    """Cache of the first 64 bits of each word's BLAKE2b."""

    def __missing__(self, word: str) -> int:
        content = word.encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        if len(word) < 100:
            self[word] = digest
        return digest


def _points(text: str) -> Hashes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)


def _pieces(text: str, whole: bool) -> Iterator[str]:
    """Yield pieces of the text that end before white space. ``whole``: True to never cut a long word."""
    start = 0
    while len(text) - start > _PIECE:
        end = start + _PIECE
        space = _SPACE.search(text, end) if whole else _SPACE.search(text, end, min(end + _WHOLE, len(text)))
        if space is not None:
            end = space.start()
        elif whole:
            break
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _combined(units: Hashes, size: int) -> Hashes:
    """Return a hash of each sequence of ``size`` consecutive units, in their order."""
    count = len(units) - size + 1
    hashes = np.full(count, size * STEP % 2**64, np.uint64)
    for place in range(size):
        hashes += units[place : place + count]
        hashes = mixed(hashes)
    return hashes
