"""Chooses the runs, and the steps of each run, that a timeline shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from harness.show.timeline.sources import Sources
from harness.study.contract import PROFILED
from harness.study.records import StudyRecord
from harness.study.run_data import ProbesRecord, RunData

if TYPE_CHECKING:
    import pyarrow as pa


class ShownStep(TypedDict):
    """A row of the steps table, as far as the timeline reads it."""

    step: int
    turn: int
    warmup: bool
    start_ns: int
    wall_ns: int
    tokens: int | None
    trained_tokens: int | None
    samples: int | None
    loss: float | None


class ShownSpan(TypedDict):
    """A row of the spans table, as far as the timeline reads it."""

    tid: int
    role: str
    name: str
    batch: int | None
    start_ns: int
    end_ns: int


Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Some steps of a run. ``ranges`` are [since, until) of CLOCK_MONOTONIC, in order and disjoint."""

    run: RunData
    sources: Sources
    steps: list[ShownStep]
    ranges: list[Range]
    spans: list[ShownSpan]  # spans that overlap the ranges, and workers' spans of the batches received in them

    @property
    def name(self) -> str:
        return self.run.record.arm

    @property
    def extent(self) -> Range:
        """Return the first and the last shown moment. Counters are shown in between, too."""
        return self.ranges[0][0], self.ranges[-1][1]

    @property
    def main_threads(self) -> dict[str, int]:
        """Return the system's thread id of the main thread of each process of the run, by role."""
        return {row["role"]: row["tid"] for row in reversed(self.spans)}


def choose(study: StudyRecord, runs: Iterable[RunData]) -> list[RunData]:
    """Choose the first finished run of every arm, each followed by its profiled run."""
    order = {arm.name: place for place, arm in enumerate(study.arms)}
    chosen: dict[tuple[str, bool], RunData] = {}
    for run in sorted(runs, key=lambda run: run.record.block):
        record = run.record
        profiled = record.control == PROFILED
        if record.status == "done" and (profiled or not record.control) and run.step_count:
            chosen.setdefault(((record.of or record.arm) if profiled else record.arm, profiled), run)
    return [chosen[key] for key in sorted(chosen, key=lambda key: (order.get(key[0], len(order)), *key))]


def last_steps(run: RunData, sources: Sources, count: int | None) -> Window:
    """Return the last ``count`` steps of the last repetition (None: the whole run).

    Of a profiled run it returns the last ``count`` steps of each window of the profilers, of a run with a closing
    window also those before it. Interleaved runs are suspended between repetitions, so two repetitions would be seconds
    apart.
    """
    if count is not None and sources.probes.torch_profiler is None and sources.probes.py_spy is None:
        table = _last_repetition(run)
        table = table.slice(max(0, len(table) - count))
    else:
        whole = run.steps
        assert whole is not None
        table = whole
    rows: list[ShownStep] = table.to_pylist()
    parts = _parts(rows, sources.probes) if count is not None else []
    if parts and run.record.control != PROFILED:
        measured = [row for row in rows if not row["warmup"]]
        parts = [_repetition(measured), *parts] if measured else parts
    kept = [part[-count:] for part in parts or [_repetition(rows)]] if count is not None else [rows]
    steps = {row["start_ns"]: row for part in kept for row in part}
    ranges = merged((part[0]["start_ns"], _end(part[-1])) for part in kept if part)
    return Window(run, sources, [steps[start] for start in sorted(steps)], ranges, _spans(run, ranges))


def _repetition(rows: Sequence[ShownStep]) -> list[ShownStep]:
    return [row for row in rows if row["turn"] == rows[-1]["turn"]]


def _last_repetition(run: RunData) -> pa.Table:
    import pyarrow.compute as pc

    repetitions = run.step_columns(["turn"])
    assert repetitions is not None
    last = repetitions["turn"][len(repetitions) - 1]
    steps = run.steps_where(pc.field("turn") == last) if last.is_valid else run.steps
    assert steps is not None
    return steps


def _parts(rows: Sequence[ShownStep], probes: ProbesRecord) -> list[list[ShownStep]]:
    """Return the steps in each window of torch.profiler and of py-spy."""
    windows = [] if probes.torch_profiler is None else [(entry[0], entry[1]) for entry in probes.torch_profiler.windows]
    windows += [] if probes.py_spy is None else [probes.py_spy.window]
    # The step before a window ends a little after the window's beginning. A step belongs where most of it lies.
    parts = [[row for row in rows if since <= (row["start_ns"] + _end(row)) // 2 < until] for since, until in windows]
    return [part for part in parts if part]


def _end(row: ShownStep) -> int:
    return int(row["start_ns"] + row["wall_ns"])


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ``ranges``, in order."""
    result: list[Range] = []
    for since, until in sorted(ranges):
        if result and since <= result[-1][1]:
            result[-1] = (result[-1][0], max(until, result[-1][1]))
        else:
            result.append((since, until))
    return result


def _spans(run: RunData, ranges: Sequence[Range]) -> list[ShownSpan]:
    """Return the spans that overlap ``ranges``, and workers' spans of the batches received in them.

    A span without a role is left out, as analysis leaves it out: it belongs to no process.
    """
    if not run.has_spans or not ranges:
        return []
    import pyarrow.compute as pc

    inside = pc.scalar(False)
    for since, until in ranges:
        inside = inside | ((pc.field("end_ns") > since) & (pc.field("start_ns") < until))
    fetches = run.spans_where(inside & (pc.field("role") == "main") & (pc.field("name") == "fetch"))
    assert fetches is not None, "there are spans"
    received = [batch for batch in fetches["batch"].to_pylist() if batch is not None and batch >= 0]
    if received:
        batch, worker = pc.field("batch"), pc.starts_with(pc.field("role"), "loader-")
        inside = inside | (worker & (batch >= min(received)) & (batch <= max(received)) & batch.isin(received))
    shown = run.spans_where(inside & pc.field("role").is_valid())
    assert shown is not None, "there are spans"
    rows: list[ShownSpan] = shown.to_pylist()
    return rows
