"""MinHash signatures and their bands, which select candidate pairs (Broder 1997; Indyk and Motwani 1998).

A signature has one place per permutation of all shingles, with the least shingle of the set. The probability that two
sets agree in a place is their Jaccard similarity. Two documents are candidates if all rows of one of their bands agree.
The places are filled by fast similarity sketching (Dahlgaard, Knudsen and Thorup 2017, arXiv:1704.04370). In each round
a shingle goes to one place, and only places that are empty after some rounds get all shingles. That takes a few hashes
per shingle instead of one per permutation, and is as accurate. The places of a set are not independent, but no more
pairs at the threshold are missed than by the S-curve of independent places.
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
FOUND = 0.99  # share of the pairs at the threshold that must become candidates
MOST_PERMUTATIONS = 4096
_MIXING_ROUNDS = 8  # 100 shingles then draw 800 places: few of 128 stay empty
_PART = 1 << 20  # shingles of one document that are processed at once
_EMPTY = np.uint64(2**64 - 1)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class Banding:
    """Division of a signature into ``bands`` bands of ``rows`` values each.

    Documents that agree in a whole band are candidates.
    """

    bands: int
    rows: int

    @property
    def permutations(self) -> int:
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """Probability that a pair of this Jaccard similarity is a candidate: the S-curve 1 - (1 - s**rows)**bands."""
        agreeing = similarity**self.rows
        return 1.0 if agreeing >= 1 else -math.expm1(self.bands * math.log1p(-agreeing))

    def missed(self, similarity: float) -> float:
        """Probability that a pair of this Jaccard similarity is no candidate: (1 - s**rows)**bands.

        It is exact even if close to 0.
        """
        return float((1.0 - similarity**self.rows) ** self.bands)

    @property
    def steepest(self) -> float:
        """Similarity around which the S-curve rises: (1 / bands)**(1 / rows)."""
        return float((1.0 / self.bands) ** (1.0 / self.rows))


def check_threshold(threshold: float) -> None:
    """Raise InputError unless ``threshold`` lies between 0 and 1, both excluded."""
    if not 0.0 < threshold < 1.0:
        raise InputError(f"--threshold {threshold:g}: allowed: more than 0, less than 1")


def banding_for(threshold: float, permutations: int = PERMUTATIONS) -> Banding:
    """Return the banding with the most rows that finds :data:`FOUND` of the pairs at the threshold.

    More rows give fewer candidates for verification to refuse; more bands miss fewer pairs. Raises InputError if even
    bands of one row find too few.
    """
    check_threshold(threshold)
    if not 1 <= permutations <= MOST_PERMUTATIONS:
        raise InputError(f"--permutations {permutations}: allowed: 1 to {MOST_PERMUTATIONS:,}")
    for rows in range(permutations, 0, -1):
        banding = Banding(permutations // rows, rows)
        if banding.probability(threshold) >= FOUND:
            return banding
    share = Banding(permutations, 1).probability(threshold)
    needed = int(np.ceil(np.log1p(-FOUND) / np.log1p(-threshold)))
    advice = f"give at least {needed:,}" if needed <= MOST_PERMUTATIONS else f"no {MOST_PERMUTATIONS:,} would be enough"
    raise InputError(
        f"--threshold {threshold:g} with --permutations {permutations}: {permutations} bands of one row would find "
        f"{share:.1%} of the pairs at the threshold, and {FOUND:.0%} are asked for; {advice}"
    )


def given_banding(bands: int, rows: int) -> Banding:
    """Return the banding with the user's numbers.

    Raises InputError if one is less than 1, or for too many permutations.
    """
    if bands < 1 or rows < 1 or bands * rows > MOST_PERMUTATIONS:
        raise InputError(
            f"--bands {bands} --rows {rows}: allowed: each at least 1, and bands x rows at most {MOST_PERMUTATIONS:,}"
        )
    return Banding(bands, rows)


class MinHash:
    """Computes MinHash signatures and band keys of shingle sets. Its hash functions follow from the seed."""

    def __init__(self, banding: Banding, seed: int) -> None:
        self._banding = banding
        numbers = np.arange(1, _MIXING_ROUNDS + banding.permutations + 1, dtype=np.uint64) * np.uint64(STEP)
        self._salts = mixed(mixed(numbers + mixed(np.array([seed], np.int64).view(np.uint64))))

    def signatures(self, sets: ShingleSets) -> Hashes:
        """Return the MinHash signatures of the sets, (documents, permutations). No set may be empty.

        A large set is processed in parts: its least shingle is the least of its parts' least.
        """
        if len(sets.lengths) == 1 and len(sets.hashes) > _PART:
            parts = [self._whole(ShingleSets(part, np.array([len(part)]))) for part in _parts(sets)]
            least: Hashes = np.minimum.reduce(parts)
            return least
        return self._whole(sets)

    def _whole(self, sets: ShingleSets) -> Hashes:
        documents, places = len(sets.lengths), self._banding.permutations
        least = np.full(documents * places, _EMPTY)
        table = least.reshape(documents, places)
        hashes = sets.hashes
        owners = np.repeat(np.arange(documents, dtype=np.int64) * places, sets.lengths)
        for number in range(_MIXING_ROUNDS):
            drawn = mixed(hashes ^ self._salts[number])
            place = ((drawn >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32)
            # Values of an earlier round are less than those of every later one.
            np.minimum.at(least, owners + place.astype(np.int64), (drawn & _LOW) | np.uint64(number << 32))
            open_ = (table == _EMPTY).any(axis=1)
            kept = open_[owners // places]
            if not kept.all():
                hashes, owners = hashes[kept], owners[kept]
            if not len(hashes):
                return table
        for empty in range(places):
            kept = table[owners // places, empty] == _EMPTY
            values = mixed(hashes[kept] ^ self._salts[_MIXING_ROUNDS + empty]) & _LOW
            np.minimum.at(least, owners[kept] + empty, values | np.uint64(_MIXING_ROUNDS << 32))
        return table

    def keys(self, sets: ShingleSets) -> Hashes:
        """Return one hash per document and band, (documents, bands). No set may be empty.

        Documents with equal values in a band have the same hash there. Hashes of different bands never match, except
        with a probability of 2**-64.
        """
        signatures = self.signatures(sets)
        table = np.empty((len(signatures), self._banding.bands), np.uint64)
        for band in range(self._banding.bands):
            key = np.full(len(signatures), (band + 1) * STEP % 2**64, np.uint64)
            for place in range(band * self._banding.rows, (band + 1) * self._banding.rows):
                key = mixed(key + signatures[:, place])
            table[:, band] = key
        return table


def digests(sets: ShingleSets) -> NDArray[np.uint64]:
    """Return a 128-bit digest of each set, (documents, 2). Equal sets have equal digests. No set may be empty."""
    if not len(sets.lengths):
        return np.empty((0, 2), np.uint64)
    salts = (np.uint64(STEP), ~np.uint64(STEP))
    if len(sets.lengths) == 1:
        sums = [np.sum([mixed(part ^ salt).sum() for part in _parts(sets)], keepdims=True) for salt in salts]
    else:
        sums = [np.add.reduceat(mixed(sets.hashes ^ salt), sets.starts) for salt in salts]
    return np.stack([mixed(total + sets.lengths.astype(np.uint64)) for total in sums], axis=1)


def _parts(sets: ShingleSets) -> Iterator[Hashes]:
    for start in range(0, len(sets.hashes), _PART):
        yield sets.hashes[start : start + _PART]
