"""Turns what the probes of one run collected into the contract's tables."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from harness.analysis.device import Fetch, device_columns
from harness.analysis.exposure import attribute
from harness.probes.ledger.bare import BareRecorder
from harness.probes.ledger.rows import PhaseSpan, Received, Rows
from harness.probes.ledger.steps import StepRecorder
from harness.study.store import PHASES, Columns
from trainer.telemetry import StageSpan


def steps_table(recorder: StepRecorder | BareRecorder, asynchronous: bool = False) -> Columns:
    """One row per finished step; batches received in a step that never finished are left out.

    On an ``asynchronous`` device, what was exposed and hidden follows from what the device did, not from the waits.
    """
    rows = recorder.rows()
    steps = rows.steps
    columns: Columns = {
        "step": [row.step for row in steps],
        "turn": [row.repetition for row in steps],
        "warmup": [row.warmup for row in steps],
        "start_ns": [row.start_ns for row in steps],
        "wall_ns": [row.wall_ns for row in steps],
        "contended_ns": [row.contended_ns for row in steps],
        "loss": [recorder.losses.get(row.step) for row in steps],
    }
    names = ("tokens", "trained_tokens", "samples")
    if isinstance(recorder, BareRecorder):
        return columns | {name: [counts[place] for counts in recorder.counts] for place, name in enumerate(names)}
    received = [batch for batch in rows.received if batch.step_row < len(steps)]
    for index, phase in enumerate(PHASES):
        columns[f"{phase}_ns"] = [row.phases_ns[index] for row in steps]
    columns.update(_device(recorder, rows, received) if asynchronous else _waits(received, len(steps)))
    for name in names:
        counts = [0] * len(steps)
        for batch in received:
            counts[batch.step_row] += getattr(batch, name)
        columns[name] = list(counts)
    return columns


def _waits(received: list[Received], rows: int) -> Columns:
    return attribute(
        [(batch.step_row, batch.wait_start_ns, batch.wait_end_ns, batch.batch) for batch in received],
        {batch.batch: batch.trace.stages() for batch in received if batch.trace is not None},
        rows,
    )


def _device(recorder: StepRecorder, rows: Rows, received: list[Received]) -> Columns:
    waiting = [StageSpan("sync", call.start_ns, call.end_ns) for call in recorder.blocking]
    return device_columns(
        [(row.start_ns, row.start_ns + row.wall_ns) for row in rows.steps],
        [(kernel.start_ns, kernel.end_ns) for kernel in recorder.kernels],
        [(kernel.launch_start_ns, kernel.launch_end_ns) for kernel in recorder.kernels],
        [*rows.phases, *waiting],
        [
            Fetch(batch.step_row, batch.wait_start_ns, batch.wait_end_ns, batch.trace and batch.trace.stages())
            for batch in received
        ],
    )


def _cpu_ns(span: PhaseSpan | StageSpan) -> int | None:
    """CPU time within the span: what was read a little before it (see probes.steps) may have more."""
    return None if span.cpu_ns is None else min(span.cpu_ns, span.end_ns - span.start_ns)


def spans_table(recorder: StepRecorder | BareRecorder, pid: int, tid: int, rank: int) -> Columns:
    """Phases of the main thread, the stages of every batch it received, what the device did, and blocking calls."""
    if isinstance(recorder, BareRecorder):
        return {}
    main = (pid, tid, "main", rank)
    known = recorder.rows()
    rows: list[tuple[Any, ...]] = [(*main, p.name, p.batch, p.start_ns, p.end_ns, _cpu_ns(p)) for p in known.phases]
    for batch in known.received:
        if (trace := batch.trace) is not None:
            rows += [
                (trace.pid, trace.tid, trace.role, rank, s.name, batch.batch, s.start_ns, s.end_ns, _cpu_ns(s))
                for s in trace.stages()
            ]
    received_ns = [batch.wait_end_ns for batch in known.received]
    for kernel in recorder.kernels:
        batch_number = bisect_right(received_ns, kernel.launch_start_ns) - 1  # the last one the host had got by then
        for role, start, end in (
            ("launch", kernel.launch_start_ns, kernel.launch_end_ns),
            ("device", kernel.start_ns, kernel.end_ns),
        ):
            rows.append((pid, tid, role, rank, kernel.name, batch_number, start, end, None))
    for call in recorder.blocking:
        batch_number = bisect_right(received_ns, call.start_ns) - 1
        rows.append((pid, tid, "sync", rank, call.site, batch_number, call.start_ns, call.end_ns, None))
    names = ("pid", "tid", "role", "rank", "name", "batch", "start_ns", "end_ns", "cpu_ns")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}
