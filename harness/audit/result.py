"""Defines the findings of an audit as records; harness.audit.text writes their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.audit.checks import AuditCheck, AuditStatus, Setting
from harness.audit.fits import Clue, Fit, Traffic
from harness.audit.flops import Convention
from harness.audit.gains import Gain, Incomparable
from harness.audit.scatter import Scatter
from harness.audit.solve import Excluded, FittedReading
from harness.audit.table import Interval, Table


@dataclass(frozen=True)
class Formula:
    """One way to count FLOPs per token, and the rows that it makes consistent out of ``of`` that depend on it."""

    convention: Convention
    gflops_per_token: float
    """GFLOP per token at the table's sequence length."""
    rows: list[str]
    of: int


@dataclass(frozen=True)
class RowAudit:
    """Result of the audit for one row: checks, readings that explain it, inferences. None: not derivable."""

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
    """Tokens/s at the declared sequence length with the same FLOP/s, if a firm reading has another length."""
    alike: list[FittedReading]
    """Readings that count the same FLOPs per token."""
    scatter: Scatter | None
    """Scatter of several rows that includes this row."""

    @property
    def gflops_per_token(self) -> float | None:
        return None if self.implied is None else self.implied.middle / 1e9

    @property
    def expected_gflops_per_token(self) -> float | None:
        """GFLOP per token of the declared model shape; None if shape or sequence length are unknown."""
        flops = self.setting.flops_per_token
        return None if flops is None else flops / 1e9


@dataclass(frozen=True)
class Audit:
    """All findings of ``harness audit`` on ``table``. ``formulas``: every tried formula for FLOPs per token."""

    table: Table
    rows: list[RowAudit]
    formulas: Mapping[Convention, Formula]
    gains: list[Gain]
    fits: list[Fit]
    traffic: Traffic | None
    evidence: list[Clue]
    """Evidence elsewhere in the table for or against readings of rows."""
    scatters: list[Scatter]
