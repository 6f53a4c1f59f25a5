"""Sketches of documents, share by share: what bands and identical sets are found by, and files of all shingles.

A share is a run of consecutive documents. Its shingles lie in a folder of flat 64-bit values under a work folder,
which every machine that verifies pairs sees; the set of any document is read through a memory map.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import CORPUS_ROW_GROUP, Corpus
from trainer.data.corpus.dedup.minhash import Banding, MinHash, digests
from trainer.data.corpus.dedup.shingles import Hashes, Shingler, ShingleSets, Shingling
from trainer.data.formats.flat import FlatTokens, FlatWriter, open_flat
from trainer.data.token_groups import TextGroup, text_groups
from trainer.errors import InputError
from trainer.leftovers import remove

Integers = NDArray[np.int64]
_SKETCH_SHARES = 64  # of a corpus, where they get no larger than the most and no smaller than a row group
_MAX_SKETCHED_DOCUMENTS = 10_000  # of a share: what an executor does before it ends a task
_OPEN_SHARES = 256  # whose memory maps are held
_HASH = np.dtype("<u8")


@dataclass(frozen=True)
class DedupSettings:
    """What is a near-duplicate, and how it is found. ``seed``: of the permutations."""

    shingling: Shingling
    threshold: float
    banding: Banding
    seed: int = 0


@dataclass(frozen=True)
class DedupJob:
    """What a machine must know to work on any share. It is picklable. ``schema``: of the corpus' rows (Arrow).

    ``work`` holds what is only needed meanwhile, ``out`` the result; all machines see both.
    """

    corpus: Corpus
    settings: DedupSettings
    schema: Any
    work: str
    out: str
    documents: int  # of each share but the last

    @classmethod
    def of(cls, corpus: Corpus, settings: DedupSettings, schema: Any, work: Path, out: Path) -> DedupJob:
        """Shares of whole row groups. They follow from the corpus alone: no engine makes others."""
        documents = -(-corpus.documents // _SKETCH_SHARES // CORPUS_ROW_GROUP) * CORPUS_ROW_GROUP
        size = max(CORPUS_ROW_GROUP, min(documents, _MAX_SKETCHED_DOCUMENTS))
        return cls(corpus, settings, schema, str(work), str(out), size)

    @property
    def count(self) -> int:
        """Of shares."""
        return -(-self.corpus.documents // self.documents)

    def bounds(self, number: int) -> tuple[int, int]:
        """The first document of a share, and the one behind its last."""
        first = number * self.documents
        return first, min(first + self.documents, self.corpus.documents)

    def sets(self, number: int) -> Path:
        """The folder of a share's shingles."""
        return Path(self.work) / "sets" / f"{number:06}"


@dataclass(frozen=True)
class Sketch:
    """Consecutive documents. ``keys`` and ``digests`` are of those that have shingles: of ``filled``, by their row."""

    first: int
    characters: Integers
    filled: Integers
    digests: NDArray[np.uint64]
    keys: Hashes

    @property
    def rows(self) -> Integers:
        return np.arange(self.first, self.first + len(self.characters), dtype=np.int64)


def unseen(job: DedupJob) -> InputError:
    """What to raise where this machine does not see the folders of the job."""
    return InputError(f"{job.work}: not seen by every machine of the cluster; give an --out that all of them see")


def sketched(job: DedupJob, number: int, texts: Iterable[list[str]], workers: int = 1) -> Iterator[Sketch]:
    """Sketch the documents of a share, in order; its shingles are in place when the last one has been taken.

    Raises InputError where there are fewer documents than were counted.
    """
    place = job.sets(number)
    first, end = job.bounds(number)
    if not Path(job.work).is_dir():
        raise unseen(job)
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")  # a task may be tried twice, on two machines
    temporary.mkdir()
    try:
        row = first
        with FlatWriter(temporary, _HASH) as writer:
            for sets, sketch in _sketches(job.settings, text_groups(texts), workers):
                writer.add(sets.hashes, sets.lengths)
                yield replace(sketch, first=row, filled=sketch.filled + row)
                row += len(sets.lengths)
        if row != end:
            raise InputError(
                f"{job.corpus.name}: {row - first} of {end - first} documents found from document {first} on; it was "
                "changed after it was counted"
            )
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        remove(temporary)


class TextStream:
    """Cuts lists of documents at the bounds of shares."""

    def __init__(self, texts: Iterator[list[str]]) -> None:
        self._texts = texts
        self._rest: list[str] = []

    def take(self, count: int) -> Iterator[list[str]]:
        """The next ``count`` documents, fewer where there are no more."""
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
    """Each group's sets and sketch, as of documents from row 0 on; threads work on the next ones meanwhile."""
    shingler, minhash = Shingler(settings.shingling), MinHash(settings.banding, settings.seed)

    def sketch(group: TextGroup) -> tuple[ShingleSets, Sketch]:
        sets = shingler.sets(group.texts)
        some = sets.filled()
        characters = np.fromiter(map(len, group.texts), np.int64, len(group.texts))
        return sets, Sketch(0, characters, np.flatnonzero(sets.lengths), digests(some), minhash.keys(some))

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
    """Reads the shingles of any document that was sketched."""

    def __init__(self, job: DedupJob) -> None:
        self._job = job
        self._share = lru_cache(maxsize=_OPEN_SHARES)(self._opened)

    def of(self, row: int) -> Hashes:
        """The document's shingles, as :class:`Shingler` made them."""
        number, place = divmod(row, self._job.documents)
        found: Hashes = self._share(number).document(place)
        return found

    def _opened(self, number: int) -> FlatTokens:
        return open_flat(self._job.sets(number), _HASH)
