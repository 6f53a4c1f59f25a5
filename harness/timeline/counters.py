"""Counters on the timeline: what was sampled of host and device, and how many batches lay ready."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter as Counts
from collections.abc import Sequence
from typing import NamedTuple

from harness.study.store import RunData
from harness.timeline.model import Counter, Process
from harness.timeline.windows import Range, Window

MARGIN_NS = 500_000_000  # a sample tells of the time before it: those just after a window belong to it
# Growth since the reading before, shown per second; of energy the card's power tells the same.
GROWTH = {
    "run_queue_delay_s", "others_cpu_s", "stolen_cpu_s", "major_faults", "disk_read_bytes",
    "voluntary_switches", "involuntary_switches", "cpu_pressure_s", "io_pressure_s", "memory_pressure_s",
    "cgroup_periods", "cgroup_throttled_periods", "cgroup_throttled_s",
}  # fmt: skip
# Said by another counter (cpu_cores, power), or only once a turn.
LEFT_OUT = {"interval_s", "cpu_s", "energy_j", "own_cpu_cores", "other_cpu_cores", "stolen_cpu_cores"}
OVER_TIME = ("_percent", "_per_s", "cpu_cores")  # means since the reading before


class CountedSpan(NamedTuple):
    """A turn of a run. Its first readings are taken from ``measured_ns`` on: what comes before are warmup steps."""

    since_ns: int
    measured_ns: int
    until_ns: int


def sampled(window: Window) -> Process:
    """What the probes sampled within the window, one counter a source and metric, in that order."""
    process = Process(f"{window.name}: machine")
    turns = _turns(window.run)
    found = _readings(window, turns)
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
            points = _means(series, turns) if over_time else _levels(series, turns)
        if points and over_time:
            first, last = points[0][0], points[-1][0]
            points += [(turn.until_ns, 0.0) for turn in turns[:-1] if first < turn.until_ns < last]  # it stands still
            points.sort()
        points = _shown(points, window.extent)
        if points:
            process.counters.append(Counter(name, unit, points))
    return process


def _readings(window: Window, turns: Sequence[CountedSpan]) -> dict[tuple[str, str, str], dict[int, float]]:
    """{(source, metric, unit): {t_ns: value}} from the beginning of the window's first turn on: a value may tell of
    the time since the reading before it, however long before the window that was.
    """
    samples = window.run.samples
    if samples is None or not len(samples):
        return {}
    import pyarrow as pa

    since, until = window.extent
    turn = _turn_of(since, turns)
    times = samples["t_ns"].to_numpy()
    inside = samples.filter(pa.array((times >= (turn.since_ns if turn else since)) & (times <= until + MARGIN_NS)))
    columns = (inside.column(name).to_pylist() for name in ("t_ns", "source", "metric", "unit", "value"))
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for t_ns, source, metric, unit, value in zip(*columns, strict=True):
        if value is not None and math.isfinite(value):
            found.setdefault((source, metric, unit or "value"), {})[t_ns] = value
    return found


def _turns(run: RunData) -> list[CountedSpan]:
    """The turns of a run, in order."""
    if run.steps is None:
        return []
    measured: dict[int, int] = {}
    found: dict[int, CountedSpan] = {}
    names = ("turn", "start_ns", "wall_ns", "warmup")
    for turn, start, wall, warmup in zip(*(run.steps.column(name).to_pylist() for name in names), strict=True):
        since = found[turn].since_ns if turn in found else start
        if not warmup:
            measured.setdefault(turn, start)
        found[turn] = CountedSpan(since, measured.get(turn, since), start + wall)
    return sorted(found.values())


def _turn_of(t_ns: int, turns: Sequence[CountedSpan]) -> CountedSpan | None:
    """The turn that a reading tells of: its last one is taken just after its last step."""
    place = bisect_right(turns, t_ns, key=lambda turn: turn.since_ns)
    return turns[place - 1] if place else None


def _means(series: Sequence[tuple[int, float]], turns: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Means since the reading before, or since their turn began to be measured, each where that time began."""
    points = []
    before: int | None = None
    for t_ns, value in series:
        if turn := _turn_of(t_ns, turns):
            began = turn.measured_ns if turn.measured_ns < t_ns else turn.since_ns
            before = began if before is None else max(before, began)
        if before is not None and before < t_ns:
            points.append((before, value))
        before = t_ns
    return points


def _levels(series: Sequence[tuple[int, float]], turns: Sequence[CountedSpan]) -> list[tuple[int, float]]:
    """Each reading where it was taken, but within its turn; a turn's only one at its beginning.

    What is read once in a turn, at its end, would be shown nowhere; with more than one, when it changed is to be seen.
    """
    points: dict[int, float] = {}
    read = Counts(_turn_of(t_ns, turns) for t_ns, _ in series)
    for t_ns, value in series:
        turn = _turn_of(t_ns, turns)
        place = t_ns
        if turn is not None:
            place = min(t_ns, turn.until_ns) if read[turn] > 1 else turn.since_ns
        points[place] = value
    return sorted(points.items())


def _shown(points: Sequence[tuple[int, float]], extent: Range) -> list[tuple[int, float]]:
    """The points within ``extent``; what holds at its beginning begins there."""
    since, until = extent
    held = [(since, value) for t_ns, value in points if t_ns <= since]
    return held[-1:] + [(t_ns, value) for t_ns, value in points if since < t_ns <= until]


def queue_depth(run: RunData, extent: Range) -> Counter | None:
    """Batches that workers had finished and the main thread had not yet received; None without workers."""
    if run.spans is None or not len(run.spans):
        return None
    import pyarrow.compute as pc

    stages = run.spans.filter(pc.starts_with(run.spans["role"], "loader-"))
    if not len(stages):
        return None
    ready: dict[int, int] = {}
    for batch, end_ns in zip(stages["batch"].to_pylist(), stages["end_ns"].to_pylist(), strict=True):
        ready[batch] = max(end_ns, ready.get(batch, 0))
    fetches = run.spans.filter(pc.and_(pc.equal(run.spans["role"], "main"), pc.equal(run.spans["name"], "fetch")))
    received = dict(zip(fetches["batch"].to_pylist(), fetches["end_ns"].to_pylist(), strict=True))
    changes = [(t_ns, 1) for batch, t_ns in ready.items() if batch in received]
    changes += [(max(t_ns, ready[batch]), -1) for batch, t_ns in received.items() if batch in ready]
    depth, depths = 0, {}
    for t_ns, change in sorted(changes, key=lambda one: (one[0], -one[1])):
        depth += change
        depths[t_ns] = depth
    since, until = extent
    before = [value for t_ns, value in depths.items() if t_ns <= since]
    points = [(since, float(before[-1] if before else 0))]
    points += [(t_ns, float(value)) for t_ns, value in depths.items() if since < t_ns <= until]
    return Counter("queue depth", "batches ready", points)
