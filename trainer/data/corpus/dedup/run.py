"""Removes near-duplicates from a corpus, by either engine, into a new folder that appears when it is whole.

Memory holds about 10 bytes per document, and about 200 per pair of near-duplicates; the rest lies in files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import Corpus
from trainer.data.corpus.dedup import pairs
from trainer.data.corpus.dedup.pairs import Edges, Removals, first_of_runs, removals
from trainer.data.corpus.dedup.rows import COLUMNS, KEPT, REMOVED, RowStream, check_parts, schema_of, write_parts
from trainer.data.corpus.dedup.sketches import DedupJob, DedupSettings, Integers, Sets, TextStream, sketched
from trainer.data.corpus.reading import iter_texts
from trainer.errors import InputError
from trainer.files import check_new, new_folder, remove

Engine = Literal["local", "spark"]
_WORK = ".work"
_KEYS = np.dtype([("key", "<u8"), ("row", "<i8")])
_DIGESTS = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
_PAIRS = np.dtype([("left", "<i8"), ("right", "<i8")])
_TOP_BITS = np.uint64(58)  # shift that leaves the highest 6 bits of a hash, which choose one of 64 files
SPILL_PARTS = 64
_HELD_BYTES = 8 << 20  # rows in memory before they are divided and written
_STEP = 65_536  # rows whose pairs are made at once
Counts = dict[str, int]


@dataclass(frozen=True)
class SparkOptions:
    """Spark's master (None: that of Spark's configuration), and the time limit for its start and for each task."""

    master: str | None
    timeout_s: float


@dataclass(frozen=True)
class DedupResult:
    """Summary of a deduplication. All counts are documents, except ``candidates`` and ``verified``, which are pairs."""

    corpus: str
    fingerprint: str
    engine: Engine
    documents: int
    without_shingles: int  # empty documents, which are kept
    identical: int  # documents with the same shingles as an earlier document
    candidates: int  # pairs that share a band and have different shingles
    verified: int  # candidates at least as similar as the threshold
    crowded: int  # documents not compared with all before them, because their bucket is too large
    removed: int
    groups: int  # groups of near-duplicates; one document of each is kept
    rounds: int | None = None  # Spark's rounds of joining groups; None for the local engine
    master: str | None = None  # Spark's master


@dataclass(frozen=True)
class DedupOutcome:
    """Rows ``removed``, and ``kept`` instead of each. ``edges``: pairs at the threshold; None if not asked for."""

    result: DedupResult
    removed: Integers
    kept: Integers
    edges: Edges | None = None


def deduplicate(
    corpus: Corpus,
    settings: DedupSettings,
    out: Path,
    *,
    workers: int | None = None,
    spark: SparkOptions | None = None,
    with_edges: bool = False,
    finish: Callable[[Path, DedupOutcome], None] = lambda _folder, _outcome: None,
    stage: Callable[[str], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> DedupOutcome:
    """Remove near-duplicates of ``corpus``, and write the new folder ``out`` with ``kept/`` and ``removed/``.

    ``finish``: adds files to the folder before it gets its name. ``workers``: threads (default: one per core).
    ``with_edges``: True to return the pairs at the threshold (24 bytes each). ``stage``, ``progress``: called with
    names and documents.
    """
    if corpus.content != "text":
        raise InputError(
            f"data dedup: column {corpus.column!r} of {corpus.name} holds {corpus.content}; allowed: strings"
        )
    out = out.absolute()
    check_new(out)
    schema = schema_of(corpus)
    with new_folder(out) as folder:
        work = folder / _WORK
        try:
            for directory in (work, folder / KEPT, folder / REMOVED):
                directory.mkdir()
            job, master, edges = DedupJob.of(corpus, settings, schema, work, folder), None, None
            if spark is None:
                count = workers or len(os.sched_getaffinity(0))
                counts, edges = _run_here(job, count, stage, progress)
            else:
                from trainer.data.corpus.dedup import spark as engine

                counts, _, master = engine.run(job, spark.master, spark.timeout_s, stage)
                edges = engine.edges(job) if with_edges else None
            check_parts(job)
        finally:
            remove(work)
        outcome = replace(_outcome(job, counts, master), edges=edges if with_edges else None)
        finish(folder, outcome)
    return outcome


def _outcome(job: DedupJob, counts: dict[str, int], master: str | None) -> DedupOutcome:
    removed, kept = removals_in(Path(job.out))
    result = DedupResult(
        corpus=job.corpus.name,
        fingerprint=job.corpus.fingerprint,
        engine="local" if master is None else "spark",
        documents=job.corpus.documents,
        removed=len(removed),
        groups=len(np.unique(kept)),
        master=master,
        **counts,
    )
    return DedupOutcome(result, removed, kept)


def removals_in(folder: Path) -> tuple[Integers, Integers]:
    """Return the rows of removed documents, and of those kept instead. Raises InputError for unreadable files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    removed, kept = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for path in sorted((folder / REMOVED).glob("part-*.parquet")):
        try:
            table = pq.read_table(path, columns=list(COLUMNS[:2]))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: cannot be read as a list of removed documents") from error
        removed.append(table.column(0).to_numpy())
        kept.append(table.column(1).to_numpy())
    return np.concatenate(removed), np.concatenate(kept)


