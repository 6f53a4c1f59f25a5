"""Computes the derived columns of the steps table: exposed, hidden, and what the device did.

A run records only what happened: steps with their phases, spans of stages, kernels and blocking calls. These columns
are computed whenever a study is read, so a corrected rule also applies to old studies.

    synchronous device    exposed and hidden: each wait for a batch split by the batch's own stages (``exposure``)
    asynchronous device   idle (starved) by cause, slack, busy; exposed is the idle time by stage (``device``). Of a
                          launch-bound phase nobody knows how much was work: busy is null, idle what is known of it

A batch whose builder recorded nothing makes the stages of its step null: not measured, never zero. A builder that did
nothing (a replayed batch) leaves one empty ``transfer`` span as its mark. Older studies have no mark: there the
recorded column ``exposed_transfer_ns`` shows the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.analysis import device
from harness.analysis.exposure import (
    TRANSFER,
    BatchWaits,
    StageSpans,
    exposed_and_hidden,
    of_known_batches,
    per_row_and_stage,
    without_overlaps,
)
from harness.analysis.intervals import Int, Stretches
from harness.analysis.launches import NEGLIGIBLE, device_work, open_per_step
from harness.analysis.spans import FETCH, RunSpans
from harness.study.contract import CAUSES, STAGES

if TYPE_CHECKING:
    import pyarrow as pa

STAGE_COLUMNS = tuple(f"{kind}_{stage}_ns" for kind in ("exposed", "hidden") for stage in STAGES)
DEVICE_COLUMNS = (
    "device_busy_ns",
    "device_launch_bound_ns",
    "device_starved_ns",
    "device_slack_ns",
    *(f"starved_{cause}_ns" for cause in CAUSES),
)


def with_derived(steps: pa.Table, spans: RunSpans, asynchronous: bool) -> pa.Table:
    """Return ``steps`` with its derived columns computed by the present rules.

    Return it unchanged where the phases of steps were not recorded (a run measured bare), where steps have no times,
    and where spans are missing: a step that fetched must have a span of it.
    """
    if steps.column("start_ns").null_count or steps.column("wall_ns").null_count:
        return steps
    waits = waits_of(steps, spans)
    if waits is None or _incomplete(steps, waits):
        return steps
    for name, values in _columns(steps, spans, waits, asynchronous).items():
        steps = steps.set_column(steps.column_names.index(name), name, values)
    return steps


def _incomplete(steps: pa.Table, waits: BatchWaits) -> bool:
    """Whether a step spent time fetching without any span: then the spans table is not what the run wrote."""
    waited = np.zeros(len(steps), dtype=np.bool_)
    waited[waits.rows[waits.rows >= 0]] = True
    return bool(((integers(steps, "fetch_ns") > 0) & ~waited).any())


def bounds(steps: pa.Table) -> Stretches:
    """When each step began and ended."""
    starts = integers(steps, "start_ns")
    return Stretches(starts, starts + integers(steps, "wall_ns"))


def integers(table: pa.Table, name: str, null: int = 0) -> Int:
    """A column as int64, (rows,); ``null`` for what was not measured."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy().astype(np.int64, copy=False)
    return values


def waits_of(steps: pa.Table, spans: RunSpans) -> BatchWaits | None:
    """The main thread's waits by batch; None where its phases were not recorded."""
    fetches = spans.of(spans.phases, FETCH)
    fetches = fetches.where(fetches.batches >= 0)
    if steps.column("fetch_ns").null_count == len(steps):
        return None
    starts, ends = bounds(steps)
    count = int(fetches.batches.max(initial=-1)) + 1
    found = np.searchsorted(starts, fetches.starts, side="right") - 1
    inside = (found >= 0) & (fetches.starts < ends[np.maximum(found, 0)]) if len(starts) else found >= 0
    rows, since, until = np.full(count, -1), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    rows[fetches.batches] = np.where(inside, found, -1)
    since[fetches.batches], until[fetches.batches] = fetches.starts, fetches.ends
    return BatchWaits(rows, since, until, _reported(steps, spans, rows))


def _reported(steps: pa.Table, spans: RunSpans, rows: Int) -> NDArray[np.bool_]:
    """Whether the builder of each batch recorded what it did, (batches,)."""
    reported = np.zeros(len(rows), dtype=np.bool_)
    reported[spans.stages.batches[(spans.stages.batches >= 0) & (spans.stages.batches < len(rows))]] = True
    # Studies from before there was a mark: their own column tells a batch without stages from an unknown one.
    known = steps.column("exposed_transfer_ns").is_valid().to_numpy()
    before = np.zeros(len(rows), dtype=np.bool_)
    before[rows >= 0] = known[rows[rows >= 0]]
    return reported | before


def stage_spans(spans: RunSpans) -> StageSpans:
    """The stages of all batches, without overlaps."""
    known = np.array([STAGES.index(name) if name in STAGES else TRANSFER for name in spans.names] or [TRANSFER])
    own = spans.stages.where(spans.stages.batches >= 0)
    return without_overlaps(StageSpans(own.batches.astype(np.int64), known[own.names], own.starts, own.ends))


def _columns(steps: pa.Table, spans: RunSpans, waits: BatchWaits, asynchronous: bool) -> dict[str, pa.Array]:
    import pyarrow as pa

    rows = len(steps)
    stages = stage_spans(spans)
    found: dict[str, pa.Array] = {}
    if asynchronous:
        step_bounds = bounds(steps)
        idle = device.idle_per_step(step_bounds, spans, waits, stages)
        pieces = min(len(spans.kernels), len(spans.launches))
        slack, fetched = device.slack(waits, spans.kernels.ends[:pieces], spans.launches.starts[:pieces], rows)
        idle_ns = idle.sum(axis=1)
        wall = step_bounds.ends - step_bounds.starts
        may_wait = open_per_step(step_bounds, device_work(spans))
        found["device_busy_ns"] = pa.array(wall - idle_ns, mask=may_wait > NEGLIGIBLE * wall)
        found["device_launch_bound_ns"] = pa.array(may_wait)
        found["device_starved_ns"] = pa.array(idle_ns)
        found["device_slack_ns"] = pa.array(slack, mask=~fetched)
        found |= {f"starved_{cause}_ns": pa.array(idle[:, place]) for place, cause in enumerate(CAUSES)}
        exposed = idle[:, : len(STAGES)]
        within = of_known_batches(stages, waits)
        work = per_row_and_stage(waits.rows[within.batches], within.stages, within.ends - within.starts, rows)
        hidden = np.maximum(0, work - exposed)
    else:
        exposed, hidden = exposed_and_hidden(waits, stages, rows)
    unknown = np.zeros(rows, dtype=np.bool_)
    unknown[waits.rows[(waits.rows >= 0) & ~waits.reported]] = True
    for kind, values in (("exposed", exposed), ("hidden", hidden)):
        found |= {f"{kind}_{stage}_ns": pa.array(values[:, i], mask=unknown) for i, stage in enumerate(STAGES)}
    return found
