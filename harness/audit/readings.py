"""Finds readings that make an inconsistent row consistent: every single change of a declared value is tried.

Two changes at once are tried only where no single change fits, except changes that fit almost any figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.audit.assume import averages, durations, paddings, peaks_behind
from harness.audit.checks import MFU, STEP, TFLOPS, TOKENS, Setting, fits
from harness.audit.figures import AuditedFigure
from harness.audit.flops import Convention
from harness.audit.solve import Excluded, FittedReading, devices, sequences
from harness.audit.table import AuditRow, Peak

# Shares of the work that FLOPs may be counted of.
SCALES = {"forward": 1 / 3, "backward": 2 / 3, "recomputation": 4 / 3, "fused": 1 / 2, "twice": 2.0}
FIELDS = {TOKENS: "tokens_per_s", TFLOPS: "tflops", MFU: "mfu_percent", STEP: "step_ms"}
UNITS = {TOKENS: (1e3, 1e-3), TFLOPS: (1e3, 1e-3), MFU: (1e2, 1e-2), STEP: (1e3, 1e-3)}


@dataclass(frozen=True)
class Search:
    """Readings that fit, and what was tried and does not."""

    fits: list[FittedReading]
    excluded: list[Excluded]


def search(row: AuditRow, setting: Setting, known: Sequence[Convention], peaks: Sequence[Peak]) -> Search:
    """All single changes of ``setting`` that make ``row`` consistent; pairs too, where all of those are free."""
    excluded: list[Excluded] = []
    found = [
        *_formulas(row, setting, known, excluded),
        *_scales(row, setting),
        *_units(row, setting),
        *sequences(row, setting, excluded),
        *devices(row, setting, excluded),
        *peaks_behind(row, setting, peaks, excluded),
        *paddings(row, setting, excluded),
        *averages(row, setting),
        *durations(row, setting),
    ]
    if all(one.free for one in found):
        found += _pairs(row, setting, known)
    return Search(found, list(dict.fromkeys(excluded)))


def _formulas(
    row: AuditRow, setting: Setting, known: Sequence[Convention], excluded: list[Excluded]
) -> Iterator[FittedReading]:
    tried = [replace(setting, convention=one) for one in known if one != setting.convention]
    if setting.sequence is None or not tried:
        return
    hits = [one for one in tried if fits(row, one)]
    if not hits:
        excluded.append(Excluded("formula", "none fits"))
    yield from (FittedReading("formula", one) for one in hits)


def _scales(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """FLOPs of a part of the work, or of more than the model needs."""
    if setting.flops_per_token is None:
        return
    for part, scale in SCALES.items():
        one = replace(setting, scale=scale)
        if fits(row, one):
            yield FittedReading("scale", one, figures=(part,))


def _units(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """A figure printed in another unit than its column's."""
    for name, factors in UNITS.items():
        for factor in factors:
            if (other := in_unit(row, name, factor)) is not None and fits(other, setting):
                yield FittedReading("unit", setting, factor, figures=(name,))


def in_unit(row: AuditRow, name: str, factor: float) -> AuditRow | None:
    """``row`` with the figure ``name`` times ``factor``; None where it gives no such figure."""
    field = FIELDS[name]
    figure: AuditedFigure | None = getattr(row, field)
    return None if figure is None else replace(row, **{field: figure.times(factor)})  # type: ignore[arg-type]


def _pairs(row: AuditRow, setting: Setting, known: Sequence[Convention]) -> Iterator[FittedReading]:
    """Another formula together with one more change that leaves nothing free (lengths: powers of two alone)."""
    for one in known:
        if one == setting.convention:
            continue
        base, ignored = replace(setting, convention=one), list[Excluded]()
        for second in (
            *sequences(row, base, ignored, powers_only=True),
            *devices(row, base, ignored),
            *averages(row, base),
        ):
            yield replace(second, changes=2)
