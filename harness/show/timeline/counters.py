"""Puts counters on the timeline: the samples of host and device, and the number of batches that were ready."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter as Counts
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.explain.policy import BATCHES_AHEAD_MAX
from harness.explain.spans import integers
from harness.show.policy import SAMPLE_MARGIN_NS
from harness.show.timeline.model import Counter, Process
from harness.show.timeline.windows import Range, Window
from harness.study.run_data import RunData

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
    """A repetition of a run. Steps before ``measured_ns`` are warm-up."""

    since_ns: int
    measured_ns: int
    until_ns: int


def sampled(window: Window) -> Process:
    """Return the samples within the window, one counter per source and metric, in that order."""
    process = Process(f"{window.name}: machine")
    repetitions = _repetitions(window.run)
    found = _readings(window, repetitions)
    intervals_s = found.get(("host", "interval_s", "s"), {})
    for (source, metric, unit), readings in sorted(found.items()):
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
    """Return {(source, metric, unit): {t_ns: value}} from the start of the window's first repetition on.

    A value may describe the time since the previous reading, which may be long before the window.
    """
    samples = window.run.samples
    if samples is None or not len(samples):
        return {}
    import pyarrow as pa

    since, until = window.extent
    repetition = _repetition_of(since, repetitions)
    times = samples["t_ns"].to_numpy()
    inside = samples.filter(
        pa.array((times >= (repetition.since_ns if repetition else since)) & (times <= until + SAMPLE_MARGIN_NS))
    )
    columns = (inside.column(name).to_pylist() for name in ("t_ns", "source", "metric", "unit", "value"))
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for t_ns, source, metric, unit, value in zip(*columns, strict=True):
        if value is not None and math.isfinite(value):
            found.setdefault((source, metric, unit or "value"), {})[t_ns] = value
    return found


def _repetitions(run: RunData) -> list[CountedSpan]:
    """Return the repetitions of a run, in order."""
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
    """Return the repetition that a reading describes. Its last reading is taken just after its last step."""
    place = bisect_right(repetitions, t_ns, key=lambda repetition: repetition.since_ns)
    return repetitions[place - 1] if place else None


def _means(series: Sequence[tuple[int, float]], repetitions: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Place each mean where its time began: at the previous reading, or at the first measured step."""
    points = []
    before: int | None = None
    for t_ns, value in series:
        if repetition := _repetition_of(t_ns, repetitions):
            began = repetition.measured_ns if repetition.measured_ns < t_ns else repetition.since_ns
            before = began if before is None else max(before, began)
        if before is not None and before < t_ns:
            points.append((before, value))
        before = t_ns
    return points


def _levels(series: Sequence[tuple[int, float]], repetitions: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Place each reading where it was taken, but within its repetition; a single reading at the beginning.

    A value that is read once, at the end of a repetition, would otherwise not be shown. Several readings show when the
    value changed.
    """
    points: dict[int, float] = {}
    read = Counts(_repetition_of(t_ns, repetitions) for t_ns, _ in series)
    for t_ns, value in series:
        repetition = _repetition_of(t_ns, repetitions)
        place = t_ns
        if repetition is not None:
            place = min(t_ns, repetition.until_ns) if read[repetition] > 1 else repetition.since_ns
        points[place] = value
    return sorted(points.items())


def _shown(points: Sequence[tuple[int, float]], extent: Range) -> list[tuple[int, float]]:
    """Return the points within ``extent``. The value that holds at its beginning is placed there."""
    since, until = extent
    held = [(since, value) for t_ns, value in points if t_ns <= since]
    return held[-1:] + [(t_ns, value) for t_ns, value in points if since < t_ns <= until]


def queue_depth(run: RunData, extent: Range) -> Counter | None:
    """Count the batches that workers had finished and the main thread had not received yet; None without workers."""
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
    for t_ns, change in sorted(changes, key=lambda one: (one[0], -one[1])):
        depth += change
        depths[t_ns] = depth
    before = [value for t_ns, value in depths.items() if t_ns <= since]
    points = [(since, float(before[-1] if before else 0))]
    points += [(t_ns, float(value)) for t_ns, value in depths.items() if since < t_ns <= until]
    return Counter("queue depth", "batches ready", points)
