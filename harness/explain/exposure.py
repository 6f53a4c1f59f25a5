"""Places the stages of each batch: in the wait for it, in the wait for another batch, behind compute, between steps.

The main thread waits for batch b during [w0, w1). The builder of b (a loader worker, or the main thread itself)
recorded when it read, tokenized and packed *that very batch*, on the same clock. Then, per stage:

    worker:      |--read--|-------tokenize--------|-pack-|
    main thread: ===|           |================= wait ==|
               parallel | outside  | during the wait           (the rest of the wait: transfer)

during    stage time within the wait for its batch; what no stage covers is *transfer*: the request, the hand-over
          between processes, unpickling. Transfer outside of the wait leaves no trace
parallel  stage time within waits for other batches
outside   stage time within training steps that did not wait
between   stage time between training steps (beside an evaluation): neither within a wait nor behind training

This is a picture, not a cause: a wait ends when a chain of work ends, also work that was over when it began. What each
stage made the step wait (exposed) is the business of ``replay.exposed``. Where spans overlap, the time belongs to the
one that started last (the innermost, if they nest), so nothing is counted twice. Everything is in integer nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import SPANS_AT_ONCE, Int, Stretches, covered, innermost, intersection
from harness.study.contract import STAGES

TRANSFER = STAGES.index("transfer")


class BatchWaits(NamedTuple):
    """One wait a batch, by the batch's number; all (batches,)."""

    rows: Int  # of the steps table; -1: in no finished step
    starts: Int
    ends: Int
    reported: NDArray[np.bool_]  # whether its builder recorded what it did; else the stages of its row are unknown


class StageSpans(NamedTuple):
    """Stages of batches without overlaps within a batch; all (spans,)."""

    batches: Int
    stages: Int  # index into STAGES
    starts: Int
    ends: Int


def without_overlaps(spans: StageSpans) -> StageSpans:
    """The same time, in the order of batches and within a batch of time; each moment of a batch has one stage."""
    kept = spans.ends > spans.starts
    if not kept.all():
        spans = StageSpans(*(column[kept] for column in spans))
    order = np.lexsort((spans.starts, spans.batches))
    spans = StageSpans(*(column[order] for column in spans))
    same = spans.batches[1:] == spans.batches[:-1]
    overlapping = np.unique(spans.batches[1:][same & (spans.starts[1:] < spans.ends[:-1])])
    if not overlapping.size:
        return spans
    mended = [StageSpans(*(column[~np.isin(spans.batches, overlapping)] for column in spans))]
    for batch in overlapping:  # few: stages follow one another unless a recorder nests them
        own = StageSpans(*(column[spans.batches == batch] for column in spans))
        pieces = innermost(own.starts, own.ends)
        mended.append(StageSpans(own.batches[pieces.owner], own.stages[pieces.owner], pieces.starts, pieces.ends))
    joined = StageSpans(*(np.concatenate(columns) for columns in zip(*mended, strict=True)))
    order = np.lexsort((joined.starts, joined.batches))
    return StageSpans(*(column[order] for column in joined))


def of_known_batches(spans: StageSpans, waits: BatchWaits) -> StageSpans:
    """Those of batches that have a place in ``waits``. ``spans`` in the order of batches; no column is copied."""
    count = np.searchsorted(spans.batches, len(waits.rows))
    return StageSpans(*(column[:count] for column in spans))


class StageTimes(NamedTuple):
    """Nanoseconds per step and stage, each (rows, stages); several waits of a step add up."""

    work: Int  # of all spans of the step's batches; of transfer only what is within the waits
    during: Int
    parallel: Int
    outside: Int
    between: Int


def stage_times(
    waits: BatchWaits, spans: StageSpans, counted: Stretches, open_steps: Stretches, rows: int
) -> StageTimes:
    """Where the stages of each step's batches ran.

    ``spans``: see :func:`without_overlaps`; those of batches that were never waited for are left out. ``counted``: the
    waits that count as such, for ``parallel`` and ``outside``; beside an asynchronous device only while it is idle.
    ``open_steps``: when a step was open in which training went on, be it of warm-up.
    Raises ValueError where a wait ends before it starts.
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
        own = covered(starts, np.maximum(starts, ends), counted)
        cells = waits.rows[part.batches], part.stages
        np.add.at(work, cells, part.ends - part.starts)
        np.add.at(during, cells, inside)
        np.add.at(behind, cells, waited - own)
        np.add.at(outside, cells, opened - waited)
        np.add.at(between, cells, part.ends - part.starts - opened)
    behind[:, TRANSFER] = outside[:, TRANSFER] = between[:, TRANSFER] = 0
    during[:, TRANSFER] += per_row(waits.rows, waits.ends - waits.starts, rows) - during.sum(axis=1)
    work[:, TRANSFER] = during[:, TRANSFER]
    return StageTimes(work, during, behind, outside, between)


def per_row(rows: Int, values: Int, count: int) -> Int:
    """Sums of ``values`` by row, (count,); what has no row (-1) is left out."""
    kept = rows >= 0
    # Sums of nanoseconds stay exact in float64: a row has less than 2^53 of them (a hundred days).
    return np.bincount(rows[kept], weights=values[kept], minlength=count).astype(np.int64)


def per_row_and_stage(rows: Int, stages: Int, values: Int, count: int) -> Int:
    """Sums of ``values`` by row and stage, (count, stages)."""
    found = np.zeros(count * len(STAGES), dtype=np.int64)
    for first in range(0, len(rows), SPANS_AT_ONCE):
        part = slice(first, first + SPANS_AT_ONCE)
        flat = np.where(rows[part] >= 0, rows[part] * len(STAGES) + stages[part], -1)
        found += per_row(flat, values[part], len(found))
    return found.reshape(count, len(STAGES))
