"""Splits each fetch wait into the stages it really waited for, by intersection with that batch's own spans.

The main thread waits for batch b during [w0, w1). Whoever built b (a loader worker, or the main thread itself)
recorded when it read, tokenized and packed *that very batch*, on the same clock. Then, per stage:

    worker:      |--read--|----tokenize----|-pack-|
    main thread:                 |========= wait ==========|
                          hidden | exposed tokenize | exposed pack | exposed transfer

exposed = stage time inside the wait; hidden = stage time outside it; what no stage covers of the wait is
*transfer*: the request, the hand-over between processes, unpickling. Everything is in integer nanoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from harness.study.store import STAGES


class Span(Protocol):
    """A stage of one batch (``trainer.telemetry.StageSpan`` is one); times are CLOCK_MONOTONIC nanoseconds."""

    @property
    def name(self) -> str: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def end_ns(self) -> int: ...


def split_wait(wait: tuple[int, int], spans: Iterable[Span]) -> dict[str, int]:
    """Exposed nanoseconds per stage of one wait [w0, w1); the values sum to w1 - w0 exactly.

    Where spans overlap, the time belongs to the one that started last (the innermost, if they nest), so nothing is
    counted twice. Spans of other names than the contract's stages count as transfer.
    """
    start, end = wait
    if end < start:
        raise ValueError(f"a wait cannot end ({end}) before it starts ({start})")
    exposed = dict.fromkeys(STAGES, 0)
    for name, since, until in disjoint(spans, STAGES):
        exposed[name] += max(0, min(until, end) - max(since, start))
    exposed["transfer"] += (end - start) - sum(exposed.values())
    return exposed


def hidden(wait: tuple[int, int], spans: Iterable[Span]) -> dict[str, int]:
    """Nanoseconds per stage that ran outside the wait [w0, w1): 0 everywhere for a loader that works inline.

    Transfer is 0 here: a hand-over that was over before the wait began leaves no span, and how much of the time between
    the last stage and the wait was hand-over rather than a finished batch lying in a queue cannot be observed.
    """
    start, end = wait
    outside = dict.fromkeys(STAGES, 0)
    for name, since, until in disjoint(spans, STAGES):
        outside[name] += (until - since) - max(0, min(until, end) - max(since, start))
    outside["transfer"] = 0
    return outside


def attribute(
    waits: Iterable[tuple[int, int, int, int]], spans_by_batch: Mapping[int, Sequence[Span]], steps: int
) -> dict[str, list[int | None]]:
    """The columns ``exposed_<stage>_ns`` and ``hidden_<stage>_ns`` for ``steps`` rows.

    ``waits`` are (row, w0, w1, batch), any number per row (micro-batches add up). A row with a batch that is missing
    from ``spans_by_batch`` is null in every column: nobody told what its builder did, and null says "not measured".
    A batch that is there with no spans (replayed, say) was all transfer. A row without waits is 0.
    """
    columns: dict[str, list[int | None]] = {
        f"{kind}_{stage}_ns": [0] * steps for kind in ("exposed", "hidden") for stage in STAGES
    }
    unknown: set[int] = set()
    for row, start, end, batch in waits:
        spans = spans_by_batch.get(batch)
        if spans is None:
            unknown.add(row)
            continue
        for kind, parts in (("exposed", split_wait((start, end), spans)), ("hidden", hidden((start, end), spans))):
            for stage, duration in parts.items():
                column = columns[f"{kind}_{stage}_ns"]
                column[row] = (column[row] or 0) + duration
    for row in unknown:
        for column in columns.values():
            column[row] = None
    return columns


def disjoint(spans: Iterable[Span], names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    """The spans with one of ``names`` as (name, start, end) in order and without overlaps: the last started wins."""
    ordered = sorted(
        ((s.start_ns, s.end_ns, s.name) for s in spans if s.name in names and s.end_ns > s.start_ns),
        key=lambda span: span[0],
    )
    points = sorted({edge for start, end, _ in ordered for edge in (start, end)})
    active: list[tuple[int, int, int, str]] = []  # a heap: latest start first, then latest in the order given
    following = 0
    for since, until in pairwise(points):
        while following < len(ordered) and ordered[following][0] <= since:
            start, end, name = ordered[following]
            heapq.heappush(active, (-start, -following, end, name))
            following += 1
        while active and active[0][2] <= since:
            heapq.heappop(active)
        if active:
            yield active[0][3], since, until
