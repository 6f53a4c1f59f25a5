"""Judge what the audit may claim about a row: firm readings, possible readings, scatter.

A reading is a changed declaration that makes a row consistent. It is firm if scatter and the number of tried readings
explain its fit with a chance of at most FIRM_CHANCE. It is not offered if equally simple readings fit most figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb, prod

from harness.audit import policy
from harness.audit.checks import AuditCheck, AuditStatus, Convention, Setting
from harness.audit.readings import FIELDS, Readings, in_unit
from harness.audit.scatter import (
    PER_DEVIATION,
    Relation,
    Scatter,
    beyond_scatter,
    chance_of_scatter,
    relations,
    scatters,
    worst,
)
from harness.audit.solve import Excluded, FittedReading, UnknownKind
from harness.audit.table import AuditedFigure, AuditRow, Interval, Peak


@dataclass(frozen=True)
class Candidate:
    """A row with its checks and its readings (changed declarations that make it consistent), to be judged."""

    row: AuditRow
    setting: Setting
    checks: Sequence[AuditCheck]
    readings: Sequence[FittedReading]
    excluded: Sequence[Excluded]

    @cached_property
    def worst(self) -> Relation | None:
        """The two figures of the row that are furthest apart; None if there is nothing to compare."""
        return worst(self.row, self.setting)

    def under_base(self, base: Convention | None) -> Setting:
        """Return the row's setting with the formula ``base`` instead of its own; None: with its own."""
        return self.setting if base is None else replace(self.setting, convention=base)


@dataclass(frozen=True)
class JudgedRow:
    """Verdict on a row. ``readings``: firm ones, then possible ones, then those with a free parameter."""

    status: AuditStatus
    readings: list[FittedReading]
    excluded: list[Excluded]
    scatter: Scatter | None  # Scatter of several rows that includes this row


@dataclass(frozen=True)
class Judgement:
    """Verdicts on all rows of a table by name, and the scatter that several rows share. Made by :func:`judge`."""

    rows: dict[str, JudgedRow]
    scatters: list[Scatter]


def judge(candidates: Sequence[Candidate], known: Sequence[Convention], peaks: Sequence[Peak]) -> Judgement:
    """Judge all rows together: the scatter of the other rows shows how much a row's figures may differ."""
    inexact = [entry for entry in candidates if (pair := entry.worst) is not None and pair.gap > 0]
    firm: dict[str, list[FittedReading]] = {}
    weighed: dict[str, list[FittedReading]] = {}
    tried: dict[tuple[str, Convention | None], Readings] = {}
    explaining: dict[Change, list[Candidate]] = {}

    def trying(one: Candidate, base: Convention | None, pair: Relation) -> Readings:
        if (one.row.name, base) not in tried:
            tried[one.row.name, base] = Readings(one.row, one.under_base(base), known, peaks, pair)
        return tried[one.row.name, base]

    def sharing(reading: FittedReading) -> list[Candidate]:
        change = _change(reading)
        if change not in explaining:
            explaining[change] = [entry for entry in inexact if _explains(reading, entry)]
        return explaining[change]

    for _ in range(2):  # In the second round, rows that a firm reading explains show the table's scatter.
        applied = {entry.row.name: next(iter(firm.get(entry.row.name, [])), None) for entry in candidates}
        reported = by_figures(
            {
                entry.row.name: relations(entry.row, entry.setting)
                if (reading := applied[entry.row.name]) is None
                else relations(*under(reading, entry.row, entry.setting))
                for entry in candidates
            }
        )
        for candidate in inexact:
            weighed[candidate.row.name] = [
                _weigh(candidate, reading, len(inexact), sharing, reported, trying) for reading in candidate.readings
            ]
            firm[candidate.row.name] = [reading for reading in weighed[candidate.row.name] if reading.firm]
    explained = [name for name, fitting in firm.items() if fitting]
    scattered = scatters({entry.row.name: relations(entry.row, entry.setting) for entry in candidates}, explained)
    judged = {}
    for candidate in candidates:
        name = candidate.row.name
        readings = weighed.get(name, [replace(reading, free=True) for reading in candidate.readings])
        judged[name] = _judged(candidate, readings, reported, scattered)
    return Judgement(judged, scattered)


