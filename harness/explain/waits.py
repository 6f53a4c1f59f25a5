"""Places the stages of batches and the idle time of the device within the steps, in integer nanoseconds.

The main thread waits for batch b during [w0, w1). The builder of b recorded its stages on the same clock:

    worker:      |--read--|-------tokenize--------|-pack-|
    main thread: ===|           |================= wait ==|
               parallel | outside  | during the wait           (the rest of the wait: transfer)

    during    stage time within the wait for its batch; the rest is *transfer* (request, hand-over, unpickling)
    parallel  stage time within waits for other batches
    outside   stage time within training steps that did not wait
    between   stage time between training steps (beside an evaluation)

What each stage cost the step: ``replay.attribution``. A device is idle while it has nothing queued; the cause is what
the host did at that moment:

    host:    |fetch: read|tokenize|pack|launch ...........|====== blocked: gradient norm ======|launch|fetch ...
    device:  ====optimizer====|         |h2d|=== forward ===|======= backward =======|norm|...|==optimizer==...
                              ^ idle    ^ by what the host did: the rest of tokenize, pack, launching
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.spans import (
    FETCH,
    SPANS_AT_ONCE,
    Int,
    Pieces,
    RunSpans,
    Stretches,
    clip,
    covered,
    difference,
    in_order,
    in_parts,
    innermost,
    intersection,
    touches,
    union,
)
from harness.study.contract import CAUSES, STAGES

TRANSFER = STAGES.index("transfer")


class BatchWaits(NamedTuple):
    """The main thread's wait for each batch, by batch number; all (batches,), times in ns."""

    rows: Int  # row of the steps table; -1: not in a finished step
    starts: Int
    ends: Int
    reported: NDArray[np.bool_]  # the builder recorded its work; else the stages of this row are unknown


class StageSpans(NamedTuple):
    """Recorded stages of batches, without overlaps within a batch; all (spans,), times in ns."""

    batches: Int
    stages: Int  # index into STAGES
    starts: Int
    ends: Int


def without_overlaps(spans: StageSpans) -> StageSpans:
    """Return the spans sorted by batch and start, without overlaps: of two stages of a batch, the last begun counts."""
    kept = spans.ends > spans.starts
    if not kept.all():
        spans = StageSpans(*(column[kept] for column in spans))
    order = np.lexsort((spans.starts, spans.batches))
    spans = StageSpans(*(column[order] for column in spans))
    same_batch = spans.batches[1:] == spans.batches[:-1]
    overlapping = np.unique(spans.batches[1:][same_batch & (spans.starts[1:] < spans.ends[:-1])])
    if not overlapping.size:
        return spans
    mended = [StageSpans(*(column[~np.isin(spans.batches, overlapping)] for column in spans))]
    for batch in overlapping:  # few batches: stages follow one another unless a recorder nests them
        nested = StageSpans(*(column[spans.batches == batch] for column in spans))
        pieces = innermost(nested.starts, nested.ends)
        mended.append(StageSpans(nested.batches[pieces.owner], nested.stages[pieces.owner], pieces.starts, pieces.ends))
    joined = StageSpans(*(np.concatenate(columns) for columns in zip(*mended, strict=True)))
    order = np.lexsort((joined.starts, joined.batches))
    return StageSpans(*(column[order] for column in joined))


def of_known_batches(spans: StageSpans, waits: BatchWaits) -> StageSpans:
    """Return the spans of the batches that ``waits`` includes. ``spans`` is sorted by batch; no column is copied."""
    count = np.searchsorted(spans.batches, len(waits.rows))
    return StageSpans(*(column[:count] for column in spans))


class StageTimes(NamedTuple):
    """Nanoseconds that stages of a step's batches took, by when they ran; each array is (steps, stages). ``during``:
    while the main thread waited for that batch. ``parallel``: while it waited for another batch. ``outside``: in steps,
    while it did not wait. ``between``: between steps."""

    work: Int  # all time of the stages of the step's batches; transfer: only within the waits
    during: Int
    parallel: Int
    outside: Int
    between: Int


