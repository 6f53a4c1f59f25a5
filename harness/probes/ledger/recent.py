"""Read the last batches from a recorder's events, from the end, while a run warms up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.probes.ledger.rows import ENTER, EXIT, PAUSE, RECEIVED, STEP, UNPACKED
from trainer.telemetry import BatchTrace


class BatchMoments(NamedTuple):
    """Times of one batch in ns (CLOCK_MONOTONIC), made by :func:`recent_batches`.

    ``began`` and ``ready``: start and end of its making; None if its maker recorded no stages.
    ``received`` and ``taken``: end and start of the fetch in which the loop received it.
    ``awaited``: True if its message arrived within that fetch.
    """

    began: int | None
    ready: int | None
    received: int
    taken: int
    awaited: bool


class RecentBatches(NamedTuple):
    """The last batches of a run in order of receipt, and the loop's pauses among them, latest first.

    A pause is (end of a step, start of the next step) in ns.
    """

    batches: Sequence[BatchMoments]
    pauses: Sequence[tuple[int, int]]


def recent_batches(events: Sequence[tuple[Any, ...]], count: int) -> RecentBatches:
    """Return the last ``count`` received batches (or all if fewer) and the pauses among them.

    ``events``: those of a recorder, in the form of ``probes.ledger.rows``.
    """
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
