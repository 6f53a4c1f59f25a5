"""Tasks of Spark's executors on Arrow batches, by the code of the local engine: sketch, pair, verify and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from trainer.data.corpus.dedup import pairs
from trainer.data.corpus.dedup.pairs import Removals
from trainer.data.corpus.dedup.rows import RowStream, write_parts
from trainer.data.corpus.dedup.sketches import DedupJob, Integers, Sets, TextStream, sketched
from trainer.data.shares import documents

Task = Callable[[Iterator[Any]], Iterator[Any]]
SKETCH = "row long, characters long, high long, low long, keys array<long>"
REMOVED = "number long, row long, kept long, neighbour long, jaccard double"


def sketch(job: DedupJob) -> Task:
    """Return the task from numbers of shares to a row per document with shingles."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for numbers in _runs(batch.column(0).to_pylist()):
                first, end = job.bounds(numbers[0])[0], job.bounds(numbers[-1])[1]
                texts = TextStream(documents(job.corpus, first, end - first))
                for number in numbers:
                    low, high = job.bounds(number)
                    for part in sketched(job, number, texts.take(high - low)):
                        bands = part.keys.shape[1]
                        offsets = np.arange(0, part.keys.size + 1, bands, dtype=np.int32)
                        keys = pa.ListArray.from_arrays(offsets, pa.array(part.keys.view(np.int64).ravel()))
                        digests = part.digests.view(np.int64)
                        columns = [part.filled, part.characters[part.filled - part.first], *digests.T]
                        arrays = [*(pa.array(np.ascontiguousarray(column)) for column in columns), keys]
                        yield pa.RecordBatch.from_arrays(arrays, ["row", "characters", "high", "low", "keys"])

    return run


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Yield the runs of consecutive numbers, such as [3, 4, 5]."""
    for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        yield [number for _, number in run]


def bucket_pairs() -> Task:
    """Return the Spark task that takes sorted rows (band key, document) and yields candidate pairs (left, right)."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        columns = ((_integers(batch.column(0)).view(np.uint64), _integers(batch.column(1))) for batch in batches)
        for left, right in pairs.bucket_pairs(columns):
            yield _batch({"left": left, "right": right})

    return run


def verify(job: DedupJob) -> Task:
    """Return the Spark task from candidate pairs (left, right) to those at or above the threshold, with similarity."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        sets = Sets(job)
        for batch in batches:
            left, right = _integers(batch.column(0)), _integers(batch.column(1))
            values = pairs.similarities(sets, left, right, job.settings.threshold)
            is_similar = values >= job.settings.threshold
            yield _batch({"left": left[is_similar], "right": right[is_similar], "jaccard": values[is_similar]})

    return run


def write(job: DedupJob) -> Task:
    """Return the task that writes shares, by sorted removals and a mark (row -1) for every share, even without any."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        rows, sets = RowStream(job.corpus, job.schema), Sets(job)
        for number, removals in _shares(batches):
            first, end = job.bounds(number)
            write_parts(job, number, rows.take(first, end - first), removals, sets)
            yield _batch({"number": np.array([number], np.int64)})

    return run


def _shares(batches: Iterator[Any]) -> Iterator[tuple[int, Removals]]:
    parts: list[Any] = []
    for batch in batches:
        numbers = _integers(batch.column(0))
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for piece in np.split(np.arange(len(numbers)), cuts):
            if not len(piece):
                continue
            part = batch.slice(int(piece[0]), len(piece))
            if parts and parts[-1].column(0)[0] != part.column(0)[0]:
                yield _share(parts)
                parts = []
            parts.append(part)
    if parts:
        yield _share(parts)


def _share(held: list[Any]) -> tuple[int, Removals]:
    columns = [np.concatenate([batch.column(place).to_numpy() for batch in held]) for place in range(5)]
    removed, kept, neighbours, values = (column[columns[1] >= 0] for column in columns[1:])
    return int(columns[0][0]), Removals(removed, kept, neighbours, values)


def _integers(column: Any) -> Integers:
    values: Integers = np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
    return values


def _batch(columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(list(map(pa.array, columns.values())), list(columns))
