"""Reads the spans and steps of a run as columns, and computes with stretches of time.

Stretches: sorted, disjoint [start, end) pairs of int64 ns, as two columns. A run of a million steps takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import KEPT_MAKERS_MAX, WORKER_NUMBER_MAX
from harness.scenario.overrides import lookup_number
from harness.study.contract import RECEIVE, SAMPLER, STAGES

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.study.run_data import RunData

Int = NDArray[np.int64]
SPANS_AT_ONCE = 500_000  # bounds the memory of one sweep
NO_TIMES: Int = np.zeros(0, dtype=np.int64)


class Stretches(NamedTuple):
    """Sorted, disjoint intervals of time [start, end) in ns; ``starts`` and ``ends`` (stretches,)."""

    starts: Int
    ends: Int


class Pieces(NamedTuple):
    """Parts cut out of other spans; ``owner`` (pieces,) is the index of the span that each [start, end) is cut from."""

    owner: Int
    starts: Int
    ends: Int


def union(starts: Int, ends: Int) -> Stretches:
    """Return the time that any of the spans covers, as stretches; empty spans are dropped."""
    kept = ends > starts
    if not kept.all():
        starts, ends = starts[kept], ends[kept]
    if not starts.size:
        return Stretches(NO_TIMES, NO_TIMES)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    first = np.append(True, starts[1:] > reached[:-1])
    return Stretches(starts[first], reached[np.append(first[1:], True)])


def intersection(first: Stretches, second: Stretches) -> Stretches:
    """Return the time that lies in both."""
    return Stretches(*clip(*first, second)[1:])


def difference(first: Stretches, second: Stretches) -> Stretches:
    """Return the time that lies in ``first`` but not in ``second``."""
    if not first.starts.size or not second.starts.size:
        return first
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return intersection(first, Stretches(np.append(low, second.ends), np.append(second.starts, high)))


def clip(starts: Int, ends: Int, inside: Stretches) -> Pieces:
    """Return the parts of the spans [start, end) in the stretches ``inside``, span by span. Spans may overlap."""
    low = np.searchsorted(inside.ends, starts, side="right")
    high = np.maximum(np.searchsorted(inside.starts, ends, side="left"), low)
    owner, place = _expanded(low, high)
    since, until = np.maximum(starts[owner], inside.starts[place]), np.minimum(ends[owner], inside.ends[place])
    kept = until > since
    return Pieces(owner[kept], since[kept], until[kept])


def touches(starts: Int, ends: Int, inside: Stretches) -> NDArray[np.bool_]:
    """True for spans [start, end) that overlap the stretches ``inside``, (spans,).

    An empty span counts if it lies in a stretch, but not at its start."""
    touching: NDArray[np.bool_] = np.searchsorted(inside.starts, ends, side="left") > np.searchsorted(
        inside.ends, starts, side="right"
    )
    return touching


def covered(starts: Int, ends: Int, inside: Stretches) -> Int:
    """Return the ns of each span [start, end) that lie in the stretches ``inside``, (spans,)."""
    if not inside.starts.size:
        return np.zeros(len(starts), dtype=np.int64)
    before = np.append(0, np.cumsum(inside.ends - inside.starts))

    def up_to(moments: Int) -> Int:
        place = np.searchsorted(inside.starts, moments, side="right") - 1
        index = np.maximum(place, 0)
        within = np.clip(moments - inside.starts[index], 0, inside.ends[index] - inside.starts[index])
        total: Int = np.where(place >= 0, before[index] + within, 0)
        return total

    lengths = np.empty(len(starts), dtype=np.int64)
    for first in range(0, len(starts), SPANS_AT_ONCE):
        part = slice(first, first + SPANS_AT_ONCE)
        lengths[part] = np.maximum(0, up_to(ends[part]) - up_to(starts[part]))
    return lengths


def in_order(moments: Int) -> Int:
    """Return the distinct values of ``moments``, sorted. Faster than ``np.unique`` for a few joined sorted arrays."""
    ordered = np.sort(moments, kind="stable")
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def total(stretches: Stretches) -> int:
    """Return the total length of ``stretches`` in ns."""
    return int((stretches.ends - stretches.starts).sum())


def innermost(starts: Int, ends: Int) -> Pieces:
    """Return the spans without overlaps: each moment belongs to the span that started last (of equals, the last given).

    |---- a -----------|            |-- a --|          |-a-|
            |--- b ---|       ->            |--- b ---|
    """
    kept = np.flatnonzero(ends > starts)
    order = kept[np.argsort(starts[kept], kind="stable")]
    edges = in_order(np.concatenate([starts[order], ends[order]]))
    if not edges.size:
        return Pieces(NO_TIMES, NO_TIMES, NO_TIMES)
    owner = np.full(len(edges) - 1, -1, dtype=np.int64)
    spans, place = _expanded(np.searchsorted(edges, starts[order]), np.searchsorted(edges, ends[order]))
    owner[place] = order[spans]  # if an index is assigned several times, numpy keeps the last value
    owned = owner >= 0
    return Pieces(owner[owned], edges[:-1][owned], edges[1:][owned])


def _expanded(low: Int, high: Int) -> tuple[Int, Int]:
    """Return (i, index) for each index with low[i] <= index < high[i], in order of i: two flat arrays."""
    counts = high - low
    rows = np.repeat(np.arange(len(counts)), counts)
    skipped = np.repeat(low - np.append(0, np.cumsum(counts)[:-1]) if len(counts) else NO_TIMES, counts)
    return rows, np.arange(len(rows)) + skipped


Result = TypeVar("Result")
STEPS_AT_ONCE = 10_000  # the working set of one sweep fits into a core's cache
THREADS = 2
PARTS_AT_ONCE = 16  # bounds the results that wait in memory


def in_parts(steps: Stretches, work: Callable[[Stretches], Result]) -> Iterator[Result]:
    """Yield the result of ``work`` for consecutive groups of ``steps``, in order. Calls may run in parallel threads."""
    firsts = range(0, len(steps.starts), STEPS_AT_ONCE)
    parts = [Stretches(*(column[first : first + STEPS_AT_ONCE] for column in steps)) for first in firsts]
    if len(parts) < THREADS:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            yield from threads.map(work, parts[first : first + PARTS_AT_ONCE])


FETCH = "fetch"
BUILT = ("read", "tokenize", "pack")  # stages that make a batch and record spans, in order
BLOCK_ROWS = 4096  # rows per block of Spans._blocks
KINDS = ("phases", "stages", "kernels", "launches", "blocking", "unpackings", "draws")
KIND_OF_ROLE = {
    "main": "phases", "device": "kernels", "launch": "launches", "sync": "blocking", RECEIVE: "unpackings",
    SAMPLER: "draws",
}  # fmt: skip
OTHER = len(KINDS)  # kind of a span that analysis does not read
NOT_MEASURED = -1  # value of ``cpu_ns`` without a measurement
NO_WORKER = -1  # maker of a batch that the main thread made, or whose maker was not recorded
LOADER = "loader-"  # prefix of a loader worker's role, before its number
UNANNOUNCED = "unannounced"  # suffix of the site of a blocking call without a time; torch reported it in one step
# columns of the spans table that analysis reads
COLUMNS = ("role", "rank", "name", "batch", "start_ns", "end_ns", "cpu_ns")


@dataclass(frozen=True)
class Spans:
    """Recorded spans of one kind in one run, in the order recorded; all (spans,), times in ns (CLOCK_MONOTONIC)."""

    names: NDArray[np.int32]  # index into RunSpans.names
    starts: Int
    ends: Int
    batches: NDArray[np.int32]  # -1: no batch
    cpu_ns: NDArray[np.float32]  # NOT_MEASURED if unknown; float32 is exact to seven digits and saves half the memory

    def where(self, chosen: NDArray[np.bool_] | Int | slice) -> Spans:
        """Return the ``chosen`` spans; ``chosen`` is a mask, row numbers or a slice."""
        return Spans(*(column[chosen] for column in self.columns))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.names, self.starts, self.ends, self.batches, self.cpu_ns

    def between(self, since_ns: int, until_ns: int) -> Spans:
        """Return the spans that overlap [since_ns, until_ns), in order. Reads only blocks of rows that have some."""
        first_start, last_end = self._blocks
        blocks = np.flatnonzero((last_end > since_ns) & (first_start < until_ns))
        near = (blocks[:, np.newaxis] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel()
        near = near[: np.searchsorted(near, len(self))]
        return self.where(near[(self.ends[near] > since_ns) & (self.starts[near] < until_ns)])

    @cached_property
    def _blocks(self) -> tuple[Int, Int]:
        """Earliest start and latest end of each block of :data:`BLOCK_ROWS` spans."""
        first = np.arange(0, len(self), BLOCK_ROWS)
        if not len(first):
            return first, first
        return np.minimum.reduceat(self.starts, first), np.maximum.reduceat(self.ends, first)

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class RunSpans:
    """All spans that the first rank of one run recorded, by kind; :func:`spans_of` reads them."""

    names: Sequence[str]
    phases: Spans  # recorded by the main thread
    stages: Spans  # recorded by the builder of the batch: a loader worker or the main thread
    kernels: Spans  # work of an asynchronous device
    launches: Spans  # time in which the host queued each piece of device work, in the same order
    blocking: Spans  # calls of the main thread that waited for the device; their names are call sites
    unpackings: Spans  # time from the arrival of a worker's batch until it was unpacked
    draws: Spans  # reading by the main thread for loader workers: a sampler chooses items
    # (batches,) number of the worker that made each batch, or NO_WORKER
    makers: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, dtype=np.int16))

    @property
    def rows(self) -> int:
        """Number of spans of all kinds."""
        return sum(len(getattr(self, kind)) for kind in KINDS)

    def between(self, since_ns: int, until_ns: int) -> RunSpans:
        """Return the spans of all kinds that overlap [since_ns, until_ns)."""
        return replace(self, **{kind: getattr(self, kind).between(since_ns, until_ns) for kind in KINDS})

    @property
    def blocks_untimed(self) -> bool:
        """True if the main thread made blocking calls whose time was not recorded."""
        return any(self.names[code].endswith(UNANNOUNCED) for code in np.unique(self.blocking.names))

    def code(self, name: str) -> int:
        """Return the index of ``name`` in :attr:`names`; -1 if no span has it."""
        return self.names.index(name) if name in self.names else -1

    @property
    def stages_and_draws(self) -> Spans:
        """Stages of all batches, including the main thread's choice of items for loader workers."""
        if not len(self.draws):
            return self.stages
        return Spans(*map(np.concatenate, zip(self.stages.columns, self.draws.columns, strict=True)))

    def of(self, spans: Spans, name: str) -> Spans:
        """Return the spans in ``spans`` that have this name."""
        return spans.where(spans.names == self.code(name))


