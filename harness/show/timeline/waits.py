"""Marks every interval in which the device or the main thread was idle, with its cause.

On an asynchronous device the mark shows that the device had nothing queued. Otherwise it shows the main thread waiting
in its fetch. The cause of a moment is decided as in the ledger (``analysis.device``), so that the marks
of a step add up to the columns of its row (``starved_*``, and ``during_wait_*`` without such a device).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from harness.explain.derived import stage_spans, waits_of
from harness.explain.spans import COLUMNS, RunSpans, bounds, read_spans
from harness.explain.waits import BatchWaits, StageSpans, activities, busy, idle_time
from harness.show.timeline.model import Slice
from harness.show.timeline.windows import ShownSpan, ShownStep
from harness.study.contract import CAUSES, SPAN_COLUMNS, STEP_COLUMNS, arrow_schema

UNKNOWN = "unknown"  # the batch's builder recorded nothing


class Piece(NamedTuple):
    """Part of a stretch with one cause."""

    cause: str
    start_ns: int
    end_ns: int


def waits(steps: Sequence[ShownStep], spans: Sequence[ShownSpan]) -> list[Slice]:
    """The marks: one slice a stretch, named by its largest cause, with a slice a cause inside where it had several."""
    if not steps:
        return []
    import pyarrow as pa

    step_table = pa.Table.from_pylist(list(steps), schema=arrow_schema(STEP_COLUMNS))
    span_table = pa.Table.from_pylist(list(spans), schema=arrow_schema(SPAN_COLUMNS))
    found = read_spans(span_table.select(COLUMNS).to_batches())
    waited = waits_of(step_table, found)
    stages = stage_spans(found)
    if len(found.kernels):
        none = np.zeros(0, dtype=np.int64)
        known = activities(found, waited or BatchWaits(none, none, none, none.astype(np.bool_)), stages)
        idle = idle_time(bounds(step_table), busy(found), known)
        rows = zip(idle.stretches.tolist(), *_named(idle.causes, idle.starts, idle.ends), strict=True)
        return [mark for pieces in _grouped(rows) for mark in _marks("idle", "starved", pieces, known=True)]
    if waited is None:
        return []
    return list(_fetches(found, waited, stages))


def _fetches(spans: RunSpans, waited: BatchWaits, stages: StageSpans) -> Iterator[Slice]:
    """The waits for a batch in the shown steps."""
    shown = np.flatnonzero((waited.rows >= 0) & (waited.ends > waited.starts))
    shown = shown[np.argsort(waited.starts[shown])]
    nothing = spans.phases.where(slice(0, 0))
    known = activities(replace(spans, phases=nothing, blocking=nothing), waited, stages)
    place = np.searchsorted(waited.starts[shown], known.starts, side="right") - 1
    inside = (place >= 0) & (known.starts < waited.ends[shown[np.maximum(place, 0)]] if len(shown) else False)
    rows = zip(
        place[inside].tolist(),
        *_named(known.causes[inside], known.starts[inside], known.ends[inside]),
        strict=True,
    )
    reported = waited.reported[shown]
    for number, group in groupby(rows, key=itemgetter(0)):
        pieces = [Piece(*row[1:]) for row in group]
        yield from _marks("waits", "waits", pieces, known=bool(reported[number]))


def _named(causes: Any, starts: Any, ends: Any) -> tuple[list[str], list[int], list[int]]:
    return [CAUSES[cause] for cause in causes.tolist()], starts.tolist(), ends.tolist()


def _grouped(rows: Any) -> Iterator[list[Piece]]:
    """The pieces of each stretch; neighbours of one cause are one piece."""
    for _, group in groupby(rows, key=itemgetter(0)):
        pieces: list[Piece] = []
        for _, cause, start, end in group:
            if pieces and pieces[-1].cause == cause and pieces[-1].end_ns == start:
                pieces[-1] = pieces[-1]._replace(end_ns=end)
            else:
                pieces.append(Piece(cause, start, end))
        yield pieces


def _marks(title: str, category: str, pieces: Sequence[Piece], *, known: bool) -> Iterator[Slice]:
    since, until = pieces[0].start_ns, pieces[-1].end_ns
    total: dict[str, int] = {}
    for piece in pieces:
        total[piece.cause] = total.get(piece.cause, 0) + piece.end_ns - piece.start_ns
    if not known:
        total, pieces = {UNKNOWN: until - since}, ()
    largest = max(total, key=lambda cause: total[cause])
    milliseconds = {f"{cause}_ms": round(value / 1e6, 6) for cause, value in total.items()}
    yield Slice(f"{title}: {largest}", since, until, category, {"cause": largest, **milliseconds})
    if len(total) > 1:
        for piece in pieces:
            yield Slice(piece.cause, piece.start_ns, piece.end_ns, category)
