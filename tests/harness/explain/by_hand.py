"""Timelines drawn by hand, as the tables that a run would have written, and their derived columns as plain lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from harness.explain.bounds import device_work
from harness.explain.derived import with_derived
from harness.explain.spans import COLUMNS, read_spans
from harness.study.contract import CAUSES, PLACES, SPAN_COLUMNS, STAGES, STEP_COLUMNS, arrow_schema
from trainer.telemetry import StageSpan

STAGE_COLUMNS = tuple(f"{kind}_{stage}_ns" for kind in ("exposed", "hidden", *PLACES) for stage in STAGES)
DEVICE = ("device_busy", "device_launch_bound", "device_open", "device_starved", "device_slack")
DEVICE_COLUMNS = tuple(f"{name}_ns" for name in (*DEVICE, *(f"starved_{cause}" for cause in CAUSES)))


class Fetch(NamedTuple):
    """A wait for one batch, and the stages of that batch; None: its builder reported nothing."""

    row: int
    start_ns: int
    end_ns: int
    stages: Sequence[Any] | None


def device_columns(
    steps: Sequence[tuple[int, int]],
    kernels: Sequence[tuple[int, int]],
    launches: Sequence[tuple[int, int]],
    phases: Iterable[Any],
    fetches: Sequence[Fetch],
) -> dict[str, list[int | None]]:
    """The derived columns of steps on an asynchronous device. A phase called sync is a blocking call."""
    rows = [span("sync" if phase.name == "sync" else "main", *phase[:3]) for phase in phases]
    rows += [span("device", "kernel", start, end) for start, end in kernels]
    rows += [span("launch", "kernel", start, end) for start, end in launches]
    return derived(steps, [*rows, *_fetched(fetches)], asynchronous=True)


def attribute(
    waits: Iterable[tuple[int, int, int, int]], spans_by_batch: Mapping[int, Sequence[Any]], steps: int
) -> dict[str, list[int | None]]:
    """The columns by stage of ``steps`` rows; ``waits``: row, start, end, batch, in order of time."""
    waits = sorted(waits, key=lambda wait: wait[1])
    fetches = [Fetch(row, start, end, spans_by_batch.get(batch)) for row, start, end, batch in waits]
    moment = min((fetch.start_ns for fetch in fetches), default=0)
    bounds = []
    for row in range(steps):  # a step ends where the next one's first wait begins
        inside = [fetch for fetch in fetches if fetch.row == row]
        end = max((fetch.end_ns for fetch in inside), default=moment)
        bounds.append((moment, max(end, moment)))
        following = [fetch.start_ns for fetch in fetches if fetch.row > row]
        moment = min(following, default=end)
        bounds[-1] = (bounds[-1][0], max(bounds[-1][1], moment))
    columns = derived(bounds, _fetched(fetches), asynchronous=False)
    return {name: columns[name] for name in STAGE_COLUMNS}


def derived(
    steps: Sequence[tuple[int, int]], spans: Sequence[dict[str, Any]], *, asynchronous: bool
) -> dict[str, list[int | None]]:
    rows = [{"start_ns": start, "wall_ns": end - start, "fetch_ns": 0, "warmup": False} for start, end in steps]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(STEP_COLUMNS))
    recorded = pa.Table.from_pylist(list(spans), schema=arrow_schema(SPAN_COLUMNS))
    recorded_spans = read_spans(recorded.select(COLUMNS).to_batches())
    found = with_derived(table, recorded_spans, device_work(recorded_spans) if asynchronous else None).table
    return {name: found.column(name).to_pylist() for name in (*DEVICE_COLUMNS, *STAGE_COLUMNS)}


def span(role: str, name: str, start: int, end: int, batch: int = -1) -> dict[str, Any]:
    return {"role": role, "name": name, "start_ns": start, "end_ns": end, "batch": batch, "rank": 0}


def _fetched(fetches: Sequence[Fetch]) -> list[dict[str, Any]]:
    rows = []
    for batch, fetch in enumerate(fetches):
        rows.append(span("main", "fetch", fetch.start_ns, fetch.end_ns, batch))
        rows += [span("loader-0", one.name, one.start_ns, one.end_ns, batch) for one in fetch.stages or ()]
        if fetch.stages is not None:
            rows.append(span("loader-0", "transfer", fetch.end_ns, fetch.end_ns, batch))
    return rows


def split_wait(wait: tuple[int, int], spans: Sequence[StageSpan]) -> dict[str, int]:
    """Nanoseconds by stage that ran during one wait."""
    return _stages("during_wait", wait, spans)


def outside(wait: tuple[int, int], spans: Sequence[StageSpan]) -> dict[str, int]:
    """Nanoseconds by stage that ran before or after one wait."""
    work, during = _stages("work", wait, spans), split_wait(wait, spans)
    return {stage: work[stage] - during[stage] for stage in work}


def _stages(kind: str, wait: tuple[int, int], spans: Sequence[StageSpan]) -> dict[str, int]:
    step = (wait[0], max(wait[1], wait[0] + 1))
    columns = derived([step], _fetched([Fetch(0, *wait, spans)]), asynchronous=False)
    return {
        name.removeprefix(f"{kind}_").removesuffix("_ns"): values[0] or 0
        for name, values in columns.items()
        if name.startswith(f"{kind}_")
    }
