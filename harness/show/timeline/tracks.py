"""Puts the ledger on the timeline: steps, phases, worker stages and the device, and every wait with its cause.

On an asynchronous device a wait means that the device had nothing queued, else that the main thread waits in its fetch.
Causes are those of the ledger (``harness.explain.waits``), so the marks of a step add up to the columns of its row
(``starved_*``, and ``during_wait_*`` without such a device).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from harness.explain.derived import stage_spans, waits_of
from harness.explain.policy import BATCHES_AHEAD_MAX
from harness.explain.spans import COLUMNS, RunSpans, bounds, integers, read_spans
from harness.explain.waits import BatchWaits, StageSpans, activities, busy, idle_time
from harness.show.policy import SAMPLE_MARGIN_NS
from harness.show.timeline.model import Arrow, Counter, Process, Range, ShownSpan, ShownStep, Slice, Window
from harness.study.contract import CAUSES, RECEIVE, SAMPLER, SPAN_COLUMNS, STAGES, STEP_COLUMNS, arrow_schema
from harness.study.run_data import RunData
from trainer.json_types import Json

MAIN, DEVICE = "main", "device"
StepArgument = Literal["turn", "warmup", "tokens", "trained_tokens", "samples"]
STEP_ARGS: tuple[StepArgument, ...] = get_args(StepArgument)


def ledger(window: Window) -> tuple[dict[str, Process], list[Arrow]]:
    """Return a run's processes by role with their slices, and arrows from workers to the phases that used a batch."""
    processes = {MAIN: Process(f"{window.name}: {MAIN}")}
    main = processes[MAIN].thread("main thread")
    main.slices += [_step(row) for row in window.steps]
    for role in sorted({_role(row) for row in window.spans} - {MAIN, "launch"}, key=_order):
        label = str(window.run.record.facts.device or role) if role == DEVICE else role  # says if it is emulated
        processes[role] = Process(f"{window.name}: {label}")
    numbers: dict[tuple[str, int], int] = {}  # every thread of a role gets a number; the main thread's is 0
    for index, row in enumerate(window.spans):
        role = _role(row)
        if role == "launch":
            continue  # launches of device work: the phase around them shows that
        tid = numbers.setdefault((role, row["tid"]), sum(owner == role for owner, _ in numbers))
        title = "main thread" if role == MAIN else "ledger" if role == DEVICE else role
        thread = processes[role].thread(title if tid == 0 else f"{title} {tid}")
        args = {"batch": row["batch"]} if row["batch"] is not None and row["batch"] >= 0 else None
        mark = Slice(_name(row), row["start_ns"], row["end_ns"], _category(row), args, _key(window, index))
        thread.slices.append(mark)
    _add_waits(window, processes)
    return processes, list(_arrows(window))


def _arrows(window: Window) -> Iterator[Arrow]:
    """Yield an arrow per batch, from its last stage in its worker to the phase after its fetch, which uses it first."""
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
    wait_slices = waits(window.steps, window.spans)
    if not wait_slices:
        return
    if DEVICE in processes:
        processes[DEVICE].thread("device idle").slices += wait_slices
    else:
        processes[MAIN].thread("waiting for data").slices += wait_slices


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
    """Part of a wait with a single cause."""

    cause: str
    start_ns: int
    end_ns: int


def waits(steps: Sequence[ShownStep], spans: Sequence[ShownSpan]) -> list[Slice]:
    """Return the device's idle times, else the host's waits for a batch, each with a slice per cause."""
    if not steps:
        return []
    import pyarrow as pa

    step_table = pa.Table.from_pylist(list(steps), schema=arrow_schema(STEP_COLUMNS))
    span_table = pa.Table.from_pylist(list(spans), schema=arrow_schema(SPAN_COLUMNS))
    recorded = read_spans(span_table.select(COLUMNS).to_batches())
    waited = waits_of(step_table, recorded)
    stages = stage_spans(recorded)
    if len(recorded.kernels):
        none = np.zeros(0, dtype=np.int64)
        work = activities(recorded, waited or BatchWaits(none, none, none, none.astype(np.bool_)), stages)
        idle = idle_time(bounds(step_table), busy(recorded), work)
        rows = zip(idle.stretches.tolist(), *_named(idle.causes, idle.starts, idle.ends), strict=True)
        return [mark for pieces in _grouped(rows) for mark in _marks("idle", "starved", pieces, known=True)]
    if waited is None:
        return []
    return list(_fetches(recorded, waited, stages))


