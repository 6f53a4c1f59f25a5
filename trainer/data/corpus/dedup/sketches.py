"""Sketches documents, share by share: band keys, digests of shingle sets, and files of all shingles.

A share is a run of consecutive documents. Its shingles lie as flat 64-bit values in a work folder that all machines
see. Any document's set is read through a memory map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import Corpus
from trainer.data.corpus.dedup.minhash import Banding, MinHash, digests
from trainer.data.corpus.dedup.shingles import Hashes, Shingler, ShingleSets, Shingling
from trainer.data.formats.flat import FlatTokens, FlatWriter, open_flat
from trainer.data.shares import documents_per_share, share_folder
from trainer.data.token_groups import TextGroup, text_groups
from trainer.errors import InputError

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
    """Description of a deduplication, for any machine. It is picklable. ``schema``: Arrow schema of the corpus' rows.

    ``work``: folder of temporary files; ``out``: folder of the result. All machines see both. ``documents``: number per
    share.
    """

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
    """Sketch of consecutive documents from row ``first`` on. ``characters``: length of each document.

    ``filled``: rows of the documents with shingles. ``digests`` and ``keys`` have one row for each of these.
    """

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
    """Yield sketches of the documents of share ``number``, in order.

    Its shingles are in place when the last sketch has been taken. Raises InputError if there are fewer documents than
    were counted.
    """
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
    """Yield the shingle sets and the sketch of each group; the rows of each sketch begin at 0.

    Threads work ahead on the next groups.
    """
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
