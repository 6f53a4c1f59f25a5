"""Puts the ledger on the timeline: steps, phases, worker stages and the device, and every wait with its cause.

On an asynchronous device a wait means that the device had nothing queued. Otherwise the main thread waits in its fetch.
The cause of a moment is decided as in the ledger (``harness.explain.waits``), so that the marks of a step add up to
the columns of its row (``starved_*``, and ``during_wait_*`` without such a device).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from harness.explain.derived import stage_spans, waits_of
from harness.explain.spans import COLUMNS, RunSpans, bounds, read_spans
from harness.explain.waits import BatchWaits, StageSpans, activities, busy, idle_time
from harness.show.timeline.model import Arrow, Process, Slice
from harness.show.timeline.windows import ShownSpan, ShownStep, Window
from harness.study.contract import CAUSES, RECEIVE, SAMPLER, SPAN_COLUMNS, STAGES, STEP_COLUMNS, arrow_schema
from trainer.json_types import Json

MAIN, DEVICE = "main", "device"
StepArgument = Literal["turn", "warmup", "tokens", "trained_tokens", "samples"]
STEP_ARGS: tuple[StepArgument, ...] = get_args(StepArgument)


def ledger(window: Window) -> tuple[dict[str, Process], list[Arrow]]:
    """Return the processes of one run by role (main, loader-K, device, ...), and arrows from batches to their use."""
    processes = {MAIN: Process(f"{window.name}: {MAIN}")}
    main = processes[MAIN].thread("main thread")
    main.slices += [_step(row) for row in window.steps]
    for role in sorted({_role(row) for row in window.spans} - {MAIN, "launch"}, key=_order):
        what = str(window.run.record.facts.device or role) if role == DEVICE else role  # says if it is emulated
        processes[role] = Process(f"{window.name}: {what}")
    numbers: dict[tuple[str, int], int] = {}  # every thread of a role gets a number; the main thread's is 0
    for index, row in enumerate(window.spans):
        role = _role(row)
        if role == "launch":
            continue  # launches of device work: the phase around them shows that
        tid = numbers.setdefault((role, row["tid"]), sum(known == role for known, _ in numbers))
        title = "main thread" if role == MAIN else "ledger" if role == DEVICE else role
        thread = processes[role].thread(title if tid == 0 else f"{title} {tid}")
        args = {"batch": row["batch"]} if row["batch"] is not None and row["batch"] >= 0 else None
        one = Slice(_name(row), row["start_ns"], row["end_ns"], _category(row), args, _key(window, index))
        thread.slices.append(one)
    _add_waits(window, processes)
    return processes, list(_arrows(window))


def _arrows(window: Window) -> Iterator[Arrow]:
    """Draw an arrow from the last stage of each batch in its worker to the phase after its fetch, its first use."""
    last_stage: dict[int | None, tuple[int, int]] = {}  # batch: end and index
    phases = []
    for index, row in enumerate(window.spans):
        if row["role"].startswith("loader-"):
            last_stage[row["batch"]] = max((row["end_ns"], index), last_stage.get(row["batch"], (0, 0)))
        elif row["role"] == MAIN and row["name"] not in STAGES:
            phases.append((row["start_ns"], index))
    phases.sort()
    for start_ns, index in phases:
        row = window.spans[index]
        if row["name"] != "fetch" or row["batch"] not in last_stage:
            continue
        following = bisect_left(phases, (max(row["end_ns"], start_ns + 1), -1))
        user = phases[following][1] if following < len(phases) else index
        if window.spans[user]["name"] == "fetch":
            user = index  # no phase used it
        yield Arrow("batch", _key(window, last_stage[row["batch"]][1]), _key(window, user), "end")


def _key(window: Window, index: int) -> tuple[str, int, int]:
    return window.name, window.run.record.block, index


def _add_waits(window: Window, processes: dict[str, Process]) -> None:
    found = waits(window.steps, window.spans)
    if not found:
        return
    if DEVICE in processes:
        processes[DEVICE].thread("device idle").slices += found
    else:
        processes[MAIN].thread("waiting for data").slices += found


def _order(role: str) -> tuple[bool, int, str]:
    return role == DEVICE, len(role), role  # loader-2 before loader-10, the device after the workers


def _role(row: ShownSpan) -> str:
    # A call that blocked the main thread, the unpacking of a batch, and a sampler's work lie in a phase.
    return MAIN if row["role"] in ("sync", RECEIVE, SAMPLER) else str(row["role"])


def _name(row: ShownSpan) -> str:
    return f"blocked at {row['name']}" if row["role"] == "sync" else str(row["name"])


def _category(row: ShownSpan) -> str:
    if row["name"] in STAGES:
        return "stage"
    return {"main": "phase", "sync": "blocked", "device": "device"}.get(row["role"], "stage")


def _step(row: ShownStep) -> Slice:
    args: dict[str, Json] = {name: row[name] for name in STEP_ARGS if row[name] is not None}
    if row["loss"] is not None:
        args["loss"] = row["loss"] if math.isfinite(row["loss"]) else str(row["loss"])  # JSON has no NaN
    return Slice(f"step {row['step']}", row["start_ns"], row["start_ns"] + row["wall_ns"], "step", args)


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
