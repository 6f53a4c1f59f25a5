"""Read the last batches from a recorder's events, from the end, while a run warms up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.probes.ledger.rows import ENTER, EXIT, PAUSE, RECEIVED, STEP, UNPACKED
from trainer.telemetry import BatchTrace


class BatchMoments(NamedTuple):
    """Times of a batch in ns: begun and ready (None: its builder recorded nothing), received, and start of its fetch.

    ``awaited``: True if its message arrived within that fetch.
    """

    began: int | None
    ready: int | None
    received: int
    taken: int
    awaited: bool


class RecentBatches(NamedTuple):
    """Batches in order of receipt, and the loop's pauses among them: (end of a step, start of the next)."""

    batches: Sequence[BatchMoments]
    pauses: Sequence[tuple[int, int]]


def recent_batches(events: Sequence[tuple[Any, ...]], count: int) -> RecentBatches:
    """Return the last ``count`` batches, or all if fewer, in ``events`` (``probes.ledger.rows``)."""
    batches: list[BatchMoments] = []
    pauses: dict[int, int] = {}  # keyed by the time the loop resumed; of two ends of one step, the first counts
    resumed_ns: int | None = None
    trace: BatchTrace | None = None
    ended_ns, arrived_ns = 0, -1
    for event in reversed(events):
        kind = event[0]
        if kind == RECEIVED:
            trace, arrived_ns = event[1], -1
        elif kind == UNPACKED and event[3]:
            arrived_ns = event[1]
        elif kind == EXIT and event[1] == "fetch":
            ended_ns = event[2]
        elif kind == ENTER and event[1] == "fetch":
            spans = () if trace is None else trace.spans
            began, ready = (
                min((span[1] for span in spans), default=None),
                max((span[2] for span in spans), default=None),
            )
            batches.append(BatchMoments(began, ready, ended_ns, event[2], arrived_ns >= event[2]))
            if len(batches) == count:
                break
        elif kind == STEP:
            resumed_ns = event[1]
        elif kind == PAUSE and resumed_ns is not None:
            pauses[resumed_ns] = event[1]
    return RecentBatches(batches[::-1], [(since, until) for until, since in pauses.items()])