def _fetches(spans: RunSpans, waited: BatchWaits, stages: StageSpans) -> Iterator[Slice]:
    """Yield the slices of the main thread's waits for batches in the shown steps, with their causes."""
    shown = np.flatnonzero((waited.rows >= 0) & (waited.ends > waited.starts))
    shown = shown[np.argsort(waited.starts[shown])]
    nothing = spans.phases.where(slice(0, 0))
    work = activities(replace(spans, phases=nothing, blocking=nothing), waited, stages)
    index = np.searchsorted(waited.starts[shown], work.starts, side="right") - 1
    is_inside = (index >= 0) & (work.starts < waited.ends[shown[np.maximum(index, 0)]] if len(shown) else False)
    rows = zip(
        index[is_inside].tolist(),
        *_named(work.causes[is_inside], work.starts[is_inside], work.ends[is_inside]),
        strict=True,
    )
    reported = waited.reported[shown]
    for number, group in groupby(rows, key=itemgetter(0)):
        pieces = [Piece(*row[1:]) for row in group]
        yield from _marks("waits", "waits", pieces, known=bool(reported[number]))


def _named(causes: Any, starts: Any, ends: Any) -> tuple[list[str], list[int], list[int]]:
    return [CAUSES[cause] for cause in causes.tolist()], starts.tolist(), ends.tolist()


def _grouped(rows: Any) -> Iterator[list[Piece]]:
    """Yield the pieces of each wait from ``rows`` (wait, cause, start, end); neighbours of one cause are joined."""
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


# Metrics that count growth since the previous reading, shown per second. Energy is left out: power shows the same.
GROWTH = {
    "run_queue_delay_s", "others_cpu_s", "stolen_cpu_s", "major_faults", "disk_read_bytes",
    "voluntary_switches", "involuntary_switches", "cpu_pressure_s", "io_pressure_s", "memory_pressure_s",
    "cgroup_periods", "cgroup_throttled_periods", "cgroup_throttled_s",
}  # fmt: skip
# Shown by another counter already (cpu_cores, power), or recorded only once per repetition.
LEFT_OUT = {"interval_s", "cpu_s", "energy_j", "own_cpu_cores", "other_cpu_cores", "stolen_cpu_cores"}
OVER_TIME = ("_percent", "_per_s", "cpu_cores")  # means since the previous reading


class CountedSpan(NamedTuple):
    """Start, first measured step and end (ns) of one repetition: a run's steps between two suspensions."""

    since_ns: int
    measured_ns: int
    until_ns: int


def sampled(window: Window) -> Process:
    """Return a process with a counter for each sampled metric (host or device) within the window, sorted by source."""
    process = Process(f"{window.name}: machine")
    repetitions = _repetitions(window.run)
    by_metric = _readings(window, repetitions)
    intervals_s = by_metric.get(("host", "interval_s", "s"), {})
    for (source, metric, unit), readings in sorted(by_metric.items()):
        if metric in LEFT_OUT:
            continue
        name = f"{source} {metric.removesuffix(f'_{unit}')}"  # the unit is shown beside it
        series = sorted(readings.items())
        over_time = metric in GROWTH or metric.endswith(OVER_TIME)
        if metric in GROWTH:
            points = [
                (t_ns - round(1e9 * interval_s), value / interval_s)
                for t_ns, value in series
                if (interval_s := intervals_s.get(t_ns, 0.0)) > 0
            ]
            unit = f"{unit}/s"
        else:
            points = _means(series, repetitions) if over_time else _levels(series, repetitions)
        if points and over_time:
            first, last = points[0][0], points[-1][0]
            points += [
                (repetition.until_ns, 0.0) for repetition in repetitions[:-1] if first < repetition.until_ns < last
            ]  # suspended from here on
            points.sort()
        points = _shown(points, window.extent)
        if points:
            process.counters.append(Counter(name, unit, points))
    return process


def _readings(window: Window, repetitions: Sequence[CountedSpan]) -> dict[tuple[str, str, str], dict[int, float]]:
    """Return {(source, metric, unit): {t_ns: value}} since the start of the window's first repetition."""
    samples = window.run.samples
    if samples is None or not len(samples):
        return {}
    import pyarrow as pa

    since, until = window.extent
    repetition = _repetition_of(since, repetitions)
    times = samples["t_ns"].to_numpy()
    in_range = samples.filter(
        pa.array((times >= (repetition.since_ns if repetition else since)) & (times <= until + SAMPLE_MARGIN_NS))
    )
    columns = (in_range.column(name).to_pylist() for name in ("t_ns", "source", "metric", "unit", "value"))
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    for t_ns, source, metric, unit, value in zip(*columns, strict=True):
        if value is not None and math.isfinite(value):
            values.setdefault((source, metric, unit or "value"), {})[t_ns] = value
    return values


def _repetitions(run: RunData) -> list[CountedSpan]:
    """Return the repetitions of a run in order of time. They are read once per run."""
    return run.once("repetitions on the timeline", lambda: _read_repetitions(run))


