"""The ledger of an asynchronous device: per step busy, starved and by what, and how far ahead the host was.

    host:    |fetch: read|tokenize|pack|launch ...........|====== blocked: gradient norm ======|launch|fetch ...
    device:  ====optimizer====|         |h2d|=== forward ===|======= backward =======|norm|...|==optimizer==...
                              ^ starved ^ by what the host did at that moment: the rest of tokenize, pack, launching

A device is starved while it has nothing queued. On such a device a wait of the host costs nothing by itself: what the
step really waited for (exposed) is the starvation during the fetch. Everything is in integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.analysis.exposure import Span, disjoint
from harness.study.store import CAUSES, STAGES

# What a span of the host's main thread means to a device that has nothing to do; any other: python.
CAUSE_OF = {"sync": "sync", "log": "log", "checkpoint": "checkpoint"}


class Fetch(NamedTuple):
    """The host's wait [start_ns, end_ns) for one batch in row ``row`` of steps, and the stages of that very batch."""

    row: int
    start_ns: int
    end_ns: int
    stages: Sequence[Span] | None  # None: nobody told


class Activity(NamedTuple):
    """What the host's main thread did during [start_ns, end_ns): one of CAUSES."""

    cause: str
    start_ns: int
    end_ns: int


def device_columns(
    steps: Sequence[tuple[int, int]],
    kernels: Sequence[tuple[int, int]],
    launches: Sequence[tuple[int, int]],
    phases: Iterable[Span],
    fetches: Sequence[Fetch],
) -> dict[str, list[int | None]]:
    """The steps table's columns device_busy/starved/slack_ns, starved_<cause>_ns, exposed_ and hidden_<stage>_ns.

    ``steps``: [start, end) of every row, in order. ``kernels`` and ``launches``: when the device did each piece of work
    and when the host queued it, in the order of the queue. ``phases``: what the main thread did, besides its fetches.
    Busy and starved sum to the step's wall time, the causes to starved. A row with a fetch of unknown stages has null
    for every stage.
    """
    columns: dict[str, list[int | None]] = {
        name: [0] * len(steps)
        for name in ("device_busy_ns", "device_starved_ns", *(f"starved_{cause}_ns" for cause in CAUSES))
    }
    causes = list(by_cause(phases, fetches))
    following = 0
    for row, since, until in idle(steps, kernels):
        add(columns["device_starved_ns"], row, until - since)
        while following < len(causes) and causes[following].end_ns <= since:
            following += 1
        named = 0
        for activity in causes[following:]:
            if activity.start_ns >= until:
                break
            overlap = min(until, activity.end_ns) - max(since, activity.start_ns)
            add(columns[f"starved_{activity.cause}_ns"], row, overlap)
            named += overlap
        add(columns["starved_python_ns"], row, until - since - named)
    for row, (start, end) in enumerate(steps):
        columns["device_busy_ns"][row] = end - start - (columns["device_starved_ns"][row] or 0)
    columns["device_slack_ns"] = _slack(len(steps), kernels, launches, fetches)
    columns.update(_exposure(columns, fetches, len(steps)))
    return columns


def add(column: list[int | None], row: int, value: int) -> None:
    column[row] = (column[row] or 0) + value


def idle(steps: Sequence[tuple[int, int]], kernels: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(row, start, end) of every stretch of a step in which the device did nothing."""
    following = 0
    for row, (start, end) in enumerate(steps):
        free = start
        while following < len(kernels) and kernels[following][0] < end:
            begin, done = kernels[following]
            if begin > free:
                yield row, free, begin
            free = max(free, done)
            if done > end:
                break  # it goes on in the next step
            following += 1
        if free < end:
            yield row, free, end


def by_cause(phases: Iterable[Span], fetches: Sequence[Fetch]) -> Iterator[Activity]:
    """The main thread's time without overlaps, in order; the innermost span counts."""
    found: list[Activity] = []
    for fetch in fetches:
        clock = fetch.start_ns
        for name, since, until in disjoint(fetch.stages or (), STAGES):
            since, until = max(since, clock), min(until, fetch.end_ns)
            if until <= since:
                continue
            if since > clock:
                found.append(Activity("transfer", clock, since))
            found.append(Activity(name, since, until))
            clock = until
        if clock < fetch.end_ns:
            found.append(Activity("transfer", clock, fetch.end_ns))
    others = [span for span in phases if span.name != "fetch"]
    names = {span.name for span in others}
    found += [Activity(CAUSE_OF.get(name, "python"), since, until) for name, since, until in disjoint(others, names)]
    found.sort(key=lambda activity: activity.start_ns)
    for one, following in pairwise(found):
        assert one.end_ns <= following.start_ns, "phases of one thread do not overlap"
    yield from found


def _slack(
    rows: int, kernels: Sequence[tuple[int, int]], launches: Sequence[tuple[int, int]], fetches: Sequence[Fetch]
) -> list[int | None]:
    """Work that lay queued when the host began the first fetch of each row."""
    slack: list[int | None] = [None] * rows
    queued = free = 0
    for fetch in fetches:
        while queued < len(launches) and launches[queued][0] <= fetch.start_ns:
            free = max(free, kernels[queued][1])
            queued += 1
        if slack[fetch.row] is None:
            slack[fetch.row] = max(0, free - fetch.start_ns)
    return slack


def _exposure(
    columns: Mapping[str, list[int | None]], fetches: Sequence[Fetch], rows: int
) -> dict[str, list[int | None]]:
    """Exposed: the device starved by that stage. Hidden: the rest of that stage's time for the batches received."""
    work: dict[str, list[int | None]] = {stage: [0] * rows for stage in STAGES}
    unknown: set[int] = set()
    for fetch in fetches:
        if fetch.stages is None:
            unknown.add(fetch.row)
        for name, since, until in disjoint(fetch.stages or (), STAGES):
            add(work[name], fetch.row, until - since)
    exposed = {f"exposed_{stage}_ns": list(columns[f"starved_{stage}_ns"]) for stage in STAGES}
    hidden: dict[str, list[int | None]] = {
        f"hidden_{stage}_ns": [
            max(0, (total or 0) - (out or 0))
            for total, out in zip(work[stage], columns[f"starved_{stage}_ns"], strict=True)
        ]
        for stage in STAGES
    }
    for row in unknown:
        for column in (*exposed.values(), *hidden.values()):
            column[row] = None
    return {**exposed, **hidden}
