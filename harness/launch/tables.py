"""Turns what the probes of one run collected into the contract's tables."""

from __future__ import annotations

from harness.analysis.exposure import attribute
from harness.probes.steps import StepRecorder
from harness.results import PHASES, Columns


def steps_table(recorder: StepRecorder, asynchronous: bool = False) -> Columns:
    """One row per finished step; batches received in a step that never finished are left out.

    On an ``asynchronous`` device a wait of the host costs nothing while the device has work queued, so what was
    exposed and hidden cannot be told from the host's clock: null, not measured.
    """
    steps = recorder.steps
    received = [batch for batch in recorder.received_batches if batch.step_row < len(steps)]
    columns: Columns = {
        "step": [row.step for row in steps],
        "turn": [row.turn for row in steps],
        "warmup": [row.warmup for row in steps],
        "start_ns": [row.start_ns for row in steps],
        "wall_ns": [row.wall_ns for row in steps],
        "contended_ns": [row.contended_ns for row in steps],
        "loss": [recorder.losses.get(row.step) for row in steps],
    }
    for index, phase in enumerate(PHASES):
        columns[f"{phase}_ns"] = [row.phases_ns[index] for row in steps]
    columns.update(
        attribute(
            [(batch.step_row, batch.wait_start_ns, batch.wait_end_ns, batch.batch) for batch in received],
            {b.batch: b.trace.spans for b in received if b.trace is not None and not asynchronous},
            len(steps),
        )
    )
    for name in ("tokens", "trained_tokens", "samples"):
        counts = [0] * len(steps)
        for batch in received:
            counts[batch.step_row] += getattr(batch, name)
        columns[name] = list(counts)
    return columns


def spans_table(recorder: StepRecorder, pid: int, tid: int, rank: int) -> Columns:
    """Phases of the main thread, then the stages of every batch that it received."""
    rows = [(pid, tid, "main", rank, p.name, p.batch, p.start_ns, p.end_ns) for p in recorder.phases]
    for batch in recorder.received_batches:
        if (trace := batch.trace) is not None:
            rows += [
                (trace.pid, trace.tid, trace.role, rank, span.name, batch.batch, span.start_ns, span.end_ns)
                for span in trace.spans
            ]
    names = ("pid", "tid", "role", "rank", "name", "batch", "start_ns", "end_ns")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}