def once_per_run(key: str) -> Callable[[Callable[[RunData], Result]], Callable[[RunData], Result]]:
    """Return a decorator for functions of a run: the result is computed once and cached with the run under ``key``."""

    def decorate(work: Callable[[RunData], Result]) -> Callable[[RunData], Result]:
        return wraps(work)(lambda run: run.once(key, lambda: work(run)))

    return decorate


@once_per_run("spans")
def spans_of(run: RunData) -> RunSpans:
    """Return the spans of ``run``, read once. ``exposure.release`` frees those of long runs."""
    return begun_when_launched(read_spans(run.span_batches(COLUMNS)))


def loader_workers(run: RunData) -> int:
    """Return the number of loader workers, as configured or observed; 0 if batches are made inline."""
    return int(lookup_number(run.record.config, "data.workers", run.record.facts.workers or 0))


def read_spans(batches: Iterable[pa.RecordBatch]) -> RunSpans:
    """Return the spans of the first rank.

    ``batches``: parts of the spans table with :data:`COLUMNS`, freed after reading."""
    names: dict[str, int] = {}
    kinds = {kind: _Growing() for kind in KINDS}
    makers = np.zeros(0, dtype=np.int16)
    first_rank: int | None = None
    for batch in batches:
        role, roles = _coded(batch.column("role"))
        name, texts = _coded(batch.column("name"))
        codes = np.array([names.setdefault(text, len(names)) for text in texts] or [0], dtype=np.int32)
        kind = _kind_of(roles, texts)[role * len(texts) + name]
        ranks = _integers(batch.column("rank"), 0)
        if first_rank is None and len(ranks):
            first_rank = int(ranks[0])
        if len(other_ranks := np.flatnonzero(ranks != first_rank)):
            kind[other_ranks] = OTHER
        workers = np.array([_worker(text) for text in roles] or [NO_WORKER], dtype=np.int16)[role]
        numbers = {column: _integers(batch.column(column)) for column in COLUMNS[3:]}
        for number, growing in enumerate(kinds.values()):
            rows = np.flatnonzero(kind == number)
            chosen: Int | slice = slice(None) if len(rows) == len(kind) else rows
            growing.append(
                codes[name[chosen]],
                numbers["start_ns"][chosen],
                numbers["end_ns"][chosen],
                numbers["batch"][chosen],
                numbers["cpu_ns"][chosen],
            )
        kept = (numbers["batch"] >= 0) & (numbers["batch"] < KEPT_MAKERS_MAX)
        rows = np.flatnonzero((workers != NO_WORKER) & (kind == KINDS.index("stages")) & kept)
        makers = _with_makers(makers, numbers["batch"][rows], workers[rows])
    return RunSpans(tuple(names), **{kind: growing.spans for kind, growing in kinds.items()}, makers=makers)


