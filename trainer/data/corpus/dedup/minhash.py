"""MinHash signatures and their bands: which documents may be near-duplicates (Broder 1997; Indyk and Motwani 1998).

A signature has a place for each permutation of all shingles, and holds the least of the set there: two sets have the
same one with a probability of their Jaccard similarity. Documents are candidates where all rows of one of their bands
agree. The places are filled by fast similarity sketching (Dahlgaard, Knudsen and Thorup 2017, arXiv:1704.04370): in a
round each shingle goes to one place, and only those that are empty after some rounds are given all shingles. That
takes a few hashes of a shingle instead of one for each permutation, and estimates as well. The places of a set are not
independent of each other: the S-curve is that of independent ones, and at the threshold no more pairs are missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup.shingles import STEP, Hashes, ShingleSets, mixed
from trainer.errors import InputError

PERMUTATIONS = 128
FOUND = 0.99  # of the pairs right at the threshold must become candidates; of more similar ones more do
MOST_PERMUTATIONS = 4096
_MIXING_ROUNDS = 8  # of 100 shingles, 800 places are drawn: few of 128 stay empty
_PART = 1 << 20  # shingles of one document that are worked on at once
_EMPTY = np.uint64(2**64 - 1)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class Banding:
    """``bands`` bands of ``rows`` permutations each."""

    bands: int
    rows: int

    @property
    def permutations(self) -> int:
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """That a pair of this Jaccard similarity is a candidate: 1 - (1 - s**rows)**bands, the S-curve."""
        agreeing = similarity**self.rows
        return 1.0 if agreeing >= 1 else -math.expm1(self.bands * math.log1p(-agreeing))

    def missed(self, similarity: float) -> float:
        """That it is none: (1 - s**rows)**bands, exact where 1 - probability would be rounded to 0."""
        return float((1.0 - similarity**self.rows) ** self.bands)

    @property
    def steepest(self) -> float:
        """The similarity around which the S-curve rises: (1 / bands)**(1 / rows)."""
        return float((1.0 / self.bands) ** (1.0 / self.rows))


def check_threshold(threshold: float) -> None:
    """InputError for a similarity that no pair or every pair reaches."""
    if not 0.0 < threshold < 1.0:
        raise InputError(f"--threshold {threshold:g}: allowed: more than 0, less than 1")


def banding_for(threshold: float, permutations: int = PERMUTATIONS) -> Banding:
    """The most rows with which :data:`FOUND` of the pairs at the threshold are candidates, and the bands that fit.

    More rows mean fewer candidates that verification then refuses; more bands, fewer pairs that are missed. Raises
    InputError where even bands of one row find too few.
    """
    check_threshold(threshold)
    if not 1 <= permutations <= MOST_PERMUTATIONS:
        raise InputError(f"--permutations {permutations}: allowed: 1 to {MOST_PERMUTATIONS:,}")
    for rows in range(permutations, 0, -1):
        banding = Banding(permutations // rows, rows)
        if banding.probability(threshold) >= FOUND:
            return banding
    found = Banding(permutations, 1).probability(threshold)
    needed = int(np.ceil(np.log1p(-FOUND) / np.log1p(-threshold)))
    more = f"give at least {needed:,}" if needed <= MOST_PERMUTATIONS else f"no {MOST_PERMUTATIONS:,} would be enough"
    raise InputError(
        f"--threshold {threshold:g} with --permutations {permutations}: {permutations} bands of one row would find "
        f"{found:.1%} of the pairs at the threshold, and {FOUND:.0%} are asked for; {more}"
    )


def given_banding(bands: int, rows: int) -> Banding:
    """Bands that somebody chose. Raises InputError where they are none, or take too many permutations."""
    if bands < 1 or rows < 1 or bands * rows > MOST_PERMUTATIONS:
        raise InputError(
            f"--bands {bands} --rows {rows}: allowed: each at least 1, and bands x rows at most {MOST_PERMUTATIONS:,}"
        )
    return Banding(bands, rows)


class MinHash:
    """Computes what the bands of sets are known by. Its hash functions follow from the seed."""

    def __init__(self, banding: Banding, seed: int) -> None:
        self._banding = banding
        numbers = np.arange(1, _MIXING_ROUNDS + banding.permutations + 1, dtype=np.uint64) * np.uint64(STEP)
        self._salts = mixed(mixed(numbers + mixed(np.array([seed], np.int64).view(np.uint64))))

    def signatures(self, sets: ShingleSets) -> Hashes:
        """(documents, permutations). No set may be empty.

        A large set is worked on in parts: the least of a set is the least of its parts' least.
        """
        if len(sets.lengths) == 1 and len(sets.hashes) > _PART:
            parts = [self._whole(ShingleSets(one, np.array([len(one)]))) for one in _parts(sets)]
            least: Hashes = np.minimum.reduce(parts)
            return least
        return self._whole(sets)

    def _whole(self, sets: ShingleSets) -> Hashes:
        documents, places = len(sets.lengths), self._banding.permutations
        found = np.full(documents * places, _EMPTY)
        table = found.reshape(documents, places)
        hashes = sets.hashes
        owners = np.repeat(np.arange(documents, dtype=np.int64) * places, sets.lengths)
        for number in range(_MIXING_ROUNDS):
            drawn = mixed(hashes ^ self._salts[number])
            place = ((drawn >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32)
            # An earlier round is less than every later one.
            np.minimum.at(found, owners + place.astype(np.int64), (drawn & _LOW) | np.uint64(number << 32))
            open_ = (table == _EMPTY).any(axis=1)
            kept = open_[owners // places]
            if not kept.all():
                hashes, owners = hashes[kept], owners[kept]
            if not len(hashes):
                return table
        for empty in range(places):
            kept = table[owners // places, empty] == _EMPTY
            values = mixed(hashes[kept] ^ self._salts[_MIXING_ROUNDS + empty]) & _LOW
            np.minimum.at(found, owners[kept] + empty, values | np.uint64(_MIXING_ROUNDS << 32))
        return table

    def keys(self, sets: ShingleSets) -> Hashes:
        """(documents, bands): equal keys in any column are equal bands. No set may be empty.

        A key holds for its band alone: those of different bands differ, but for a chance of 2**-64.
        """
        signatures = self.signatures(sets)
        found = np.empty((len(signatures), self._banding.bands), np.uint64)
        for band in range(self._banding.bands):
            key = np.full(len(signatures), (band + 1) * STEP % 2**64, np.uint64)
            for place in range(band * self._banding.rows, (band + 1) * self._banding.rows):
                key = mixed(key + signatures[:, place])
            found[:, band] = key
        return found


def digests(sets: ShingleSets) -> NDArray[np.uint64]:
    """(documents, 2): 128 bits that are equal where the sets are. No set may be empty."""
    if not len(sets.lengths):
        return np.empty((0, 2), np.uint64)
    salts = (np.uint64(STEP), ~np.uint64(STEP))
    if len(sets.lengths) == 1:
        sums = [np.sum([mixed(one ^ salt).sum() for one in _parts(sets)], keepdims=True) for salt in salts]
    else:
        sums = [np.add.reduceat(mixed(sets.hashes ^ salt), sets.starts) for salt in salts]
    return np.stack([mixed(one + sets.lengths.astype(np.uint64)) for one in sums], axis=1)


def _parts(sets: ShingleSets) -> Iterator[Hashes]:
    for start in range(0, len(sets.hashes), _PART):
        yield sets.hashes[start : start + _PART]