def stage_times(
    waits: BatchWaits, spans: StageSpans, counted: Stretches, open_steps: Stretches, rows: int
) -> StageTimes:
    """Return the time of the stages of each step's batches, divided by when the stages ran; see :class:`StageTimes`.

    ``counted``: times at which a wait counts: all waits, but beside an asynchronous device only while it is idle.
    ``open_steps``: times within training steps. ``rows``: number of steps. Raises ValueError if a wait ends before it
    starts.
    """
    if (waits.ends < waits.starts).any():
        raise ValueError("a wait cannot end before it starts")
    work, during, behind, outside, between = (np.zeros((rows, len(STAGES)), dtype=np.int64) for _ in range(5))
    counted = intersection(counted, open_steps)
    spans = of_known_batches(spans, waits)
    for first in range(0, len(spans.batches), SPANS_AT_ONCE):
        part = StageSpans(*(column[first : first + SPANS_AT_ONCE] for column in spans))
        part = StageSpans(*(column[waits.rows[part.batches] >= 0] for column in part))
        since, until = waits.starts[part.batches], waits.ends[part.batches]
        starts, ends = np.maximum(part.starts, since), np.minimum(part.ends, until)
        inside = np.maximum(0, ends - starts)
        waited = covered(part.starts, part.ends, counted)
        opened = covered(part.starts, part.ends, open_steps)
        own_waits = covered(starts, np.maximum(starts, ends), counted)
        cells = waits.rows[part.batches], part.stages
        np.add.at(work, cells, part.ends - part.starts)
        np.add.at(during, cells, inside)
        np.add.at(behind, cells, waited - own_waits)
        np.add.at(outside, cells, opened - waited)
        np.add.at(between, cells, part.ends - part.starts - opened)
    behind[:, TRANSFER] = outside[:, TRANSFER] = between[:, TRANSFER] = 0
    during[:, TRANSFER] += per_row(waits.rows, waits.ends - waits.starts, rows) - during.sum(axis=1)
    work[:, TRANSFER] = during[:, TRANSFER]
    return StageTimes(work, during, behind, outside, between)


def per_row(rows: Int, values: Int, count: int) -> Int:
    """Return the sums of ``values`` by row, (count,). Values without a row (-1) are left out."""
    kept = rows >= 0
    # Sums in float64 are exact below 2^53 ns (a hundred days per row).
    return np.bincount(rows[kept], weights=values[kept], minlength=count).astype(np.int64)


PYTHON = CAUSES.index("python")  # launching, and all other host activity
assert CAUSES[: len(STAGES)] == STAGES, "a stage's number is that of the cause of the same name"
# Cause by phase of the main thread while the device is idle. All other phases: python.
CAUSE_OF_PHASE = {"sync": "sync", "log": "log", "checkpoint": "checkpoint"}


class Activities(NamedTuple):
    """Activities of the main thread by cause, in order and without overlaps; all (activities,), times in ns."""

    causes: Int  # index into CAUSES
    starts: Int
    ends: Int


class IdleTime(NamedTuple):
    """Pieces of a step in which the device was idle, cut where the cause changes; all (pieces,)."""

    rows: Int  # row of the steps table
    stretches: Int  # number of the idle stretch that the piece belongs to, from 0
    causes: Int
    starts: Int
    ends: Int


def activities(spans: RunSpans, waits: BatchWaits, stages: StageSpans, during: Stretches | None = None) -> Activities:
    """Return what the main thread did at each time, as an index into CAUSES; of nested spans, the innermost counts.

    While it waits for a batch, the cause is the stage that this batch is in, or "transfer" between stages. ``stages``:
    must not overlap within a batch. ``during``: only activities that overlap these times are returned; None: all."""
    stages = of_known_batches(stages, waits)
    since = np.maximum(stages.starts, waits.starts[stages.batches])
    until = np.minimum(stages.ends, waits.ends[stages.batches])
    phases = spans.phases.where(spans.phases.names != spans.code(FETCH))
    cause_of = np.array([CAUSES.index(CAUSE_OF_PHASE.get(name, "python")) for name in spans.names] or [PYTHON])
    blocked = np.full(len(spans.blocking), CAUSES.index("sync"))
    fetching = np.full(len(waits.starts), CAUSES.index("transfer"))
    causes = np.concatenate([cause_of[phases.names], blocked, fetching, stages.stages])
    starts = np.concatenate([phases.starts, spans.blocking.starts, waits.starts, since])
    ends = np.concatenate([phases.ends, spans.blocking.ends, waits.ends, until])
    if during is not None:
        touching = np.flatnonzero(touches(starts, ends, during))
        causes, starts, ends = causes[touching], starts[touching], ends[touching]
    pieces = innermost(starts, ends)
    return Activities(causes[pieces.owner], pieces.starts, pieces.ends)


