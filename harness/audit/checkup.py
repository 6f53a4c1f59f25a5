"""Check a published results table against itself, as a pure function from Table to Audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.audit.checks import (
    MFU,
    TFLOPS,
    TOKENS,
    AuditCheck,
    AuditStatus,
    Convention,
    Setting,
    checks,
    conventions,
    fits,
    setting_of,
    step_s,
    witnesses,
)
from harness.audit.fits import Clue, Fit, Traffic, clues, fits_by_kind, traffic
from harness.audit.gains import Gain, Incomparable, gains
from harness.audit.judge import Candidate, JudgedRow, Reported, by_figures, deviation_among, judge, like, widened
from harness.audit.readings import search
from harness.audit.scatter import Scatter, beyond_scatter, relations, worst
from harness.audit.solve import SOLVED_ROUNDING, Excluded, FittedReading
from harness.audit.table import AuditRow, Interval, Peak, Table


@dataclass(frozen=True)
class Formula:
    """One way to count FLOPs per token. ``rows``: rows that it makes consistent. ``of``: number that depend on it."""

    convention: Convention
    gflops_per_token: float  # GFLOP per token at the table's sequence length
    rows: list[str]
    of: int


@dataclass(frozen=True)
class RowAudit:
    """Audit of one row: checks, readings (changed declarations) that make it consistent, derived figures or None."""

    name: str
    status: AuditStatus
    checks: list[AuditCheck]
    readings: list[FittedReading]
    excluded: list[Excluded]
    step_ms: float | None
    implied: Interval | None  # FLOPs per token, from TFLOP/s (else MFU x peak) and tokens/s
    setting: Setting
    incomparable: Incomparable | None
    tokens_per_s_as_declared: float | None  # at the declared length, if another one surely explains the row
    alike: list[FittedReading]  # Readings that count the same FLOPs per token
    scatter: Scatter | None  # scatter of several rows, this one among them

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
    evidence: list[Clue]  # evidence elsewhere in the table for or against explanations of rows
    scatters: list[Scatter]


def audit(table: Table, peaks: Sequence[Peak] = ()) -> Audit:
    """Check ``table`` and return all findings. ``peaks``: peaks of known devices, to name the device behind an MFU."""
    known_formulas = conventions(table.declared.shape) if table.declared.shape is not None else []
    formulas = _formulas(table, known_formulas)
    palm = known_formulas[0] if known_formulas else None
    # The table's own formula; not PaLM's only if another formula explains more rows.
    usual = max(known_formulas, key=lambda formula: len(formulas[formula].rows), default=None)
    settled = usual if usual is not None and len(formulas[usual].rows) > 1 else None
    printed = by_figures({row.name: relations(row, setting_of(row, table.declared, palm)) for row in table.rows})
    candidates = []
    for row in table.rows:
        setting = setting_of(row, table.declared, palm)
        read = row
        unsorted, excluded = _readings(row, setting, usual, settled, known_formulas, peaks)
        if all(reading.free for reading in unsorted) and (read := _beyond_scatter(row, setting, printed)) is not row:
            unsorted, excluded = _readings(read, setting, usual, settled, known_formulas, peaks)
        ordered = sorted(unsorted, key=lambda reading: (reading.free, _lonely(reading, formulas)))
        candidates.append(Candidate(read, setting, checks(row, setting), ordered, excluded))
    judged = judge(candidates, known_formulas, peaks)
    audited = [_row(row, one, judged.rows[row.name]) for row, one in zip(table.rows, candidates, strict=True)]
    # A row that is neither consistent nor explained for certain is no evidence.
    firm = {row.name: [reading for reading in judged.rows[row.name].readings if reading.firm] for row in table.rows}
    consistent = {row.name for row in audited if row.status == "consistent"}
    doubtful = {row.name: row.status == "inconsistent" for row in audited}
    fitted = fits_by_kind(table, palm, doubtful)
    return Audit(
        table,
        audited,
        formulas,
        gains(table, {row.name: row.incomparable for row in audited}),
        fitted,
        traffic(table) if fitted else None,
        clues(table, palm, firm, consistent, fitted),
        judged.scatters,
    )


def _beyond_scatter(row: AuditRow, setting: Setting, printed: Reported) -> AuditRow:
    """Return ``row``, widened by the scatter of the other rows if its figures differ by more than that."""
    pair = worst(row, setting)
    if pair is None or pair.gap == 0:
        return row
    witness_pairs = like(pair, {row.name}, printed)
    deviation = deviation_among(witness_pairs)
    if deviation == 0 or not beyond_scatter(pair, witness_pairs):
        return row
    return widened(row, deviation)


def _formulas(table: Table, known: Sequence[Convention]) -> dict[Convention, Formula]:
    """Return for each formula for FLOPs per token the rows that it makes consistent, out of those that depend on it."""
    rows = []
    for row in table.rows:
        figures = witnesses(row, setting_of(row, table.declared, known[0] if known else None))
        if set(figures) & {TFLOPS, MFU} and set(figures) - {TFLOPS, MFU}:
            rows.append(row)
    length = table.declared.sequence_length or next((row.sequence_length for row in rows if row.sequence_length), 0)
    return {
        convention: Formula(
            convention,
            convention.flops_per_token(length) / 1e9,
            [row.name for row in rows if fits(row, setting_of(row, table.declared, convention))],
            len(rows),
        )
        for convention in known
    }


def _lonely(one: FittedReading, formulas: dict[Convention, Formula]) -> bool:
    """Return True for a formula that fits no other of three or more rows: such readings are listed last."""
    formula = formulas.get(one.setting.convention) if one.setting.convention is not None else None
    return one.kind == "formula" and formula is not None and formula.of > 2 and len(formula.rows) == 1


def _readings(
    row: AuditRow,
    setting: Setting,
    usual: Convention | None,
    settled: Convention | None,
    known: Sequence[Convention],
    peaks: Sequence[Peak],
) -> tuple[list[FittedReading], list[Excluded]]:
    """Return the readings that make ``row`` consistent, and kinds of readings that do not; both empty if it is.

    ``usual``: formula that explains most rows; readings that change one more declaration are included. ``settled``:
    ``usual`` if it explains several rows, else None.
    """
    if fits(row, setting):
        return [], []
    first = search(row, setting, known, peaks)
    if usual is None or usual == setting.convention or fits(row, replace(setting, convention=usual)):
        return first.fits, first.excluded
    second = [
        replace(reading, changes=2, base=settled, as_others=True)
        for reading in search(row, replace(setting, convention=usual), known, peaks).fits
        if reading.kind != "formula" and reading.changes == 1
    ]
    single = [reading for reading in first.fits if reading.changes == 1]
    return (single + second if second else first.fits), first.excluded


def _row(row: AuditRow, one: Candidate, judged: JudgedRow) -> RowAudit:
    setting = one.setting
    step = step_s(row, setting)
    figures = witnesses(row, setting)
    work = figures.get(TFLOPS) or figures.get(MFU)
    rate = next((figures[name] for name in figures if name not in (TFLOPS, MFU)), None)
    expected = setting.flops_per_token
    implied = None if work is None or rate is None or expected is None else work * expected / rate
    as_declared = None
    other_length = any(reading.kind == "sequence" and reading.firm for reading in judged.readings)
    if work is not None and expected is not None and other_length:
        as_declared = work.middle * setting.devices / expected
    return RowAudit(
        row.name,
        judged.status,
        list(one.checks),
        judged.readings,
        judged.excluded,
        None if step is None else step.middle * 1e3,
        implied,
        setting,
        _incomparable(judged.status, judged.readings),
        as_declared,
        _alike(judged.readings),
        judged.scatter,
    )


def _alike(readings: Sequence[FittedReading]) -> list[FittedReading]:
    """Return formulas and lengths among ``readings`` with equal FLOPs per token; empty unless both kinds are."""
    counted = [(reading, reading.gflops_per_token) for reading in readings]
    for _, flops in counted:
        alike = [one for one, other in counted if flops and other and abs(other / flops - 1) <= SOLVED_ROUNDING]
        if len({one.kind for one in alike}) > 1:
            return alike
    return []


def _incomparable(status: AuditStatus, readings: Sequence[FittedReading]) -> Incomparable | None:
    if status != "inconsistent":
        return None
    for reading in sorted(readings, key=lambda entry: not entry.firm):
        if reading.kind == "sequence" or reading.kind == "devices":
            return Incomparable(reading.kind, reading.value)
    if any(entry.kind == "padding" and TOKENS in entry.figures for entry in readings):
        return Incomparable("padding")
    if any(entry.firm for entry in readings):
        return None
    return Incomparable("not known" if readings else "nothing fits")