Reported = Mapping[tuple[str, str], Sequence[tuple[str, Relation]]]
"""Relations of all rows, with the row of each, by the two figures that they compare."""


def by_figures(relations_of: Mapping[str, Sequence[Relation]]) -> Reported:
    """Group relations, each with its row, by the two figures that they compare. ``relations_of``: by row name."""
    grouped: dict[tuple[str, str], list[tuple[str, Relation]]] = {}
    for name, pairs in relations_of.items():
        for pair in pairs:
            grouped.setdefault((pair.first, pair.second), []).append((name, pair))
    return grouped


def like(one: Relation, but: Collection[str], reported: Reported) -> list[Relation]:
    """Return the relations of the same two figures as ``one`` in all rows except ``but``."""
    return [pair for name, pair in reported.get((one.first, one.second), ()) if name not in but]


def _weigh(
    one: Candidate,
    reading: FittedReading,
    off: int,
    sharers: Callable[[FittedReading], Sequence[Candidate]],
    reported: Reported,
    trying: Callable[[Candidate, Convention | None, Relation], Readings],
) -> FittedReading:
    """Return ``reading`` with its coverage, ``shared`` and ``firm``. ``off``: number of rows whose figures differ."""
    # If the other rows determine the formula, only the second change was looked for.
    single = reading if reading.base is None else replace(reading, changes=1)
    pair = worst(one.row, one.under_base(reading.base))
    if reading.free or pair is None or pair.gap == 0:
        return reading
    tried = trying(one, reading.base, pair)
    coverage = tried.coverage(single)
    sharing = [sharer for sharer in sharers(reading) if sharer is not one]
    unshared = like(pair, {one.row.name, *(sharer.row.name for sharer in sharing)}, reported)
    chance = coverage * chance_of_scatter(pair, unshared)
    if sharing:
        shares = [_share(reading, sharer) for sharer in sharing]
        coverage *= min(comb(off - 1, len(sharing)) * prod(shares), 1.0)
        joint = _joint([one, *sharing], pair)
        if joint is not None:  # One common offset of all rows is fitted as easily as one row.
            coverage = max(coverage, tried.coverage(single, joint))
        chance = coverage * chance_of_scatter(pair, [])
    # Many rows, or rows that are apart for another reason, show the scatter that the reading must exceed.
    exceeds_scatter = beyond_scatter(pair, unshared) or (
        len(unshared) < policy.WITNESS_ROWS_MIN and all(pair_elsewhere.gap == 0 for pair_elsewhere in unshared)
    )
    firm = exceeds_scatter and chance <= policy.FIRM_CHANCE and coverage <= policy.SPECIFIC_SHARE
    return replace(reading, firm=firm, coverage=coverage, shared=1 + len(sharing))


Change = tuple[str, Convention | None, float, float | str | None]


# Field of a setting that a kind of reading changes.
CHANGED: Mapping[UnknownKind, str] = {"sequence": "sequence", "devices": "devices", "peak": "peak_flops_per_s"}


def _change(reading: FittedReading) -> Change:
    """Return a key for the change that ``reading`` makes; the same change in another row has an equal key."""
    new = reading.setting
    value: float | str | None = f"{reading.figures[0]} {reading.value}" if reading.kind == "unit" else None
    if reading.kind in CHANGED:
        value = getattr(new, CHANGED[reading.kind])
    return reading.kind, new.convention, new.scale, value


def under(reading: FittedReading, row: AuditRow, setting: Setting) -> tuple[AuditRow, Setting]:
    """Return ``row`` and ``setting`` with the change that ``reading`` makes, which may come from another row."""
    new = reading.setting
    setting = replace(setting, convention=new.convention, scale=new.scale)
    if (field := CHANGED.get(reading.kind)) is not None:
        setting = replace(setting, **{field: getattr(new, field)})
    elif reading.kind == "total" and row.tflops is not None:
        row = replace(row, tflops=row.tflops.times(1 / setting.devices))
    elif reading.kind == "unit" and reading.value is not None:
        row = in_unit(row, reading.figures[0], reading.value) or row
    return row, setting


