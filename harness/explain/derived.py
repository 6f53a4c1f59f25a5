"""Computes the derived columns of the steps table: exposed, hidden, where stages ran, and what the device did.

    exposed       what each stage cost the step, by replay of the recorded order without it (``replay.attribution``)
    work, during_wait, parallel, between_steps    where the time of the stages lies (``waits``)
    hidden        stage time that cost nothing: in a training step, outside of every wait, and not exposed
    device        beside an asynchronous device: idle (starved) by cause, slack, busy (null where the host still
    launched a phase that the device was at, ``bounds``)

Exposed and hidden are null if a needed replay is impossible or beyond its tolerance, and for batches without records.
A builder that did nothing (a replayed batch) leaves an empty ``transfer`` span. Older studies show the difference in
the recorded column ``exposed_transfer_ns``. Every read of a study computes the columns anew, by the present rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.bounds import DeviceWork, per_step
from harness.explain.policy import EXPOSED_ABOVE_WORK_MAX, OPEN_DEVICE_SHARE
from harness.explain.replay.attribution import Split, Unsplit, split
from harness.explain.replay.recording import Recording
from harness.explain.spans import FETCH, Int, RunSpans, Stretches, bounds, difference, held_up, integers, union
from harness.explain.waits import (
    TRANSFER,
    BatchWaits,
    StageSpans,
    StageTimes,
    busy,
    idle_per_step,
    per_row,
    slack_at_fetches,
    stage_times,
    without_overlaps,
)
from harness.study.contract import CAUSES, PLACES, STAGES

if TYPE_CHECKING:
    import pyarrow as pa

_LONG_AGO_NS = 2**60  # start of an interval long before a run; sums of times stay within 64 bits


class Derived(NamedTuple):
    """Result of :func:`with_derived`: steps table with derived columns.

    ``unsplit``: why data costs are unknown, else None."""

    table: pa.Table
    changed: bool  # True if the stored columns differed
    unsplit: Unsplit | Literal["no times", "spans missing"] | None
    otherwise: NDArray[np.float64] | None = None  # data costs by other readings of the record, (readings, steps) ns


def with_derived(
    steps: pa.Table, spans: RunSpans, work: DeviceWork | None, recording: Recording | None = None
) -> Derived:
    """Return ``steps`` with its derived columns; unchanged if phases, times of steps, or a fetch's span are missing.

    ``work``: None if the device is synchronous. ``recording``: None if the run cannot be replayed."""
    if steps.column("start_ns").null_count or steps.column("wall_ns").null_count:
        return Derived(steps, changed=False, unsplit="no times")
    waits = waits_of(steps, spans)
    if waits is None or _incomplete(steps, waits):
        return Derived(steps, changed=False, unsplit="spans missing")
    step_bounds, columns = bounds(steps), _Replacing(steps)
    measured = ~steps.column("warmup").to_numpy().astype(np.bool_)
    del steps  # Each column is freed when another replaces it. Two tables of a long run would be most of its memory.
    stages = stage_spans(spans)
    if work is not None and len(spans.kernels):  # without kernels the device was not recorded, which is not idle
        for name, values in _device_columns(step_bounds, spans, work, waits, stages):
            columns.replace(name, values)
    training = ~held_up(step_bounds, measured)
    times, exposed = _stages(step_bounds, training, spans, waits, stages, work is not None, recording)
    for name, values in _stage_columns(times, exposed, waits, measured if work is not None else None):
        columns.replace(name, values)
    if isinstance(exposed, Split):
        return Derived(columns.table, columns.changed, None, exposed.otherwise)
    return Derived(columns.table, columns.changed, exposed)


class _Replacing:
    """Columns of a table that are replaced one by one. ``changed``: True if a new column differed from the old one."""

    def __init__(self, table: pa.Table) -> None:
        self._metadata = table.schema.metadata
        self._fields = {field.name: field for field in table.schema}
        self._values = dict(zip(table.column_names, table.columns, strict=True))
        self.changed = False

    def replace(self, name: str, values: pa.Array) -> None:
        import pyarrow as pa

        self.changed = self.changed or not self._values[name].equals(pa.chunked_array([values]))
        self._fields[name], self._values[name] = pa.field(name, values.type), values

    @property
    def table(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_arrays(
            list(self._values.values()), schema=pa.schema(self._fields.values(), self._metadata)
        )


def _incomplete(steps: pa.Table, waits: BatchWaits) -> bool:
    """Return True if the spans are incomplete: a step fetched without a span, or a fetch ends before it starts."""
    if (waits.ends < waits.starts).any():
        return True
    waited = np.zeros(len(steps), dtype=np.bool_)
    waited[waits.rows[waits.rows >= 0]] = True
    return bool(((integers(steps, "fetch_ns") > 0) & ~waited).any())


def waits_of(steps: pa.Table, spans: RunSpans) -> BatchWaits | None:
    """Return the main thread's waits for data by batch; None if its fetches were not recorded."""
    fetches = spans.of(spans.phases, FETCH)
    fetches = fetches.where(fetches.batches >= 0)
    if steps.column("fetch_ns").null_count == len(steps):
        return None
    starts, ends = bounds(steps)
    count = int(fetches.batches.max(initial=-1)) + 1
    row = np.searchsorted(starts, fetches.starts, side="right") - 1
    inside = (row >= 0) & (fetches.starts < ends[np.maximum(row, 0)]) if len(starts) else row >= 0
    rows, since, until = np.full(count, -1), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    rows[fetches.batches] = np.where(inside, row, -1)
    since[fetches.batches], until[fetches.batches] = fetches.starts, fetches.ends
    return BatchWaits(rows, since, until, _reported(steps, spans, rows))