def idle_time(steps: Stretches, kernels: Stretches, known: Activities) -> IdleTime:
    """Return when the device (``kernels``: its work) was idle in ``steps``, and what the host did (``known``)."""
    gaps = clip(steps.starts, steps.ends, difference(_span_of(steps), kernels))
    edges = in_order(np.concatenate([gaps.starts, gaps.ends, known.starts, known.ends]))
    cut = clip(gaps.starts, gaps.ends, Stretches(edges[:-1], edges[1:]))
    place = np.searchsorted(known.starts, cut.starts, side="right") - 1
    inside = (place >= 0) & (cut.starts < known.ends[np.maximum(place, 0)] if len(known.ends) else False)
    causes = np.full(len(cut.starts), PYTHON)
    causes[inside] = known.causes[place[inside]]
    return IdleTime(gaps.owner[cut.owner], cut.owner, causes, cut.starts, cut.ends)


def _span_of(steps: Stretches) -> Stretches:
    return Stretches(steps.starts[:1], steps.ends[-1:])


def idle_per_step(steps: Stretches, spans: RunSpans, waits: BatchWaits, stages: StageSpans) -> Int:
    """Return idle nanoseconds by step and cause, (steps, causes): the sums of :func:`idle_time`, computed in parts."""

    def idle_in(part: Stretches) -> Int:
        since, until = int(part.starts[0]), int(part.ends[-1])
        near = spans.between(since, until)
        idle = clip(part.starts, part.ends, difference(_span_of(part), busy(near)))
        during = Stretches(idle.starts, idle.ends)
        activity = activities(near, *_batches_between(waits, stages, since, until), during)
        return _by_cause(idle, activity, len(part.starts))

    idle_ns = np.zeros((len(steps.starts), len(CAUSES)), dtype=np.int64)
    done = 0
    for part in in_parts(steps, idle_in):
        idle_ns[done : done + len(part)] = part
        done += len(part)
    return idle_ns


def _batches_between(
    waits: BatchWaits, stages: StageSpans, since_ns: int, until_ns: int
) -> tuple[BatchWaits, StageSpans]:
    """Return waits and stages of the batches from the first to the last awaited between ``since_ns`` and ``until_ns``.

    The returned batches have new numbers, which begin at 0."""
    chosen = np.flatnonzero((waits.ends > since_ns) & (waits.starts < until_ns))
    low, high = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)
    rows = slice(*np.searchsorted(stages.batches, [low, high]).tolist())
    return (
        BatchWaits(waits.rows[low:high], waits.starts[low:high], waits.ends[low:high], waits.reported[low:high]),
        StageSpans(stages.batches[rows] - low, stages.stages[rows], stages.starts[rows], stages.ends[rows]),
    )


def _by_cause(idle: Pieces, known: Activities, rows: int) -> Int:
    """Return the ns of the ``idle`` pieces by step and cause of the host's activity, (rows, causes)."""
    named = clip(idle.starts, idle.ends, Stretches(known.starts, known.ends))
    causes = known.causes[np.searchsorted(known.starts, named.starts, side="right") - 1]
    cells = idle.owner[named.owner] * len(CAUSES) + causes
    idle_ns = per_row(cells, named.ends - named.starts, rows * len(CAUSES)).reshape(rows, len(CAUSES))
    idle_ns[:, PYTHON] += per_row(idle.owner, idle.ends - idle.starts, rows) - idle_ns.sum(axis=1)
    return idle_ns


def slack_at_fetches(
    waits: BatchWaits, kernel_ends: Int, launch_starts: Int, rows: int
) -> tuple[Int, NDArray[np.bool_]]:
    """Return the device work (ns) queued at each step's first fetch, and True where the step fetched."""
    slack, fetched = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    inside = np.flatnonzero(waits.rows >= 0)
    first = inside[np.unique(waits.rows[inside], return_index=True)[1]]
    slack[waits.rows[first]] = behind(waits.starts[first], kernel_ends, launch_starts)
    fetched[waits.rows[first]] = True
    return slack, fetched


def behind(moments: Int, kernel_ends: Int, launch_starts: Int) -> Int:
    """Return the remaining device work at each moment, in ns, of all work launched by then; 0 if it was done."""
    free = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(kernel_ends) if len(kernel_ends) else kernel_ends)
    queued = np.searchsorted(np.maximum.accumulate(launch_starts), moments, side="right")
    remaining: Int = np.maximum(free[queued], moments) - moments
    return remaining


def busy(spans: RunSpans) -> Stretches:
    """Return the time in which the device worked."""
    return union(spans.kernels.starts, spans.kernels.ends)
