"""Fits step time = fixed part + time per sample x batch size, and infers from it what a table does not state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.audit.checks import Convention, Setting, setting_of, step_s, tokens_per_step
from harness.audit.policy import ODD_FIXED_RATIO
from harness.audit.solve import FittedReading
from harness.audit.table import AuditRow, Table
from trainer.devices.estimates import FOREACH_ADAMW_PASSES, FUSED_ADAMW_PASSES, NORM_PASSES, parameters

# Reads and writes of parameter-sized tensors for the gradient norm (devices/estimates.py counts the optimizer's).
GRADIENT_PASSES = {"none": 0, "norm": 1, "clip": NORM_PASSES}


@dataclass(frozen=True)
class Fit:
    """Least-squares line of step time (ms) over batch size, through the rows of one kind (equal but for batch size)."""

    kind: str
    rows: list[str]
    batch_sizes: list[int]
    fixed_ms: float
    per_sample_ms: float
    flops_per_s: float | None  # FLOP/s of forward and backward: FLOPs of a sample / ``per_sample_ms``.
    share_of_peak: float | None
    doubtful: list[str]  # Inconsistent rows, whose figures the fit uses nevertheless


@dataclass(frozen=True)
class Traffic:
    """Memory traffic of the optimizer per step: ``bytes`` = ``passes`` x ``parameters`` x their bytes."""

    passes: int
    bytes: float
    ms_at_full_bandwidth: float | None
    update_passes: int
    norm_passes: int
    parameters: int


def fits_by_kind(table: Table, convention: Convention | None, doubtful: Mapping[str, bool]) -> list[Fit]:
    """Return a fit for each kind of row with several batch sizes at one sequence length and number of devices."""
    kinds: dict[tuple[str, float | None, float], list[tuple[AuditRow, Setting]]] = {}
    for row in table.rows:
        setting = setting_of(row, table.declared, convention)
        if row.kind is not None and row.batch_size is not None and step_s(row, setting) is not None:
            kinds.setdefault((row.kind, setting.sequence, setting.devices), []).append((row, setting))
    return [
        _fit(kind, rows, doubtful)
        for (kind, _, _), rows in kinds.items()
        if len({row.batch_size for row, _ in rows}) > 1
    ]


def _fit(kind: str, rows: Sequence[tuple[AuditRow, Setting]], doubtful: Mapping[str, bool]) -> Fit:
    sizes = [row.batch_size or 0 for row, _ in rows]
    times = [step.middle * 1e3 for row, setting in rows if (step := step_s(row, setting)) is not None]
    mean_size, mean_time = sum(sizes) / len(sizes), sum(times) / len(times)
    slope = sum((size - mean_size) * (time - mean_time) for size, time in zip(sizes, times, strict=True))
    slope /= sum((size - mean_size) ** 2 for size in sizes)
    setting = rows[0][1]
    flops = None
    if setting.flops_per_token is not None and setting.sequence is not None and slope > 0:
        flops = setting.flops_per_token * setting.sequence / (slope * 1e-3)
    return Fit(
        kind,
        [row.name for row, _ in rows],
        sizes,
        mean_time - slope * mean_size,
        slope,
        flops,
        flops / setting.peak_flops_per_s if flops is not None and setting.peak_flops_per_s else None,
        [row.name for row, _ in rows if doubtful[row.name]],
    )


def traffic(table: Table) -> Traffic | None:
    """Return the optimizer's memory traffic per step. None if the table declares no optimizer or no model shape."""
    optimizer, shape = table.declared.optimizer, table.declared.shape
    if optimizer is None or shape is None:
        return None
    update = FUSED_ADAMW_PASSES if optimizer.fused else FOREACH_ADAMW_PASSES
    norm = GRADIENT_PASSES[optimizer.gradient_norm]
    passes, count = update + norm, parameters(shape)
    moved = float(passes) * count * optimizer.bytes_per_value
    bandwidth = optimizer.memory_bandwidth_bytes_per_s
    return Traffic(passes, moved, None if bandwidth is None else moved / bandwidth * 1e3, update, norm, count)


@dataclass(frozen=True)
class FixedPart:
    """Fixed part (ms) of the step of one kind of rows; ``low_ms`` to ``high_ms``: those of consistent kinds."""

    fixed_ms: float
    low_ms: float
    high_ms: float
    kinds: int  # number of other kinds

    @property
    def odd(self) -> bool:
        """True if the fixed part is far outside the range of the consistent kinds, so a declaration may be wrong."""
        return self.fixed_ms < ODD_FIXED_RATIO * self.low_ms or self.fixed_ms > self.high_ms / ODD_FIXED_RATIO


@dataclass(frozen=True)
class Clue:
    """Evidence for ``sequence`` as the length at which ``row`` ran: its kind's fixed part, rows with as many tokens."""

    row: AuditRow
    sequence: float
    tokens: float | None
    fixed: FixedPart | None
    as_large: list[AuditRow]

    @property
    def supports(self) -> bool:
        """True if the fixed step time of the row's kind, as declared, is far from that of other kinds."""
        return self.fixed is not None and self.fixed.odd


def clues(
    table: Table,
    convention: Convention | None,
    readings: Mapping[str, Sequence[FittedReading]],
    consistent: Collection[str],
    fits: Sequence[Fit],
) -> list[Clue]:
    """Return evidence on the rows whose firm reading is another sequence length. ``consistent``: names of such rows."""
    clue_list = []
    for row in table.rows:
        for reading in readings[row.name]:
            if reading.kind == "sequence" and reading.changes == 1 and reading.value is not None:
                tokens = tokens_per_step(row, reading.setting)
                as_large = _as_large(table, row, tokens, convention, consistent)
                clue = Clue(row, reading.value, tokens, _fixed_part(row, fits), as_large)
                if clue.fixed is not None or clue.as_large:
                    clue_list.append(clue)
    return clue_list


def _fixed_part(row: AuditRow, fits: Sequence[Fit]) -> FixedPart | None:
    own_fit = next((fit for fit in fits if row.name in fit.rows), None)
    sound = [fit.fixed_ms for fit in fits if not fit.doubtful]
    return None if own_fit is None or not sound else FixedPart(own_fit.fixed_ms, min(sound), max(sound), len(sound))


def _as_large(
    table: Table, row: AuditRow, tokens: float | None, convention: Convention | None, consistent: Collection[str]
) -> list[AuditRow]:
    """Return the other consistent rows of ``row``'s kind with TFLOP/s and exactly ``tokens`` tokens per step."""
    if row.tflops is None or tokens is None:
        return []
    same_kind = (
        entry for entry in table.rows if entry.kind == row.kind and entry is not row and entry.tflops is not None
    )
    return [
        entry
        for entry in same_kind
        if entry.name in consistent and tokens_per_step(entry, setting_of(entry, table.declared, convention)) == tokens
    ]
