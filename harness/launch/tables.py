"""Write the raw records of a run's ledger into the contract's tables.

Spans go to disk in portions, between repetitions, so a long run needs little more memory than a short one: up to
:data:`PENDING_EVENTS` events, and steps that wait for the last losses (results/reference/long-runs/README.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.probes.ledger.recorders import BareRecorder, StepRecorder
from harness.probes.ledger.rows import PhaseSpan, Rows, StepRow
from harness.study import contract
from harness.study.tables import TableFile, write_table
from trainer.telemetry import StageSpan, Validation

if TYPE_CHECKING:
    import pyarrow as pa

Int = NDArray[np.int64]
Float = NDArray[np.float64]
# Maximum events of a recorder before its rows are written: about 40 MB, 10,000 steps of an ordinary loop.
PENDING_EVENTS = 250_000
COUNTS = ("tokens", "trained_tokens", "samples")
SPAN_NAMES = ("pid", "tid", "role", "rank", "name", "batch", "start_ns", "end_ns", "cpu_ns")


class RunTables:
    """Writer of one rank's steps and spans tables. ``pid``, ``tid``: of its main thread. ``ranks``: 1 for each rank of
    an attached program. Rank 0's table counts the tokens of all ranks.
    """

    def __init__(
        self, recorder: StepRecorder | BareRecorder, folder: Path, pid: int, tid: int, rank: int, ranks: int = 1
    ) -> None:
        self._recorder = recorder
        self._pid, self._tid, self._rank, self._ranks = pid, tid, rank, ranks
        self._folder = folder
        self._steps: list[contract.Columns] = []  # small; the losses of their last steps are read later
        self._losses: list[tuple[Int, Float]] = []  # step numbers and losses
        self._rates: list[tuple[Int, Float]] = []  # learning rates by step
        self._place = rank if ranks > 1 else 0  # rank in the file names
        self._spans = TableFile(folder / contract.rank_file("spans", self._place), contract.SPAN_COLUMNS)

    def collect(self, least_events: int = PENDING_EVENTS) -> None:
        """Write and drop the recorded spans if at least ``least_events`` events wait. Call only between repetitions."""
        recorder = self._recorder
        if isinstance(recorder, StepRecorder) and recorder.pending_events >= least_events:
            rows = recorder.take_rows()
            self._steps.append(_compact(step_columns(rows)))
            losses, recorder.losses = recorder.losses, {}
            self._losses.append(_arrays(losses))
            rates, recorder.learning_rates = recorder.learning_rates, {}
            self._rates.append(_arrays(rates))
            self._spans.append(self._span_columns(rows, recorder))

    def write(self) -> None:
        """Write both tables (steps even if spans fail), and rank 0's evaluations. Unfinished steps have no row."""
        try:
            try:
                if isinstance(self._recorder, BareRecorder):
                    self._steps = [_compact(bare_columns(self._recorder))]
                else:
                    self.collect(least_events=0)
            finally:
                self._write_steps()
            if self._recorder.validations and not self._rank:  # All ranks evaluate the same data.
                rows = zip(*self._recorder.validations, strict=True)
                columns = dict(zip(Validation._fields, map(list, rows), strict=True))
                write_table(self._folder / "evaluations.parquet", contract.EVALUATION_COLUMNS, columns)
            self._spans.close()
        finally:
            self._spans.discard()

    def discard(self) -> None:
        """Remove unfinished files of both tables. Harmless after :meth:`write`."""
        self._spans.discard()

    def _write_steps(self) -> None:
        steps = TableFile(self._folder / contract.rank_file("steps", self._place), contract.STEP_COLUMNS)
        try:
            losses = _by_step([*self._losses, _arrays(self._recorder.losses)])
            rates = _by_step([*self._rates, _arrays(self._recorder.learning_rates)])
            rank_counts = [] if self._rank else counted_by_others(self._folder, self._ranks)
            for part in self._steps:
                numbers = np.asarray(part["step"], dtype=np.int64)
                columns = {**part, **with_others(part, numbers, rank_counts)}
                steps.append({**columns, "loss": losses(numbers), "learning_rate": rates(numbers)})
            steps.close()
        finally:
            steps.discard()

    def _span_columns(self, rows: Rows, recorder: StepRecorder) -> contract.Columns:
        """Return the columns of the spans table; the device's records are dropped in ``recorder``."""
        pid, tid, rank = self._pid, self._tid, self._rank
        table: list[tuple[Any, ...]] = [
            (pid, tid, "main", rank, p.name, p.batch, p.start_ns, p.end_ns, _cpu_ns(p)) for p in rows.phases
        ]
        for received in rows.received:
            if (unpacked := received.unpacked) is not None:
                name = contract.AWAITED if unpacked.waited else contract.READY
                times = (unpacked.arrived_ns, unpacked.unpacked_ns)
                table.append((pid, tid, contract.RECEIVE, rank, name, received.batch, *times, None))
            if (trace := received.trace) is None:
                continue
            origin = (trace.pid, trace.tid, trace.role, rank)
            table += [(*origin, s.name, received.batch, s.start_ns, s.end_ns, _cpu_ns(s)) for s in trace.stages()]
            table += [(pid, tid, contract.SAMPLER, rank, name, received.batch, *times) for name, *times in trace.drawn]
            if not trace.spans:  # A replayed batch has no stages. This differs from unknown stages.
                table.append((*origin, "transfer", received.batch, received.wait_end_ns, received.wait_end_ns, None))
        received_ns = [batch.wait_end_ns for batch in rows.received]

        def batch_at(moment_ns: int) -> int:
            """Return the number of the last batch that the host had received at ``moment_ns``."""
            return rows.first_batch + bisect_right(received_ns, moment_ns) - 1

        kernels, blocking = recorder.take_device()
        for kernel in kernels:
            batch = batch_at(kernel.launch_start_ns)
            for role, start, end in (
                ("launch", kernel.launch_start_ns, kernel.launch_end_ns),
                ("device", kernel.start_ns, kernel.end_ns),
            ):
                table.append((pid, tid, role, rank, kernel.name, batch, start, end, None))
        for name, start, end in recorder.take_exchanges():
            table.append((pid, tid, contract.EXCHANGE, rank, name, batch_at(start), start, end, None))
        for call in blocking:
            table.append((pid, tid, "sync", rank, call.site, batch_at(call.start_ns), call.start_ns, call.end_ns, None))
        columns = zip(*table, strict=True) if table else ((),) * len(SPAN_NAMES)
        return {name: list(values) for name, values in zip(SPAN_NAMES, columns, strict=True)}


