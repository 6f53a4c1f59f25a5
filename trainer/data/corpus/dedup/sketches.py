"""Sketches documents by MinHash, share by share: band keys, digests of shingle sets, and files of all shingles.

A share is a run of consecutive documents. Its shingles lie as flat 64-bit values in a work folder that all machines
see. Any document's set is read through a memory map.

MinHash signatures and their bands select candidate pairs (Broder 1997; Indyk and Motwani 1998). A signature has one
place per permutation of all shingles, with the least shingle of the set. The probability that two sets agree in a place
is their Jaccard similarity. Two documents are candidates if all rows of one of their bands agree. The places are filled
by fast similarity sketching (Dahlgaard, Knudsen and Thorup 2017, arXiv:1704.04370). In each round a shingle goes to one
place, and only places that are empty after some rounds get all shingles. That takes a few hashes per shingle instead of
one per permutation, and is as accurate. The places of a set are not independent, but no more pairs at the threshold are
missed than by the S-curve of independent places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import Corpus
from trainer.data.corpus.dedup.shingles import STEP, Hashes, Shingler, ShingleSets, Shingling
from trainer.data.formats.flat import FlatTokens, FlatWriter, open_flat
from trainer.data.order import mixed
from trainer.data.shares import documents_per_share, share_folder
from trainer.data.token_groups import TextGroup, text_groups
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
    """Division of a signature into ``bands`` of ``rows`` values. Documents that agree in a band are candidates."""

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
        """Probability that a pair of this Jaccard similarity is no candidate, exact even if close to 0."""
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
    """Return the banding of most rows that finds :data:`FOUND` of pairs at the threshold. Raises InputError."""
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
    """Return the banding with the user's numbers. Raises InputError if one is too small or their product too large."""
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
        """Return the MinHash signatures of the sets, none empty: (documents, permutations). Large sets go in parts."""
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
        """Return a 64-bit hash per document and band, equal where signatures agree. No set may be empty."""
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


Integers = NDArray[np.int64]
_SKETCH_SHARES = 64  # shares of a corpus, unless they would be larger than the limit or smaller than a row group
_MAX_SKETCHED_DOCUMENTS = 10_000  # documents of a share: an executor's work in one task
_OPEN_SHARES = 256  # shares whose memory maps are kept open
_HASH = np.dtype("<u8")


@dataclass(frozen=True)
class DedupSettings:
    """Definition of a near-duplicate, and the search's parameters. ``seed``: seed of the permutations."""

    shingling: Shingling
    threshold: float
    banding: Banding
    seed: int = 0


@dataclass(frozen=True)
class DedupJob:
    """Description of a deduplication, for any machine. It is picklable. All machines see ``work`` and ``out``."""

    corpus: Corpus
    settings: DedupSettings
    schema: Any
    work: str
    out: str
    documents: int  # documents of each share except the last

    @classmethod
    def of(cls, corpus: Corpus, settings: DedupSettings, schema: Any, work: Path, out: Path) -> DedupJob:
        """Return the job, with the corpus divided into shares. The division is the same for every engine."""
        size = documents_per_share(corpus.documents, _SKETCH_SHARES, _MAX_SKETCHED_DOCUMENTS)
        return cls(corpus, settings, schema, str(work), str(out), size)

    @property
    def count(self) -> int:
        """Number of shares."""
        return -(-self.corpus.documents // self.documents)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first document of share ``number``, and the document after its last."""
        first = number * self.documents
        return first, min(first + self.documents, self.corpus.documents)

    def sets(self, number: int) -> Path:
        """Return the folder with the shingles of share ``number``."""
        return Path(self.work) / "sets" / f"{number:06}"


@dataclass(frozen=True)
class Sketch:
    """Sketch of documents from row ``first`` on: lengths of all, digests and band keys of those ``filled``."""

    first: int
    characters: Integers
    filled: Integers
    digests: NDArray[np.uint64]
    keys: Hashes

    @property
    def rows(self) -> Integers:
        return np.arange(self.first, self.first + len(self.characters), dtype=np.int64)


def unseen(job: DedupJob) -> InputError:
    """Return the error to raise on a machine that does not see the folders of the job."""
    return InputError(f"{job.work}: not seen by every machine of the cluster; give an --out that all of them see")


def sketched(job: DedupJob, number: int, texts: Iterable[list[str]], workers: int = 1) -> Iterator[Sketch]:
    """Yield sketches of share ``number``, in order. Raises InputError if fewer documents come than were counted."""
    place = job.sets(number)
    first, end = job.bounds(number)
    if not Path(job.work).is_dir():
        raise unseen(job)
    place.parent.mkdir(exist_ok=True)
    with share_folder(place) as folder:
        row = first
        with FlatWriter(folder, _HASH) as writer:
            for sets, sketch in _sketches(job.settings, text_groups(texts), workers):
                writer.add(sets.hashes, sets.lengths)
                yield replace(sketch, first=row, filled=sketch.filled + row)
                row += len(sets.lengths)
        if row != end:
            raise InputError(
                f"{job.corpus.name}: {row - first} of {end - first} documents found from document {first} on; it was "
                "changed after it was counted"
            )


class TextStream:
    """Hands out a stream of documents share by share: lists are cut at the bounds of shares."""

    def __init__(self, texts: Iterator[list[str]]) -> None:
        self._texts = texts
        self._rest: list[str] = []

    def take(self, count: int) -> Iterator[list[str]]:
        """Yield the next ``count`` documents in lists; fewer if the stream ends."""
        while count:
            texts = self._rest or next(self._texts, [])
            if not texts:
                return
            self._rest = texts[count:]
            taken = texts[:count]
            count -= len(taken)
            yield taken


def _sketches(
    settings: DedupSettings, groups: Iterator[TextGroup], workers: int
) -> Iterator[tuple[ShingleSets, Sketch]]:
    """Yield shingle sets and sketch of each group, with rows from 0 in each. Threads work ahead on the next groups."""
    shingler, minhash = Shingler(settings.shingling), MinHash(settings.banding, settings.seed)

    def sketch(group: TextGroup) -> tuple[ShingleSets, Sketch]:
        sets = shingler.sets(group.texts)
        filled = sets.filled()
        characters = np.fromiter(map(len, group.texts), np.int64, len(group.texts))
        return sets, Sketch(0, characters, np.flatnonzero(sets.lengths), digests(filled), minhash.keys(filled))

    if workers == 1:
        yield from map(sketch, groups)
        return
    pending: list[Future[tuple[ShingleSets, Sketch]]] = []
    with ThreadPoolExecutor(workers, "sketch") as pool:
        try:
            for group in groups:
                pending.append(pool.submit(sketch, group))
                if len(pending) > workers:
                    yield pending.pop(0).result()
            while pending:
                yield pending.pop(0).result()
        finally:
            for future in pending:
                future.cancel()


class Sets:
    """Reads the shingles of any sketched document from the files of its share."""

    def __init__(self, job: DedupJob) -> None:
        self._job = job
        self._share = lru_cache(maxsize=_OPEN_SHARES)(self._opened)

    def of(self, row: int) -> Hashes:
        """Return the shingles of document ``row``, sorted."""
        number, place = divmod(row, self._job.documents)
        shingles: Hashes = self._share(number).document(place)
        return shingles

    def _opened(self, number: int) -> FlatTokens:
        return open_flat(self._job.sets(number), _HASH)
