"""Finds near-duplicates on this machine: what grows with the corpus lies in files of a work folder.

In memory are about 10 bytes a document, and about 200 a pair of documents that are near-duplicates.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup import pairs
from trainer.data.corpus.dedup.components import Removals, removals
from trainer.data.corpus.dedup.parts import write_parts
from trainer.data.corpus.dedup.sketches import DedupJob, Integers, Sets, TextStream, sketched
from trainer.data.corpus.dedup.spills import SPILL_PARTS, Spill
from trainer.data.corpus.dedup.whole_rows import RowStream
from trainer.data.corpus.reading import iter_texts

_KEYS = np.dtype([("key", "<u8"), ("row", "<i8")])
_DIGESTS = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])
_PAIRS = np.dtype([("left", "<i8"), ("right", "<i8")])
_TOP_BITS = np.uint64(58)  # the highest 6 bits of a hash choose one of 64 files
_STEP = 65_536  # rows whose pairs are made at once
Edges = tuple[Integers, Integers, NDArray[np.float64]]
Counts = dict[str, int]


def run(
    job: DedupJob, workers: int, stage: Callable[[str], None], progress: Callable[[int], None]
) -> tuple[Counts, Edges]:
    """Write all parts of the result. Returns what was counted, and the pairs that are similar enough.

    ``stage`` is called with the name of each, ``progress`` with the number of documents that are sketched.
    """
    work = Path(job.work)
    characters = np.zeros(job.corpus.documents, np.int64)
    stage("sketch")
    with (
        Spill(work / "keys", _KEYS) as keys,
        Spill(work / "digests", _DIGESTS) as digests,
        Spill(work / "pairs", _PAIRS) as found,
    ):
        without = _sketch(job, workers, characters, keys, digests, progress)
        stage("pairs")
        identical, repeated = _identical(digests, job.corpus.documents)
        crowded = _pairs(job, keys, repeated, found)
        stage("verify")
        sets = Sets(job)
        candidates, verified = _verified(job, found, sets)
    stage("decide")
    left, right, similarities = (np.concatenate(both) for both in zip(identical, verified, strict=True))
    gone = removals(left, right, similarities, characters)
    stage("write")
    _write(job, gone, sets)
    counts = {
        "without_shingles": without,
        "identical": len(identical[0]),
        "candidates": candidates,
        "verified": len(verified[0]),
        "crowded": crowded,
    }
    return counts, (left, right, similarities)


def _sketch(
    job: DedupJob, workers: int, characters: Integers, keys: Spill, digests: Spill, progress: Callable[[int], None]
) -> int:
    """Sketch all documents, in order; how many have no shingles."""
    without, texts = 0, TextStream(iter_texts(job.corpus))
    for number in range(job.count):
        first, end = job.bounds(number)
        for sketch in sketched(job, number, texts.take(end - first), workers):
            rows = sketch.rows
            characters[rows] = sketch.characters
            without += len(rows) - len(sketch.filled)
            high, low = sketch.digests.T
            digests.add((high >> _TOP_BITS).astype(np.int64), high=high, low=low, row=sketch.filled)
            key = sketch.keys.ravel()
            row = np.repeat(sketch.filled, job.settings.banding.bands)
            keys.add((key >> _TOP_BITS).astype(np.int64), key=key, row=row)
            progress(int(rows[-1]) + 1)
    return without


def _identical(digests: Spill, documents: int) -> tuple[Edges, NDArray[np.bool_]]:
    """Each document whose shingles are those of an earlier one, with the first such; and which these are."""
    repeated = np.zeros(documents, np.bool_)
    firsts, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in range(SPILL_PARTS):
        rows = digests.read(number)
        rows = rows[np.lexsort((rows["row"], rows["low"], rows["high"]))]
        new = np.ones(len(rows), np.bool_)
        new[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
        first = rows["row"][new][np.cumsum(new) - 1] if len(rows) else rows["row"]
        firsts.append(first[~new])
        others.append(rows["row"][~new])
        repeated[others[-1]] = True
    left, right = np.concatenate(firsts), np.concatenate(others)
    return (left, right, np.ones(len(left))), repeated


def _pairs(job: DedupJob, keys: Spill, repeated: NDArray[np.bool_], found: Spill) -> int:
    """Write down the pairs of all buckets; how many documents stand in one that is too large to compare all."""
    crowded = np.zeros(job.corpus.documents, np.bool_)
    for number in range(SPILL_PARTS):
        rows = keys.read(number)
        rows = rows[~repeated[rows["row"]]]
        rows = rows[np.lexsort((rows["row"], rows["key"]))]
        shared = np.zeros(len(rows), np.bool_)  # with another document
        equal = rows["key"][1:] == rows["key"][:-1]
        shared[1:] |= equal
        shared[:-1] |= equal
        rows = rows[shared]
        steps = range(0, len(rows), _STEP)
        batches = ((rows["key"][at : at + _STEP], rows["row"][at : at + _STEP]) for at in steps)
        for left, right in pairs.bucket_pairs(batches):
            out = right == pairs.CROWDED
            crowded[left[out]] = True
            left, right = pairs.distinct_pairs(left[~out], right[~out])
            found.add(left * SPILL_PARTS // job.corpus.documents, left=left, right=right)
    return int(crowded.sum())


def _verified(job: DedupJob, found: Spill, sets: Sets) -> tuple[int, Edges]:
    """How many pairs there are, and those that are similar enough."""
    threshold, candidates = job.settings.threshold, 0
    edges: list[Edges] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for number in range(SPILL_PARTS):
        rows = found.read(number)
        left, right = pairs.distinct_pairs(rows["left"], rows["right"])
        candidates += len(left)
        values = pairs.similarities(sets, left, right, threshold)
        enough = values >= threshold
        edges.append((left[enough], right[enough], values[enough]))
    left, right, values = (np.concatenate(column) for column in zip(*edges, strict=True))
    return candidates, (left, right, values)


def _write(job: DedupJob, gone: Removals, sets: Sets) -> None:
    rows = RowStream(job.corpus, job.schema)
    for number in range(job.count):
        first, end = job.bounds(number)
        write_parts(job, number, rows.take(first, end - first), gone.between(first, end), sets)