def _worker(role: str) -> int:
    number = role.removeprefix(LOADER)
    is_number = number != role and number.isdecimal() and len(number) < len(str(WORKER_NUMBER_MAX))
    return int(number) if is_number else NO_WORKER


def _with_makers(makers: NDArray[np.int16], batches: Int, workers: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return ``makers``, extended if necessary, with the numbers of the ``workers`` that made these ``batches``."""
    missing = int(batches.max(initial=-1)) + 1 - len(makers)
    if missing > 0:
        makers = np.concatenate([makers, np.full(max(missing, len(makers)), NO_WORKER, dtype=np.int16)])
    makers[batches] = workers
    return makers


def begun_when_launched(spans: RunSpans) -> RunSpans:
    """Return ``spans`` with each piece of device work cut to start no earlier than its first launch."""
    kernels, pieces = spans.kernels, min(len(spans.kernels), len(spans.launches))
    starts = kernels.starts.copy()
    starts[:pieces] = np.minimum(np.maximum(starts[:pieces], spans.launches.starts[:pieces]), kernels.ends[:pieces])
    return replace(spans, kernels=replace(kernels, starts=starts))


def _kind_of(roles: Sequence[str], names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the index in :data:`KINDS` (or OTHER) of each pair of a role and a name, flat, role by role."""
    kinds = np.full((len(roles), len(names)), OTHER, dtype=np.uint8)
    is_stage = np.array([name in STAGES for name in names], dtype=np.bool_)
    for place, role in enumerate(roles):
        if role in KIND_OF_ROLE:
            kinds[place] = KINDS.index(KIND_OF_ROLE[role])
        if role == "main" or role.startswith("loader"):
            kinds[place, is_stage] = KINDS.index("stages")
    return kinds.ravel()


class _Growing:
    """Columns of spans that grow in place, without a second copy in memory."""

    def __init__(self) -> None:
        names, batches = (np.empty(0, dtype=np.int32) for _ in range(2))
        starts, ends = (np.empty(0, dtype=np.int64) for _ in range(2))
        self.spans = Spans(names, starts, ends, batches, np.empty(0, dtype=np.float32))

    def append(self, *columns: NDArray[Any]) -> None:
        """Add rows; ``columns`` as in :attr:`Spans.columns`. Not allowed once other code refers to :attr:`spans`."""
        count = len(self.spans)
        for values, added in zip(self.spans.columns, columns, strict=True):
            values.resize(count + len(added), refcheck=False)
            values[count:] = added


def _coded(column: pa.Array) -> tuple[NDArray[np.int32], list[str]]:
    """Return the column's texts as codes, and the text of each code. A null has a code of its own, with the text ""."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = [str(text) for text in column.dictionary.to_pylist()]
    codes = column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, [*texts, ""]


def _integers(column: pa.Array, null: int = NOT_MEASURED) -> Int:
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def column(table: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a column of numbers or booleans as float64, (rows,), NaN where null."""
    recorded = table.column(name)
    if recorded.null_count == len(recorded):  # A third of the columns are all null in a run without a device.
        return np.full(len(recorded), math.nan)
    numbers = recorded.cast("float64", safe=False)  # a clock above 2^53 ns (a hundred days) loses a nanosecond
    if numbers.null_count:
        numbers = numbers.fill_null(math.nan)
    values: NDArray[np.float64] = numbers.to_numpy()
    return values


def bounds(steps: pa.Table, chosen: NDArray[np.bool_] | slice = slice(None)) -> Stretches:
    """Return the start and end of each chosen step, in ns."""
    starts = integers(steps, "start_ns")
    return Stretches(starts[chosen], (starts + integers(steps, "wall_ns"))[chosen])


def held_up(steps: Stretches, measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for steps with other work than training: unmeasured, after a measured step, and no gap in time between."""
    begins = np.append(True, steps.starts[1:] > steps.ends[:-1])[: len(measured)] & ~measured
    counted = np.cumsum(measured)
    before = np.maximum.accumulate(np.where(begins, counted, 0))  # measured steps before the current group of steps
    result: NDArray[np.bool_] = ~measured & (counted > before)
    return result


def integers(table: pa.Table, name: str, null: int = 0) -> Int:
    """Return a column of a table as int64, (rows,), with ``null`` where it was not measured."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy().astype(np.int64, copy=False)
    return values
