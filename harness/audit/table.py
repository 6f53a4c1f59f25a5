"""Defines a published results table as the audit uses it: plain data, without files and without judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.audit.figures import AuditedFigure
from trainer.model import Shape


@dataclass(frozen=True)
class Optimizer:
    """What the publication (or the author of the file) says of the optimizer; enough to count its memory traffic."""

    name: str | None
    fused: bool
    bytes_per_value: int
    """Of one element of weight, gradient and moment."""
    gradient_norm: Literal["none", "norm", "clip"]
    memory_bandwidth_bytes_per_s: float | None


@dataclass(frozen=True)
class Declared:
    """What the publication declares for all rows. None: not declared, so what needs it is not checkable."""

    shape: Shape | None = None
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    """Of one device, dense."""
    dtype: str | None = None
    optimizer: Optimizer | None = None
    notes: str | None = None


@dataclass(frozen=True)
class AuditRow:
    """One published row: figures as printed, and what it declares of itself (None: as the table declares)."""

    name: str
    kind: str | None = None
    """Rows of one kind differ in batch size alone: two of them give the fixed part of a step and the rest."""
    data: str | None = None
    """Which isolated figure is this row's data path."""
    batch_size: int | None = None
    """Samples per device and optimizer step."""
    tokens_per_step: int | None = None
    """Over all devices; None: batch size x sequence length x devices."""
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    padded: bool | None = None
    tokens_per_s: AuditedFigure | None = None
    """Over all devices."""
    mfu_percent: AuditedFigure | None = None
    tflops: AuditedFigure | None = None
    """TFLOP/s of one device."""
    step_ms: AuditedFigure | None = None
    """Of one optimizer step."""
    steps: int | None = None
    duration_s: AuditedFigure | None = None
    source: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Noise:
    """How far identical runs differ, as fractions, and the source of that."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Peak:
    """A device's dense peak in FLOP/s at one dtype."""

    device: str
    dtype: str
    flops_per_s: float


@dataclass(frozen=True)
class Table:
    """A published table. ``isolated_ms``: milliseconds per sample of each data path by itself."""

    title: str
    source: str
    rows: Sequence[AuditRow]
    declared: Declared = field(default_factory=Declared)
    isolated_ms: dict[str, AuditedFigure] = field(default_factory=dict)
    compare: Sequence[tuple[str, str]] | None = None
    """(baseline, candidate); None: derived from batch sizes and isolated figures."""
    noise: Noise | None = None
    """Of identical runs in this publication."""
    typical_noise: Noise | None = None
    """Of identical runs elsewhere: shown with the verdict, never used as this table's own."""
