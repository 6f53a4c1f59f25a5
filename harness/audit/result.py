"""Defines the findings of an audit: records alone, which harness.audit.text words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.audit.checks import AuditCheck, AuditStatus, Setting
from harness.audit.figures import Interval
from harness.audit.fits import Clue, Fit, Traffic
from harness.audit.flops import Convention
from harness.audit.gains import Gain, Incomparable
from harness.audit.scatter import Scatter
from harness.audit.solve import Excluded, FittedReading
from harness.audit.table import Table


@dataclass(frozen=True)
class Formula:
    """A way to count FLOPs per token, and which of the rows that depend on it it fits."""

    convention: Convention
    gflops_per_token: float
    """At the table's sequence length."""
    rows: list[str]
    of: int


@dataclass(frozen=True)
class RowAudit:
    """One row: what was checked, what would explain it, and what follows. None: not derivable."""

    name: str
    status: AuditStatus
    checks: list[AuditCheck]
    readings: list[FittedReading]
    excluded: list[Excluded]
    step_ms: float | None
    implied: Interval | None
    """FLOPs per token, from TFLOP/s (else MFU x peak) and tokens/s."""
    setting: Setting
    incomparable: Incomparable | None
    tokens_per_s_as_declared: float | None
    """Inference: at the declared sequence length with the same FLOP/s, where another length is a reading."""
    alike: list[FittedReading]
    """Readings that count the same FLOPs per token."""
    scatter: Scatter | None
    """Scatter of several rows that this row is part of."""

    @property
    def gflops_per_token(self) -> float | None:
        return None if self.implied is None else self.implied.middle / 1e9

    @property
    def expected_gflops_per_token(self) -> float | None:
        """GFLOP per token of the declared shape."""
        flops = self.setting.flops_per_token
        return None if flops is None else flops / 1e9


@dataclass(frozen=True)
class Audit:
    """Everything that ``harness audit`` found in ``table``. ``formulas``: all that were tried."""

    table: Table
    rows: list[RowAudit]
    formulas: Mapping[Convention, Formula]
    gains: list[Gain]
    fits: list[Fit]
    traffic: Traffic | None
    evidence: list[Clue]
    """What else in the table speaks for or against a reading of a row."""
    scatters: list[Scatter]
