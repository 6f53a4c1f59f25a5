"""Defines a published results table as the audit uses it; harness.audit.load documents the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.audit.figures import AuditedFigure
from trainer.model import Shape


@dataclass(frozen=True)
class Optimizer:
    """Optimizer that a publication declares, with the facts that determine its memory traffic."""

    name: str | None
    fused: bool
    bytes_per_value: int
    gradient_norm: Literal["none", "norm", "clip"]
    memory_bandwidth_bytes_per_s: float | None


@dataclass(frozen=True)
class Declared:
    """Declarations of a publication for all rows. None: not declared, so checks that need it are impossible."""

    shape: Shape | None = None
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    dtype: str | None = None
    optimizer: Optimizer | None = None
    notes: str | None = None


@dataclass(frozen=True)
class AuditRow:
    """One row of a published table: printed figures, and declarations of its own (None: those of the table hold)."""

    name: str
    kind: str | None = None
    data: str | None = None
    batch_size: int | None = None
    tokens_per_step: int | None = None
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    padded: bool | None = None
    tokens_per_s: AuditedFigure | None = None
    mfu_percent: AuditedFigure | None = None
    tflops: AuditedFigure | None = None
    step_ms: AuditedFigure | None = None
    steps: int | None = None
    duration_s: AuditedFigure | None = None
    source: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Noise:
    """Difference between identical runs, as fractions from ``low`` to ``high``. ``source``: where this is published."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Peak:
    """Dense peak of a known device at one dtype."""

    device: str
    dtype: str
    flops_per_s: float


@dataclass(frozen=True)
class Table:
    """A published results table, read by :func:`harness.audit.load.load_published`.

    ``isolated_ms``: milliseconds per sample of each data path by itself.
    """

    title: str
    source: str
    rows: Sequence[AuditRow]
    declared: Declared = field(default_factory=Declared)
    isolated_ms: dict[str, AuditedFigure] = field(default_factory=dict)
    compare: Sequence[tuple[str, str]] | None = None
    """(baseline, candidate); None: derived from batch sizes and isolated figures."""
    noise: Noise | None = None
    """Noise of identical runs in this publication."""
    typical_noise: Noise | None = None
    """Noise of identical runs elsewhere: shown with the verdict, but it decides nothing."""