def _read_repetitions(run: RunData) -> list[CountedSpan]:
    steps = run.step_columns(["turn", "start_ns", "wall_ns", "warmup"])
    if steps is None or not len(steps):
        return []
    repetitions, starts, walls = (integers(steps, name) for name in ("turn", "start_ns", "wall_ns"))
    measured = steps["warmup"].fill_null(False).to_numpy() == 0
    # A repetition's rows are neighbours.
    _, first, counts = np.unique(repetitions, return_index=True, return_counts=True)
    first_measured = np.minimum.reduceat(np.where(measured, starts, np.iinfo(np.int64).max), np.sort(first))
    order = np.argsort(first)
    first, last = first[order], (first + counts - 1)[order]
    since, until = starts[first], starts[last] + walls[last]
    begun = np.where(first_measured == np.iinfo(np.int64).max, since, first_measured)
    return sorted(CountedSpan(*row) for row in zip(since.tolist(), begun.tolist(), until.tolist(), strict=True))


def _repetition_of(t_ns: int, repetitions: Sequence[CountedSpan]) -> CountedSpan | None:
    """Return the repetition that a reading at ``t_ns`` describes: the last one begun by then. None before the first."""
    index = bisect_right(repetitions, t_ns, key=lambda repetition: repetition.since_ns)
    return repetitions[index - 1] if index else None


def _means(series: Sequence[tuple[int, float]], repetitions: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Move each mean (t_ns, value) to the start of the time that it covers, within its repetition."""
    points = []
    previous: int | None = None
    for t_ns, value in series:
        if repetition := _repetition_of(t_ns, repetitions):
            began = repetition.measured_ns if repetition.measured_ns < t_ns else repetition.since_ns
            previous = began if previous is None else max(previous, began)
        if previous is not None and previous < t_ns:
            points.append((previous, value))
        previous = t_ns
    return points


def _levels(series: Sequence[tuple[int, float]], repetitions: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Return ``series`` with each reading inside its repetition; an only reading moves to its start."""
    points: dict[int, float] = {}
    read = Counts(_repetition_of(t_ns, repetitions) for t_ns, _ in series)
    for t_ns, value in series:
        repetition = _repetition_of(t_ns, repetitions)
        placed_ns = t_ns
        if repetition is not None:
            placed_ns = min(t_ns, repetition.until_ns) if read[repetition] > 1 else repetition.since_ns
        points[placed_ns] = value
    return sorted(points.items())


def _shown(points: Sequence[tuple[int, float]], extent: Range) -> list[tuple[int, float]]:
    """Return the points within ``extent`` (ns). The last value before its start becomes its first point."""
    since, until = extent
    initial = [(since, value) for t_ns, value in points if t_ns <= since]
    return initial[-1:] + [(t_ns, value) for t_ns, value in points if since < t_ns <= until]


def queue_depth(run: RunData, extent: Range) -> Counter | None:
    """Return a counter of the batches that workers finished and the main thread has not fetched; None without any."""
    import pyarrow.compute as pc

    since, until = extent
    is_fetch = (pc.field("role") == "main") & (pc.field("name") == "fetch")
    shown = run.spans_where(is_fetch & (pc.field("end_ns") > since) & (pc.field("start_ns") < until))
    if shown is None or not len(shown):
        return None
    # Batches before the first one shown were received before it; so far ahead no loader works.
    batches = [batch for batch in shown["batch"].to_pylist() if batch is not None]
    first, last = min(batches), max(batches) + BATCHES_AHEAD_MAX
    near = (pc.field("batch") >= first) & (pc.field("batch") <= last)
    stages = run.spans_where(near & pc.starts_with(pc.field("role"), "loader-"))
    fetches = run.spans_where(near & is_fetch)
    if stages is None or fetches is None or not len(stages):
        return None
    ready: dict[int, int] = {}
    for batch, end_ns in zip(stages["batch"].to_pylist(), stages["end_ns"].to_pylist(), strict=True):
        ready[batch] = max(end_ns, ready.get(batch, 0))
    received = dict(zip(fetches["batch"].to_pylist(), fetches["end_ns"].to_pylist(), strict=True))
    changes = [(t_ns, 1) for batch, t_ns in ready.items() if batch in received]
    changes += [(max(t_ns, ready[batch]), -1) for batch, t_ns in received.items() if batch in ready]
    depth, depths = 0, {}
    for t_ns, change in sorted(changes, key=lambda event: (event[0], -event[1])):
        depth += change
        depths[t_ns] = depth
    earlier = [value for t_ns, value in depths.items() if t_ns <= since]
    points = [(since, float(earlier[-1] if earlier else 0))]
    points += [(t_ns, float(value)) for t_ns, value in depths.items() if since < t_ns <= until]
    return Counter("queue depth", "batches ready", points)