def _explains(reading: FittedReading, other: Candidate) -> bool:
    pair_before, pair_after = other.worst, worst(*under(reading, other.row, other.setting))
    return (
        pair_before is not None
        and pair_after is not None
        and pair_after.gap <= policy.UNEXPLAINED_SHARE * pair_before.gap
    )


def _share(reading: FittedReading, other: Candidate) -> float:
    """Return the share (0 to 1) of figures up to twice as far off as those of ``other`` that ``reading`` would fit."""
    pair_before, pair_after = other.worst, worst(*under(reading, other.row, other.setting))
    assert pair_before is not None
    assert pair_after is not None
    return min((pair_before.half + pair_after.gap) / (policy.AS_FAR_OFF_RATIO * abs(pair_before.center)), 1.0)


def _joint(sharing: Sequence[Candidate], pair: Relation) -> float | None:
    """Return half the range of differences (logarithms) that rounding allows in all of ``sharing``; None if none."""
    pairs = [
        relation
        for member in sharing
        for relation in relations(member.row, member.setting)
        if (relation.first, relation.second) == (pair.first, pair.second)
    ]
    low, high = (
        max(relation.center - relation.half for relation in pairs),
        min(relation.center + relation.half for relation in pairs),
    )
    return (high - low) / 2 if low <= high else None


def _judged(
    one: Candidate, found: Sequence[FittedReading], reported: Reported, scattered: Sequence[Scatter]
) -> JudgedRow:
    pair = one.worst
    if pair is None or pair.gap == 0:
        statuses = {check.status for check in one.checks}
        order: tuple[AuditStatus, ...] = ("inconsistent", "consistent")
        plain: AuditStatus = next((status for status in order if status in statuses), "not checkable")
        return JudgedRow(plain, list(found), list(one.excluded), None)
    firm = [reading for reading in found if reading.firm]
    free = [reading for reading in found if reading.free]
    possible = [reading for reading in found if not reading.firm and not reading.free]
    figures = {pair.first, pair.second}
    holding = (each for each in scattered if one.row.name in each.rows and figures & {each.first, each.second})
    shared_scatter = next(holding, None)
    exceeds_scatter = beyond_scatter(pair, like(pair, {one.row.name}, reported))
    excluded = list(one.excluded)
    if firm:
        return JudgedRow("inconsistent", [*firm, *_offered(possible, excluded), *free], excluded, None)
    if exceeds_scatter or shared_scatter is None or shared_scatter.common:
        status: AuditStatus = "inconsistent" if exceeds_scatter else "apart"
        return JudgedRow(status, [*_offered(possible, excluded), *free], excluded, shared_scatter)
    return JudgedRow("apart", free, excluded, shared_scatter)


def _offered(found: Sequence[FittedReading], excluded: list[Excluded]) -> list[FittedReading]:
    """Return readings of a coverage of at most OFFERED_SHARE; kinds of others go to ``excluded`` as "unspecific"."""
    useless: dict[UnknownKind, float] = {}
    for reading in found:
        if (reading.coverage or 0.0) > policy.OFFERED_SHARE:
            useless[reading.kind] = max(useless.get(reading.kind, 0.0), reading.coverage or 0.0)
    excluded += [Excluded(kind, "unspecific", coverage=coverage) for kind, coverage in useless.items()]
    return [entry for entry in found if (entry.coverage or 0.0) <= policy.OFFERED_SHARE]


def widened(row: AuditRow, deviation: float) -> AuditRow:
    """Return ``row`` with intervals of two figures that cover NORMAL_DEVIATIONS of a scatter of ``deviation``."""
    factor = 1 + policy.NORMAL_DEVIATIONS * deviation / 2
    changed = {}
    for field in FIELDS.values():
        figure: AuditedFigure | None = getattr(row, field)
        if figure is not None:
            interval = Interval(figure.interval.low / factor, figure.interval.high * factor)
            changed[field] = AuditedFigure(figure.text, figure.value, interval)
    return replace(row, **changed)  # type: ignore[arg-type]


def deviation_among(others: Sequence[Relation]) -> float:
    """Return the relative standard deviation of ``others`` beyond rounding, from their median; 0 without."""
    gaps = sorted(relation.gap for relation in others)
    return gaps[len(gaps) // 2] * PER_DEVIATION if gaps else 0.0
