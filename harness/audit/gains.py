"""Judge published gains: the ceiling from the isolated figures, and whether noise explains the gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.audit.checks import setting_of, step_s, tokens_per_step
from harness.audit.table import AuditedFigure, AuditRow, Interval, Table

GainVerdict = Literal[
    "not comparable",
    "no ceiling",
    "loss with a faster data path",
    "gain with a slower data path",
    "above the ceiling",
    "below the floor",
    "possible",
]
NoiseVerdict = Literal["inside the noise", "outside the noise", "undecidable"]


@dataclass(frozen=True)
class Gain:
    """A candidate row against its baseline. Ratios are of tokens/s, above 1: candidate faster. None: not derivable."""

    baseline: str
    candidate: str
    measured: float | None
    measured_low: float | None  # ``measured_low`` to ``measured_high``: the range that the printed digits allow.
    measured_high: float | None
    isolated: float | None  # speedup of the data path alone, candidate over baseline
    step_ms: float | None  # Of the baseline, like the next three fields
    data_ms: float | None  # Isolated data time of one step: batch size x ms per sample.
    candidate_data_ms: float | None
    ceiling_all: float | None  # Ratio if the whole data time were exposed and removed
    ceiling: float | None  # ratio if the whole data time were exposed and replaced by the candidate's; below 1: slower
    verdict: GainVerdict
    noise: NoiseVerdict | None
    unexplained: float | None  # fraction of the measured ratio that the data path cannot explain; 0 if it explains all
    reason: NotComparable | None  # Why the gain cannot be judged


@dataclass(frozen=True)
class Incomparable:
    """Reason why a row's tokens/s cannot be compared: the change that would make the row consistent.

    "sequence", "devices": to ``value``. "padding": tokens do not count padding. "nothing fits": no tried change does.
    "not known": other changes do, none for certain.
    """

    kind: Literal["sequence", "devices", "padding", "nothing fits", "not known"]
    value: float | None = None


@dataclass(frozen=True)
class NotComparable:
    """Reason why a gain cannot be judged: ``row`` contradicts itself, ``tokens`` differ, or (None) no common figure."""

    row: str | None = None
    doubt: Incomparable | None = None
    tokens: tuple[float, float] | None = None


def gains(table: Table, trusted: Mapping[str, Incomparable | None]) -> list[Gain]:
    """Return the gain of each declared (else derived) pair. ``trusted``: why a row's tokens/s cannot be compared, if
    so.
    """
    rows = {row.name: row for row in table.rows}
    pairs = list(_derived(table)) if table.compare is None else table.compare
    return [_gain(table, rows[baseline], rows[candidate], trusted) for baseline, candidate in pairs]


def _derived(table: Table) -> Iterator[tuple[str, str]]:
    """Yield (slowest data path, another one) for rows of equal batch size."""
    by_batch: dict[int | None, list[AuditRow]] = {}
    for row in table.rows:
        if row.data in table.isolated_ms:
            by_batch.setdefault(row.batch_size, []).append(row)
    for rows in by_batch.values():
        baseline = max(rows, key=lambda row: table.isolated_ms[row.data or ""].value)
        yield from ((baseline.name, row.name) for row in rows if row.data != baseline.data)


def _gain(table: Table, baseline: AuditRow, candidate: AuditRow, trusted: Mapping[str, Incomparable | None]) -> Gain:
    measured = _measured(baseline, candidate)
    step = step_s(baseline, setting_of(baseline, table.declared, None))
    step_ms = None if step is None else step * 1e3
    baseline_ms, candidate_ms = (_data_ms(row, table.isolated_ms) for row in (baseline, candidate))
    ceiling = _replaced(step_ms, baseline_ms, candidate_ms)
    reason = _incomparable(table, baseline, candidate, trusted, measured)
    verdict: GainVerdict = "not comparable"
    unexplained: float | None = None
    noise: NoiseVerdict | None = None
    if reason is None and measured is not None:
        verdict, unexplained = ("no ceiling", None) if ceiling is None else _judge(measured, ceiling)
        noise = "undecidable"
        if table.noise is not None:
            noise = "inside the noise" if abs(measured.value - 1) <= table.noise.high else "outside the noise"
    return Gain(
        baseline.name,
        candidate.name,
        _value(measured),
        None if measured is None else measured.interval.low,
        None if measured is None else measured.interval.high,
        None if baseline_ms is None or candidate_ms is None else baseline_ms.value / candidate_ms.value,
        None if step_ms is None else step_ms.middle,
        _value(baseline_ms),
        _value(candidate_ms),
        _value(_replaced(step_ms, baseline_ms, None)),
        _value(ceiling),
        verdict,
        noise,
        unexplained,
        reason,
    )


def _value(figure: AuditedFigure | None) -> float | None:
    return None if figure is None else figure.value


def _measured(baseline: AuditRow, candidate: AuditRow) -> AuditedFigure | None:
    """Return candidate speed / baseline speed: of tokens/s, else from step times; None if the rows share neither."""
    for first, second in ((candidate.tokens_per_s, baseline.tokens_per_s), (baseline.step_ms, candidate.step_ms)):
        if first is not None and second is not None:
            return AuditedFigure("", first.value / second.value, first.interval / second.interval)
    return None


def _data_ms(row: AuditRow, isolated: Mapping[str, AuditedFigure]) -> AuditedFigure | None:
    if row.data is None or row.data not in isolated or row.batch_size is None:
        return None
    return isolated[row.data].times(row.batch_size)


def _replaced(step_ms: Interval | None, old: AuditedFigure | None, new: AuditedFigure | None) -> AuditedFigure | None:
    """Return the speedup if data took ``new`` ms (None: 0) instead of ``old``, all exposed. None if that may be all."""
    if step_ms is None or old is None:
        return None
    saved_low = old.interval.low - (new.interval.high if new else 0.0)
    saved_high = old.interval.high - (new.interval.low if new else 0.0)
    if saved_high >= step_ms.low:
        return None
    ends = [step / (step - saved) for step in (step_ms.low, step_ms.high) for saved in (saved_low, saved_high)]
    saved = old.value - (new.value if new else 0.0)
    return AuditedFigure("", step_ms.middle / (step_ms.middle - saved), Interval(min(ends), max(ends)))


def _incomparable(
    table: Table,
    baseline: AuditRow,
    candidate: AuditRow,
    trusted: Mapping[str, Incomparable | None],
    measured: AuditedFigure | None,
) -> NotComparable | None:
    for row in (baseline, candidate):
        if trusted.get(row.name) is not None:
            return NotComparable(row.name, trusted[row.name])
    if measured is None:
        return NotComparable()
    tokens = [tokens_per_step(row, setting_of(row, table.declared, None)) for row in (baseline, candidate)]
    if tokens[0] is not None and tokens[1] is not None and tokens[0] != tokens[1]:
        return NotComparable(tokens=(tokens[0], tokens[1]))
    return None


def _judge(measured: AuditedFigure, ceiling: AuditedFigure) -> tuple[GainVerdict, float]:
    """Return the verdict, and the fraction of ``measured`` that lies outside of what the data path can cause."""
    top, bottom = max(ceiling.interval.high, 1.0), min(ceiling.interval.low, 1.0)
    faster = ceiling.value >= 1
    if measured.interval.high < bottom:
        return "loss with a faster data path" if faster else "below the floor", 1 - measured.value / bottom
    if measured.interval.low > top:
        return "above the ceiling" if faster else "gain with a slower data path", measured.value / top - 1
    return "possible", 0.0


def unexplained(found: Sequence[Gain]) -> Gain | None:
    """Return the gain that lies furthest outside of what its data path can cause; None if none lies outside."""
    excessive = [gain for gain in found if gain.unexplained]
    return max(excessive, key=lambda gain: gain.unexplained or 0.0, default=None)
