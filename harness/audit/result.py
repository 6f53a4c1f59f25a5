"""Defines the findings of an audit: the dataclasses that ``harness audit --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass

from harness.audit.checks import AuditCheck, AuditStatus
from harness.audit.fits import Fit, ReadingSupport, Traffic
from harness.audit.gains import Gain
from harness.audit.scatter import Scatter


@dataclass(frozen=True)
class Formula:
    """A way to count FLOPs per token, and which of the rows that depend on it it fits."""

    words: str
    gflops_per_token: float
    """At the table's sequence length."""
    rows: list[str]
    of: int


@dataclass(frozen=True)
class NamedReading:
    """A reading as it is reported (readings.FittedReading without its setting)."""

    kind: str
    words: str
    value: float | None
    low: float | None
    high: float | None
    gflops_per_token: float | None
    free: bool
    """It has a parameter that fits any figure, so it cannot be known from the table."""
    changes: int
    firm: bool
    """Neither honest scatter nor the number of readings that were tried explains that it fits."""
    coverage: float | None
    """Of figures up to twice as far off, the share that a reading as simple would fit; null where that is any."""
    shared: int
    """Rows that the same change makes consistent."""


@dataclass(frozen=True)
class RowAudit:
    """One row: what was checked, what would explain it, and what follows. None: not derivable."""

    name: str
    status: AuditStatus
    checks: list[AuditCheck]
    readings: list[NamedReading]
    excluded: list[str]
    step_ms: float | None
    gflops_per_token: float | None
    """From TFLOP/s (else MFU x peak) and tokens/s."""
    expected_gflops_per_token: float | None
    incomparable: str | None
    """Why its tokens/s cannot be held against other rows'."""
    tokens_per_s_as_declared: float | None
    """Inference: at the declared sequence length with the same FLOP/s, where another length is a reading."""
    sentence: str


@dataclass(frozen=True)
class Audit:
    """Everything ``harness audit`` says. ``conclusion``: two lines, of the rows and of the gains."""

    title: str
    source: str
    notes: str | None
    conclusion: list[str]
    rows: list[RowAudit]
    formulas: list[Formula]
    formula_sentence: str | None
    gains: list[Gain]
    gains_sentence: str | None
    fits: list[Fit]
    traffic: Traffic | None
    evidence: list[ReadingSupport]
    scatters: list[Scatter]
    scatter_sentences: list[str]
