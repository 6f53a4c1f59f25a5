"""Finds readings that make an inconsistent row consistent: every single change of a declared value is tried.

Two changes at once are tried only where no single change fits, except changes that fit almost any figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.audit.assume import averages, durations, paddings, peaks_behind
from harness.audit.checks import Setting, fits
from harness.audit.flops import Convention
from harness.audit.solve import FittedReading, devices, sequences
from harness.audit.table import AuditRow, Peak


@dataclass(frozen=True)
class Search:
    """Readings that fit, and as text what was tried and does not."""

    fits: list[FittedReading]
    excluded: list[str]


def search(row: AuditRow, setting: Setting, known: Sequence[Convention], peaks: Sequence[Peak]) -> Search:
    """All single changes of ``setting`` that make ``row`` consistent; pairs too, where all of those are free."""
    excluded: list[str] = []
    found = [
        *_formulas(row, setting, known, excluded),
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
    row: AuditRow, setting: Setting, known: Sequence[Convention], excluded: list[str]
) -> Iterator[FittedReading]:
    tried = [replace(setting, convention=one) for one in known if one != setting.convention]
    if setting.sequence is None or not tried:
        return
    hits = [one for one in tried if fits(row, one)]
    if not hits:
        excluded.append("no other way to count FLOPs per token")
    for one in hits:
        assert one.convention is not None
        yield FittedReading("formula", f"FLOPs counted {one.convention.text}", one)


def _pairs(row: AuditRow, setting: Setting, known: Sequence[Convention]) -> Iterator[FittedReading]:
    """Another formula together with one more change that leaves nothing free (lengths: powers of two alone)."""
    for one in known:
        if one == setting.convention:
            continue
        base, ignored = replace(setting, convention=one), list[str]()
        for second in (
            *sequences(row, base, ignored, powers_only=True),
            *devices(row, base, ignored),
            *averages(row, base),
        ):
            text = f"{second.text}, and FLOPs counted {one.text}"
            yield replace(second, text=text, changes=2)
