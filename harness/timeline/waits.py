"""Marks every interval in which the device or the main thread was idle, with its cause.

On an asynchronous device the mark shows that the device had nothing queued. Otherwise it shows the main thread waiting
in its fetch. The cause of a moment is decided as in the ledger (``analysis.device``), so that the marks
of a step add up to the columns of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.device import Activity, Fetch, by_cause, idle
from harness.study.store import STAGES
from harness.timeline.model import Slice
from trainer.telemetry import StageSpan

TimelineRow = dict[str, Any]
UNKNOWN = "unknown"  # the batch's builder recorded no stages


def waits(steps: Sequence[TimelineRow], spans: Sequence[TimelineRow]) -> list[Slice]:
    """Return one slice per interval, named by its largest cause; several causes are shown as slices inside."""
    fetches = _fetches(steps, spans)
    bounds = [(row["start_ns"], row["start_ns"] + row["wall_ns"]) for row in steps]
    kernels = [(row["start_ns"], row["end_ns"]) for row in spans if row["role"] == "device"]
    if not kernels:
        return [
            mark
            for fetch in fetches
            if fetch.end_ns > fetch.start_ns
            for mark in _marks(
                "waits", "waits", fetch.start_ns, fetch.end_ns, list(by_cause([], [fetch])), fetch.stages
            )
        ]
    causes = list(by_cause(_phases(spans), fetches))
    return [
        mark
        for since, until, pieces in _within(causes, [(since, until) for _, since, until in idle(bounds, kernels)])
        for mark in _marks("idle", "starved", since, until, pieces, ())
    ]


def _phases(spans: Sequence[TimelineRow]) -> list[StageSpan]:
    """Return the main thread's phases except fetch. A blocking call counts as sync."""
    phases = [row for row in spans if row["role"] == "main" and row["name"] not in (*STAGES, "fetch")]
    blocked = [{**row, "name": "sync"} for row in spans if row["role"] == "sync"]
    return [StageSpan(row["name"], row["start_ns"], row["end_ns"]) for row in (*phases, *blocked)]


def _fetches(steps: Sequence[TimelineRow], spans: Sequence[TimelineRow]) -> list[Fetch]:
    """Return the waits for a batch in the shown steps. ``stages`` is None where the ledger did not know them."""
    stages: dict[int, list[StageSpan]] = {}
    for row in spans:
        if row["name"] in STAGES and (row["role"] == "main" or row["role"].startswith("loader-")):
            stages.setdefault(row["batch"], []).append(StageSpan(row["name"], row["start_ns"], row["end_ns"]))
    waited = [row for row in spans if row["role"] == "main" and row["name"] == "fetch"]
    found = []
    index = 0
    for fetch in sorted(waited, key=lambda row: row["start_ns"]):
        while index < len(steps) and steps[index]["start_ns"] + steps[index]["wall_ns"] <= fetch["start_ns"]:
            index += 1
        if index == len(steps) or fetch["start_ns"] < steps[index]["start_ns"]:
            continue  # in a step that is not shown
        known = steps[index]["exposed_transfer_ns"] is not None
        told = stages.get(fetch["batch"], []) if known else None
        found.append(Fetch(index, fetch["start_ns"], fetch["end_ns"], told))
    return found


def _within(
    causes: Sequence[Activity], stretches: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, list[Activity]]]:
    """Return every interval with the host's activities in it; time without a name counts as python."""
    following = 0
    for since, until in stretches:
        while following < len(causes) and causes[following].end_ns <= since:
            following += 1
        pieces, clock = [], since
        for activity in causes[following:]:
            if activity.start_ns >= until:
                break
            begin, end = max(since, activity.start_ns), min(until, activity.end_ns)
            pieces += [Activity("python", clock, begin)] if begin > clock else []
            pieces.append(Activity(activity.cause, begin, end))
            clock = end
        pieces += [Activity("python", clock, until)] if clock < until else []
        yield since, until, pieces


def _marks(
    what: str, category: str, since: int, until: int, pieces: Sequence[Activity], stages: Sequence[Any] | None
) -> Iterator[Slice]:
    total: dict[str, int] = {}
    for piece in pieces:
        total[piece.cause] = total.get(piece.cause, 0) + piece.end_ns - piece.start_ns
    if stages is None:
        total, pieces = {UNKNOWN: until - since}, ()
    largest = max(total, key=lambda cause: total[cause])
    milliseconds = {f"{cause}_ms": round(value / 1e6, 6) for cause, value in total.items()}
    yield Slice(f"{what}: {largest}", since, until, category, {"cause": largest, **milliseconds})
    if len(total) > 1:
        for piece in pieces:
            yield Slice(piece.cause, piece.start_ns, piece.end_ns, category)