def _run_here(
    job: DedupJob, workers: int, stage: Callable[[str], None], progress: Callable[[int], None]
) -> tuple[Counts, Edges]:
    """Deduplicate by the local engine: write the files of all shares. Return counts and similar pairs."""
    work = Path(job.work)
    characters = np.zeros(job.corpus.documents, np.int64)
    stage("sketch")
    with (
        Spill(work / "keys", _KEYS) as keys,
        Spill(work / "digests", _DIGESTS) as digests,
        Spill(work / "pairs", _PAIRS) as candidate_pairs,
    ):
        without_shingles = _sketch(job, workers, characters, keys, digests, progress)
        stage("pairs")
        identical, repeated = _identical(digests, job.corpus.documents)
        crowded = _pairs(job, keys, repeated, candidate_pairs)
        stage("verify")
        sets = Sets(job)
        candidates, verified = _verified(job, candidate_pairs, sets)
    stage("decide")
    left, right, similarities = (np.concatenate(columns) for columns in zip(identical, verified, strict=True))
    removed = removals(left, right, similarities, characters)
    stage("write")
    _write_shares(job, removed, sets)
    counts = {
        "without_shingles": without_shingles,
        "identical": len(identical[0]),
        "candidates": candidates,
        "verified": len(verified[0]),
        "crowded": crowded,
    }
    return counts, (left, right, similarities)


def _sketch(
    job: DedupJob, workers: int, characters: Integers, keys: Spill, digests: Spill, progress: Callable[[int], None]
) -> int:
    """Fill lengths, keys of bands and digests of shingles for all documents. Return how many have no shingles."""
    without_shingles, texts = 0, TextStream(iter_texts(job.corpus))
    for number in range(job.count):
        first, end = job.bounds(number)
        for sketch in sketched(job, number, texts.take(end - first), workers):
            rows = sketch.rows
            characters[rows] = sketch.characters
            without_shingles += len(rows) - len(sketch.filled)
            high, low = sketch.digests.T
            digests.add((high >> _TOP_BITS).astype(np.int64), high=high, low=low, row=sketch.filled)
            key = sketch.keys.ravel()
            row = np.repeat(sketch.filled, job.settings.banding.bands)
            keys.add((key >> _TOP_BITS).astype(np.int64), key=key, row=row)
            progress(int(rows[-1]) + 1)
    return without_shingles


def _identical(digests: Spill, documents: int) -> tuple[Edges, NDArray[np.bool_]]:
    """Pair each document with the first earlier one of the same shingles. Return the pairs, and a mask of the later."""
    repeated = np.zeros(documents, np.bool_)
    firsts, repeats = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in range(SPILL_PARTS):
        rows = digests.read(number)
        rows = rows[np.lexsort((rows["row"], rows["low"], rows["high"]))]
        new = first_of_runs(rows["high"], rows["low"])
        first = rows["row"][new][np.cumsum(new) - 1] if len(rows) else rows["row"]
        firsts.append(first[~new])
        repeats.append(rows["row"][~new])
        repeated[repeats[-1]] = True
    left, right = np.concatenate(firsts), np.concatenate(repeats)
    return (left, right, np.ones(len(left))), repeated


