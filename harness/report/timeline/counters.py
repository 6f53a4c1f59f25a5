"""Counters on the timeline: what was sampled of host and device, and how many batches lay ready."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.report.timeline.model import Counter, Process
from harness.report.timeline.windows import Range, Window
from harness.results import RunData

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


def sampled(window: Window) -> Process:
    """What the probes sampled within the window, one counter a source and metric, in that order."""
    process = Process(f"{window.name}: machine")
    samples = window.run.samples
    if samples is None or not len(samples):
        return process
    import pyarrow as pa

    times = samples["t_ns"].to_numpy()
    since, until = window.extent
    inside = (times >= since - MARGIN_NS) & (times <= until + MARGIN_NS)
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in samples.filter(pa.array(inside)).to_pylist():
        if row["value"] is not None and math.isfinite(row["value"]):
            series = found.setdefault((row["source"], row["metric"], row["unit"] or "value"), {})
            series[row["t_ns"]] = row["value"]
    intervals_s = found.get(("host", "interval_s", "s"), {})
    turns = _turns(window.run)
    for (source, metric, unit), series in sorted(found.items()):
        if metric in LEFT_OUT:
            continue
        name = f"{source} {metric.removesuffix(f'_{unit}')}"  # the unit is shown beside it
        if metric in GROWTH:
            points = [
                (t_ns - round(1e9 * interval_s), value / interval_s)
                for t_ns, value in sorted(series.items())
                if (interval_s := intervals_s.get(t_ns, 0.0)) > 0
            ]
            unit = f"{unit}/s"
        else:
            points = sorted(series.items())
            if metric.endswith(OVER_TIME):  # a point is shown until the next one, so it must stand where it began
                times = [t_ns for t_ns, _ in points]
                points = [
                    (_within_turn(before, until, turns), value)
                    for before, (until, value) in zip(times, points[1:], strict=False)
                ]
        if points and (metric in GROWTH or metric.endswith(OVER_TIME)):
            first, last = points[0][0], points[-1][0]
            points += [(end, 0.0) for _, end in turns[:-1] if first < end < last]  # between turns it stands still
            points.sort()
        if points:
            process.counters.append(Counter(name, unit, points))
    return process


def _turns(run: RunData) -> list[Range]:
    """From the first to the last measured step of each turn, in order."""
    if run.steps is None:
        return []
    found: dict[int, Range] = {}
    names = ("turn", "start_ns", "wall_ns", "warmup")
    for turn, start, wall, warmup in zip(*(run.steps.column(name).to_pylist() for name in names), strict=True):
        if not warmup:
            found[turn] = (found.get(turn, (start, 0))[0], start + wall)
    return sorted(found.values())


def _within_turn(since: int, until: int, turns: Sequence[Range]) -> int:
    """``since``, or the start of the turn that ``until`` lies in where that is later."""
    return max([since, *(start for start, _ in turns if since < start <= until)])


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