def _reported(steps: pa.Table, spans: RunSpans, rows: Int) -> NDArray[np.bool_]:
    """Return True for each batch whose builder recorded its work, (batches,).

    ``rows``: row of each batch in ``steps``, or -1."""
    reported = np.zeros(len(rows), dtype=np.bool_)
    reported[spans.stages.batches[(spans.stages.batches >= 0) & (spans.stages.batches < len(rows))]] = True
    # Older studies have no mark. Their own column distinguishes a batch without stages from an unknown one.
    recorded = steps.column("exposed_transfer_ns").is_valid().to_numpy()
    before = np.zeros(len(rows), dtype=np.bool_)
    before[rows >= 0] = recorded[rows[rows >= 0]]
    return reported | before


def stage_spans(spans: RunSpans) -> StageSpans:
    """Return the stages of all batches, sorted by batch and time, without overlaps within a batch."""
    codes = np.array([STAGES.index(name) if name in STAGES else TRANSFER for name in spans.names] or [TRANSFER])
    stages = spans.stages_and_draws
    stages = stages.where(stages.batches >= 0)
    return without_overlaps(
        StageSpans(stages.batches.astype(np.int64), codes[stages.names], stages.starts, stages.ends)
    )


def _stages(
    step_bounds: Stretches,
    training: NDArray[np.bool_],
    spans: RunSpans,
    waits: BatchWaits,
    stages: StageSpans,
    asynchronous: bool,
    recording: Recording | None,
) -> tuple[StageTimes, Split | Unsplit]:
    """Return the time of each stage by where it ran, and what each stage cost, or why the cost is unknown.

    ``training``: by step, True if it did nothing but train. ``recording``: None if the run cannot be replayed."""
    waited = union(waits.starts, waits.ends)
    if asynchronous:
        waited = difference(waited, busy(spans))  # while the device works, a wait of the host costs nothing
    rows = len(step_bounds.starts)
    starts, ends = (moments[training] for moments in step_bounds)
    # Stage time before the first step, perhaps in another block of the program, is treated like time in steps.
    begin = step_bounds.starts[:1]
    open_steps = union(np.append(begin - _LONG_AGO_NS, starts), np.append(begin, ends))
    times = stage_times(waits, stages, waited, open_steps, rows)
    waits_ns = per_row(waits.rows, waits.ends - waits.starts, rows)
    return times, _exposed(times, waits_ns, asynchronous, recording)


