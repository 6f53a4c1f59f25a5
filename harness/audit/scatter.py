"""Measure how far two figures of a row are apart, and if separate measurements would explain it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from math import erf, erfc, log, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from harness.audit.checks import STEP, TOKENS, Setting, rates, witnesses
from harness.audit.policy import COMMON_FACTOR_SPREAD, INCONSISTENT_CHANCE, USUAL_SCATTER, WITNESS_ROWS_MIN
from harness.audit.table import AuditRow

Distances = NDArray[np.float64]
PER_DEVIATION = 1.4826  # standard deviations in the median distance of normal scatter


@dataclass(frozen=True)
class Relation:
    """Difference of two figures of a row that should agree: the natural logarithm of the first over the second."""

    first: str
    second: str
    center: float
    half: float  # Uncertainty from rounding on either side of ``center``

    @property
    def gap(self) -> float:
        """Distance of the two figures beyond rounding, as a logarithm; 0 if they agree."""
        return max(abs(self.center) - self.half, 0.0)

    @property
    def reach(self) -> float:
        """Largest possible distance of the two unrounded figures: absolute logarithm of their ratio."""
        return abs(self.center) + self.half


def relations(row: AuditRow, setting: Setting) -> list[Relation]:
    """Return how far each two comparable figures of ``row`` differ. ``setting``: formula, length, devices, peak."""
    reported, rate = witnesses(row, setting), rates(row, setting)
    pairs = [(a, b, reported[a], reported[b]) for a, b in combinations(reported, 2) if {a, b} != {TOKENS, STEP}]
    if len(rate) == 2:  # Needs neither the shape nor the peak.
        pairs.append((TOKENS, STEP, rate[TOKENS], rate[STEP]))
    found = []
    for first, second, one, other in pairs:
        low, high = log((one / other).low), log((one / other).high)
        found.append(Relation(first, second, (low + high) / 2, (high - low) / 2))
    return found


def worst(row: AuditRow, setting: Setting) -> Relation | None:
    """Return the relation whose two figures are furthest apart; None if no two figures can be compared."""
    return max(relations(row, setting), key=lambda pair: (pair.gap, pair.reach), default=None)


def chance_of_scatter(one: Relation, others: Sequence[Relation]) -> float:
    """Return the probability (0 to 1) that normal scatter makes two figures differ at least as much as ``one``.

    The median of ``others`` (same figures, other rows) is its scale; few make it uncertain. It is at most that of
    USUAL_SCATTER, unless WITNESS_ROWS_MIN or more others scatter by more.
    """
    usual = erfc(one.gap / USUAL_SCATTER / sqrt(2))
    if not others:
        return usual
    scale = sorted(relation.reach for relation in others)[len(others) // 2]
    chance = _beyond_median(one.gap / scale, len(others)) if scale > 0 else 0.0
    if len(others) >= WITNESS_ROWS_MIN:
        middle = median(relation.center for relation in others)
        spread = sorted(abs(relation.center - middle) - relation.half for relation in others)[len(others) // 2]
        if spread * PER_DEVIATION > USUAL_SCATTER:
            return chance
    return min(chance, usual)


def beyond_scatter(one: Relation, others: Sequence[Relation]) -> bool:
    """Return True if scatter explains ``one`` at most with INCONSISTENT_CHANCE (a tenth if most others are apart)."""
    count = sum(relation.gap > 0 for relation in others)
    return chance_of_scatter(one, others) <= (
        INCONSISTENT_CHANCE / 10 if 2 * count > len(others) else INCONSISTENT_CHANCE
    )


@cache
def _distances() -> tuple[Distances, Distances, Distances]:
    """Return (distances in standard deviations, normal probability within each, beyond each), both sides counted."""
    distance = np.geomspace(1e-6, 30, 2000)
    inner = np.array([erf(value / sqrt(2)) for value in distance])
    return distance, inner, np.array([erfc(value / sqrt(2)) for value in distance])


@lru_cache(maxsize=256)
def _median_of(others: int) -> Distances:
    """Return the density of the (upper) median of ``others`` normal distances, at the points of :func:`_distances`."""
    _, inner, _ = _distances()
    rank, clipped = others // 2 + 1, np.clip(inner, 1e-300, 1 - 1e-16)
    logarithm = (rank - 1) * np.log(clipped) + (others - rank) * np.log1p(-clipped)
    weight: Distances = np.exp(logarithm - logarithm.max())
    return weight / float(np.trapezoid(weight, inner))


def _beyond_median(times: float, others: int) -> float:
    """Return the chance that a normal distance exceeds ``times`` the (upper) median of ``others`` such distances."""
    distance, inner, outer = _distances()
    return float(np.trapezoid(_median_of(others) * np.interp(times * distance, distance, outer), inner))


@dataclass(frozen=True)
class Scatter:
    """Two figures that should agree but differ in several rows. ``low``, ``high``, ``typical``: logs of their ratio."""

    first: str
    second: str
    rows: list[str]  # Rows whose two figures differ beyond rounding
    of: int
    typical: float  # One standard deviation of the difference
    low: float
    high: float
    above: int  # Number of rows in which the first figure is larger
    common: bool  # True if all rows differ by about the same amount, so that one common cause is likelier than scatter


def scatters(reported: Mapping[str, Sequence[Relation]], explained: Collection[str]) -> list[Scatter]:
    """Return a :class:`Scatter` for each group of two or more rows in which the same two figures differ.

    ``reported``: relations, by row name. ``explained``: rows to leave out. Of several in the same rows, the widest.
    """
    pairs_by_figures: dict[tuple[str, str], dict[str, Relation]] = {}
    for name, pairs in reported.items():
        if name not in explained:
            for pair in pairs:
                pairs_by_figures.setdefault((pair.first, pair.second), {})[name] = pair
    widest: dict[tuple[str, ...], Scatter] = {}
    for (first, second), pairs_by_row in pairs_by_figures.items():
        differing = {name: pair for name, pair in pairs_by_row.items() if pair.gap > 0}
        if len(differing) >= 2:
            scatter = _scatter(first, second, differing, list(pairs_by_row.values()))
            if scatter.typical > widest.get(tuple(differing), scatter).typical or tuple(differing) not in widest:
                widest[tuple(differing)] = scatter
    return list(widest.values())


def _scatter(first: str, second: str, apart: Mapping[str, Relation], every: Sequence[Relation]) -> Scatter:
    centers = [pair.center for pair in apart.values()]
    low, high, middle = min(centers), max(centers), median(centers)
    return Scatter(
        first,
        second,
        list(apart),
        len(every),
        median(abs(pair.center) for pair in every) * PER_DEVIATION,
        low,
        high,
        sum(center > 0 for center in centers),
        high - low <= COMMON_FACTOR_SPREAD * abs(middle),
    )