def counted_by_others(folder: Path, ranks: int) -> list[dict[str, Int]]:
    """Return each other rank's counts by step (tokens, trained tokens, samples; -1: unknown)."""
    import pyarrow.parquet as pq

    parts = []
    for rank in range(1, ranks):
        path = folder / contract.rank_file("steps", rank)
        if path.exists():
            table = pq.read_table(path, columns=["step", *COUNTS])
            parts.append(
                {name: table.column(name).fill_null(-1).to_numpy().astype(np.int64) for name in table.column_names}
            )
    return parts


def with_others(part: contract.Columns, numbers: Int, others: Sequence[dict[str, Int]]) -> contract.Columns:
    """Return the counts of ``part`` plus those of other ranks, for the steps ``numbers``; null if any is unknown."""
    import pyarrow as pa

    summed: contract.Columns = {}
    for name in COUNTS if others else ():
        known = part.get(name)
        total = -np.ones_like(numbers) if known is None else pa.array(known).fill_null(-1).to_numpy().astype(np.int64)
        for counts in others:
            place = np.searchsorted(counts["step"], numbers)
            matches = place < len(counts["step"])
            matches[matches] &= counts["step"][place[matches]] == numbers[matches]
            addend = (
                np.where(matches, counts[name][np.minimum(place, len(counts["step"]) - 1)], -1)
                if len(matches)
                else numbers
            )
            total = np.where((total < 0) | (addend < 0), -1, total + addend)
        summed[name] = pa.array(total, mask=total < 0)
    return summed


def _arrays(by_step: Mapping[int, float]) -> tuple[Int, Float]:
    return np.fromiter(by_step, np.int64), np.fromiter(by_step.values(), np.float64)


def _by_step(parts: Sequence[tuple[Int, Float]]) -> Callable[[Int], pa.Array]:
    """Return a function that looks up the last values of step numbers in ``parts``; null for a step without a value."""
    numbers, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    numbers, values = numbers[order], values[order]

    def found(steps: Int) -> pa.Array:
        import pyarrow as pa

        place = np.searchsorted(numbers, steps, side="right") - 1
        matches = (place >= 0) & (numbers[place] == steps) if len(numbers) else np.zeros(len(steps), dtype=np.bool_)
        return pa.array(values[place] if len(values) else np.zeros(len(steps)), mask=~matches)

    return found


def step_columns(rows: Rows) -> contract.Columns:
    """Return the columns of the steps table, a row per finished step. A count is None if unknown for any batch."""
    steps = rows.steps
    columns = _times_of(steps)
    for index, phase in enumerate(contract.PHASES):
        columns[f"{phase}_ns"] = [row.phases_ns[index] for row in steps]
    for name in COUNTS:
        counts: list[int | None] = [0] * len(steps)
        for batch in rows.received:
            if batch.step_row < len(steps):
                total, addend = counts[batch.step_row], getattr(batch, name)
                counts[batch.step_row] = None if total is None or addend is None else total + addend
        columns[name] = counts
    return columns


def _times_of(steps: Sequence[StepRow]) -> contract.Columns:
    return {
        "step": [row.step for row in steps],
        "turn": [row.repetition for row in steps],
        "warmup": [row.warmup for row in steps],
        "start_ns": [row.start_ns for row in steps],
        "wall_ns": [row.wall_ns for row in steps],
        "contended_ns": [row.contended_ns for row in steps],
    }


def bare_columns(recorder: BareRecorder) -> contract.Columns:
    """Return the columns of the steps table for a bare run, which records no phases."""
    rows = recorder.rows().steps
    return {
        **_times_of(rows),
        **{name: [counts[place] for counts in recorder.counts] for place, name in enumerate(COUNTS)},
    }


def _compact(columns: contract.Columns) -> contract.Columns:
    """Return the columns as Arrow arrays, without those that are all null. Each value takes 8 bytes at most."""
    import pyarrow as pa

    kinds = dict(contract.STEP_COLUMNS)
    arrays = {name: pa.array(values, pa.type_for_alias(kinds[name])) for name, values in columns.items()}
    return {name: values for name, values in arrays.items() if name == "step" or values.null_count < len(values)}


def _cpu_ns(span: PhaseSpan | StageSpan) -> int | None:
    """Return the span's CPU time in ns; None if unknown. At most the span's length, because readings err by NEAR_NS."""
    return None if span.cpu_ns is None else max(0, min(span.cpu_ns, span.end_ns - span.start_ns))
