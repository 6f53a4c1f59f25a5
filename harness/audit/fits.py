"""What two batch sizes tell: step time = fixed + per sample x batch size. An inference, and it says on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.audit.checks import Setting, setting_of, step_s, tokens_per_step
from harness.audit.flops import Convention
from harness.audit.solve import FittedReading
from harness.audit.table import AuditRow, Optimizer, Table
from trainer.devices.flops import parameters
from trainer.devices.roofline import FOREACH_ADAMW_PASSES, FUSED_ADAMW_PASSES, NORM_PASSES

# Reads and writes of parameter-sized tensors for the gradient norm (trainer/roofline.py counts the optimizer's).
ODD = 0.8  # a fixed part this far below those of other kinds (or they below it) is not the same optimizer
GRADIENT_PASSES = {"none": 0, "norm": 1, "clip": NORM_PASSES}


@dataclass(frozen=True)
class Fit:
    """Least squares over the batch sizes of one kind of row (exact for two)."""

    kind: str
    rows: list[str]
    batch_sizes: list[int]
    fixed_ms: float
    per_sample_ms: float
    flops_per_s: float | None
    """Of forward and backward: FLOPs of a sample / per_sample_ms."""
    share_of_peak: float | None
    doubtful: list[str]
    """Rows of it that are not consistent: the fit takes them at their word."""


@dataclass(frozen=True)
class Traffic:
    """Memory traffic of the optimizer per step: passes x parameters x bytes."""

    passes: int
    bytes: float
    ms_at_full_bandwidth: float | None
    assumption: str


@dataclass(frozen=True)
class FitEvidence:
    """What else in the table speaks for or against a reading of a row."""

    row: str
    reading: str
    supports: bool
    sentence: str


def fits_by_kind(table: Table, convention: Convention | None, doubtful: Mapping[str, bool]) -> list[Fit]:
    """One Fit for every kind that has at least two batch sizes at one sequence length and number of devices."""
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
    times = [_step_ms(row, setting) for row, setting in rows]
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


def _step_ms(row: AuditRow, setting: Setting) -> float:
    step = step_s(row, setting)
    assert step is not None  # rows without one were left out
    return step.middle * 1e3


def traffic(table: Table) -> Traffic | None:
    """None where optimizer or model shape are not declared."""
    optimizer, shape = table.declared.optimizer, table.declared.shape
    if optimizer is None or shape is None:
        return None
    passes = (FUSED_ADAMW_PASSES if optimizer.fused else FOREACH_ADAMW_PASSES) + GRADIENT_PASSES[
        optimizer.gradient_norm
    ]
    count = parameters(shape)
    moved = float(passes) * count * optimizer.bytes_per_value
    bandwidth = optimizer.memory_bandwidth_bytes_per_s
    return Traffic(passes, moved, None if bandwidth is None else moved / bandwidth * 1e3, _assumption(optimizer, count))


def _update_passes(optimizer: Optimizer) -> int:
    return FUSED_ADAMW_PASSES if optimizer.fused else FOREACH_ADAMW_PASSES


def _assumption(optimizer: Optimizer, count: int) -> str:
    update = _update_passes(optimizer)
    name = f"{optimizer.name or 'the optimizer'} {'' if optimizer.fused else 'not '}fused"
    text = f"{name}: {update} reads or writes of a tensor as large as the parameters"
    if norm := GRADIENT_PASSES[optimizer.gradient_norm]:
        what = "norm" if optimizer.gradient_norm == "norm" else "norm and clipping"
        text += f", {norm} more for the gradient {what}"
    return f"{text}; {count / 1e9:.2f} billion parameters of {optimizer.bytes_per_value} bytes"


def evidence(
    table: Table, convention: Convention | None, readings: Mapping[str, Sequence[FittedReading]], fits: Sequence[Fit]
) -> list[FitEvidence]:
    """For every row that a longer or shorter sequence would explain: its fit, and rows whose steps are as large."""
    found = []
    for row in table.rows:
        for reading in readings[row.name]:
            if reading.kind == "sequence" and reading.changes == 1:
                fixed, odd = _fit_evidence(row, fits)
                parts = [fixed, _twin_evidence(table, row, reading, convention, readings)]
                if said := " ".join(part for part in parts if part):
                    found.append(FitEvidence(row.name, f"sequence length {reading.value:,.0f}", odd, said))
    return found


def _fit_evidence(row: AuditRow, fits: Sequence[Fit]) -> tuple[str, bool]:
    """What the fixed part of its kind says, and whether it is so odd that the row cannot be what it declares."""
    mine = next((fit for fit in fits if row.name in fit.rows), None)
    sound = [fit.fixed_ms for fit in fits if not fit.doubtful]
    if mine is None or not sound:
        return "", False
    low, high = min(sound), max(sound)
    span = f"{low:.1f} to {high:.1f}" if len(sound) > 1 else f"{low:.1f}"
    text = (
        f"Taken at its word, {row.name} gives its kind a fixed part of {mine.fixed_ms:.1f} ms a step, where the other "
        f"kinds have {span} ms."
    )
    if mine.fixed_ms < ODD * low or mine.fixed_ms > high / ODD:
        return f"{text} One optimizer cannot do both: its step is probably not what is declared.", True
    return text, False


def _twin_evidence(
    table: Table,
    row: AuditRow,
    reading: FittedReading,
    convention: Convention | None,
    readings: Mapping[str, Sequence[FittedReading]],
) -> str:
    tokens = tokens_per_step(row, reading.setting)
    if row.tflops is None or tokens is None:
        return ""
    said = []
    for other in table.rows:
        setting = setting_of(other, table.declared, convention)
        if other.kind != row.kind or other is row or readings[other.name] or other.tflops is None:
            continue
        if tokens_per_step(other, setting) == tokens:
            change = row.tflops.value / other.tflops.value - 1
            said.append(
                f"At {reading.value:,.0f} its step holds {tokens:,.0f} tokens, as many as that of {other.name}, and "
                f"reaches {row.tflops.text} TFLOP/s against {other.tflops.text} ({change * 100:+.1f} %)."
            )
    return " ".join(said)