def _stage_columns(
    times: StageTimes, exposed: Split | Unsplit, waits: BatchWaits, weighed: NDArray[np.bool_] | None
) -> Iterator[tuple[str, pa.Array]]:
    """Yield (name, values) of each derived column about stages. ``weighed``: as in :func:`_hidden`."""
    import pyarrow as pa

    rows = len(times.work)
    unknown = np.zeros(rows, dtype=np.bool_)
    unknown[waits.rows[(waits.rows >= 0) & ~waits.reported]] = True
    unsplit = np.ones(rows, dtype=np.bool_)
    if isinstance(exposed, Split):
        unsplit[: len(exposed.exposed)] = False
    for place, stage in enumerate(STAGES):
        share = np.zeros(rows, dtype=np.int64)
        if isinstance(exposed, Split):
            share[: len(exposed.exposed)] = exposed.exposed[:, place]
        within = None if weighed is None else weighed & ~unsplit & ~unknown
        open_work = times.work[:, place] - times.between[:, place]
        hidden = _hidden(times.outside[:, place], open_work, share, within)
        yield f"exposed_{stage}_ns", pa.array(share, mask=unknown | unsplit)
        yield f"hidden_{stage}_ns", pa.array(hidden, mask=unknown | unsplit)
        for kind, values in zip(PLACES, (times.work, times.during, times.parallel, times.between), strict=True):
            yield f"{kind}_{stage}_ns", pa.array(values[:, place], mask=unknown)


def _hidden(outside: Int, work: Int, exposed: Int, weighed: NDArray[np.bool_] | None) -> Int:
    """Return by step the hidden ns of one stage: it ran outside of all waits, and made no step longer.

    ``outside``: ns of the stage outside of waits. ``work``: ns while a step was open. ``exposed``: ns that it cost.
    ``weighed``: True for steps whose costs are summed, because an asynchronous device delays later steps; the hidden
    sum is divided among all steps in proportion to ``outside``. None: each step is computed alone.
    """
    hidden: Int
    if weighed is None:
        hidden = np.maximum(0, np.minimum(outside, work - exposed))
        return hidden
    most, unexposed = int(outside[weighed].sum()), int((work - exposed)[weighed].sum())
    hidden = (outside * (min(max(0, unexposed), most) / most if most else 0.0)).astype(np.int64)
    return hidden


def _device_columns(
    step_bounds: Stretches, spans: RunSpans, work: DeviceWork, waits: BatchWaits, stages: StageSpans
) -> Iterator[tuple[str, pa.Array]]:
    import pyarrow as pa

    idle = idle_per_step(step_bounds, spans, waits, stages)
    pieces = min(len(spans.kernels), len(spans.launches))
    slack, fetched = slack_at_fetches(
        waits, spans.kernels.ends[:pieces], spans.launches.starts[:pieces], len(step_bounds.starts)
    )
    idle_ns = idle.sum(axis=1)
    wall = step_bounds.ends - step_bounds.starts
    may_wait, launch_bound = per_step(step_bounds, work.open), per_step(step_bounds, work.launch_bound_open)
    yield "device_busy_ns", pa.array(wall - idle_ns, mask=may_wait > OPEN_DEVICE_SHARE * wall)
    yield "device_launch_bound_ns", pa.array(launch_bound)
    yield "device_open_ns", pa.array(may_wait - launch_bound)
    yield "device_starved_ns", pa.array(idle_ns)
    yield "device_slack_ns", pa.array(slack, mask=~fetched)
    for place, cause in enumerate(CAUSES):
        yield f"starved_{cause}_ns", pa.array(idle[:, place])


def _exposed(times: StageTimes, waits_ns: Int, asynchronous: bool, recording: Recording | None) -> Split | Unsplit:
    """Return each stage's cost for each step, or the reason why no valid replay shows it. ``waits_ns``: by step."""
    inline = recording is None or not recording.workers
    if inline and not asynchronous and np.array_equal(times.work, times.during):
        return Split(times.during)
    if recording is None:
        return "not replayable"
    result = split(recording, waits_ns)
    return "above its work" if isinstance(result, Split) and _above_work(result.exposed, times, recording) else result


def _above_work(exposed: Int, times: StageTimes, recording: Recording) -> bool:
    """Return True if a stage cost the measured steps more than its work took, so the replay is wrong."""
    steps = len(exposed)
    counted = recording.measured[:steps]
    most = times.work[:steps][counted].sum(axis=0).astype(np.float64)
    most[TRANSFER] += float(recording.batches.handover[recording.batches.usable].sum())
    excess = exposed[counted].sum(axis=0) - most
    return bool((excess > EXPOSED_ABOVE_WORK_MAX * recording.wall_ns[:steps][counted].sum()).any())