def _pairs(job: DedupJob, keys: Spill, repeated: NDArray[np.bool_], spill: Spill) -> int:
    """Write the candidate pairs of ``keys``, without ``repeated`` documents. Return the number of crowded ones."""
    crowded = np.zeros(job.corpus.documents, np.bool_)
    for number in range(SPILL_PARTS):
        rows = keys.read(number)
        rows = rows[~repeated[rows["row"]]]
        rows = rows[np.lexsort((rows["row"], rows["key"]))]
        shared = np.zeros(len(rows), np.bool_)  # True if another document has the same key
        equal = rows["key"][1:] == rows["key"][:-1]
        shared[1:] |= equal
        shared[:-1] |= equal
        rows = rows[shared]
        steps = range(0, len(rows), _STEP)
        batches = ((rows["key"][start : start + _STEP], rows["row"][start : start + _STEP]) for start in steps)
        for left, right in pairs.bucket_pairs(batches):
            is_mark = right == pairs.CROWDED
            crowded[left[is_mark]] = True
            left, right = pairs.distinct_pairs(left[~is_mark], right[~is_mark])
            spill.add(left * SPILL_PARTS // job.corpus.documents, left=left, right=right)
    return int(crowded.sum())


def _verified(job: DedupJob, spill: Spill, sets: Sets) -> tuple[int, Edges]:
    """Return the number of distinct pairs in ``spill``, and the pairs at or above the threshold."""
    threshold, candidates = job.settings.threshold, 0
    edges: list[Edges] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for number in range(SPILL_PARTS):
        rows = spill.read(number)
        left, right = pairs.distinct_pairs(rows["left"], rows["right"])
        candidates += len(left)
        values = pairs.similarities(sets, left, right, threshold)
        is_similar = values >= threshold
        edges.append((left[is_similar], right[is_similar], values[is_similar]))
    left, right, values = (np.concatenate(column) for column in zip(*edges, strict=True))
    return candidates, (left, right, values)


def _write_shares(job: DedupJob, gone: Removals, sets: Sets) -> None:
    rows = RowStream(job.corpus, job.schema)
    for number in range(job.count):
        first, end = job.bounds(number)
        write_parts(job, number, rows.take(first, end - first), gone.between(first, end), sets)


class Spill:
    """Rows spread over :data:`SPILL_PARTS` files of a folder, each read back as a whole, so that memory is bounded."""

    def __init__(self, folder: Path, dtype: np.dtype[np.void]) -> None:
        folder.mkdir(parents=True)
        self._dtype = dtype
        self._files: list[IO[bytes]] = [(folder / f"{number:02}.bin").open("w+b") for number in range(SPILL_PARTS)]
        self._held: list[NDArray[np.void]] = []
        self._held_parts: list[NDArray[np.integer[Any]]] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def add(self, parts: NDArray[np.integer[Any]], **columns: NDArray[Any]) -> None:
        """Add rows, given by column. ``parts``: number of the file for each row."""
        rows = np.empty(len(parts), self._dtype)
        for name, values in columns.items():
            rows[name] = values
        self._held.append(rows)
        self._held_parts.append(parts)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._write()

    def read(self, number: int) -> NDArray[np.void]:
        """Return all rows of file ``number``, in the order in which they were added."""
        self._write()
        self._files[number].seek(0)
        rows = np.frombuffer(self._files[number].read(), self._dtype)
        self._files[number].seek(0, 2)
        return rows

    def _write(self) -> None:
        if not self._held:
            return
        rows, parts = np.concatenate(self._held), np.concatenate(self._held_parts)
        self._held, self._held_parts, self._held_bytes = [], [], 0
        order = np.argsort(parts, kind="stable")
        rows, bounds = rows[order], np.searchsorted(parts[order], np.arange(SPILL_PARTS + 1))
        for number, file in enumerate(self._files):
            if bounds[number] < bounds[number + 1]:
                file.write(rows[bounds[number] : bounds[number + 1]].tobytes())
