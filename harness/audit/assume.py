"""Tries readings of an inconsistent row with a parameter that can fit almost any figure; a fit proves little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from harness.audit.checks import MFU, STEP, TOKENS, Setting, fits, rates, witnesses
from harness.audit.figures import Interval, common
from harness.audit.policy import AVERAGE_WITHIN
from harness.audit.solve import Excluded, FittedReading, NamedPeak
from harness.audit.table import AuditRow, Peak


def peaks_behind(
    row: AuditRow, setting: Setting, peaks: Sequence[Peak], excluded: list[Excluded]
) -> Iterator[FittedReading]:
    """Another peak behind the MFU: solved, then named where a known device has it."""
    given = witnesses(row, setting)
    work = common([interval for name, interval in given.items() if name != MFU])
    if row.mfu_percent is None or setting.peak_flops_per_s is None or len(given) < 2:
        return
    if work is None:
        excluded.append(Excluded("peak", "figures disagree"))
        return
    needed = work / (row.mfu_percent.interval * 0.01)
    if needed.holds(setting.peak_flops_per_s):
        excluded.append(Excluded("peak", "agrees"))
        return
    one = replace(setting, peak_flops_per_s=needed.middle)
    if not fits(row, one):
        return
    names = _devices_with(needed, peaks)
    if needed.holds(2 * setting.peak_flops_per_s):
        names.append(NamedPeak("", sparse=True))
    names += _devices_with(needed / 2, peaks, sparse=True)
    was = setting.peak_flops_per_s
    yield FittedReading(
        "peak", one, needed.middle, needed.low, needed.high, free=not names, was=was, peaks=tuple(names)
    )


def _devices_with(needed: Interval, peaks: Sequence[Peak], sparse: bool = False) -> list[NamedPeak]:
    """Known devices with a peak in ``needed``."""
    dtypes: dict[str, list[str]] = {}
    for peak in peaks:
        if needed.holds(peak.flops_per_s):
            dtypes.setdefault(peak.device, []).append(peak.dtype)
    return [NamedPeak(device, tuple(found), sparse) for device, found in dtypes.items()]


def paddings(row: AuditRow, setting: Setting, excluded: list[Excluded]) -> Iterator[FittedReading]:
    """Some figures count real tokens alone, the others all positions: the share of real tokens it would take."""
    given = witnesses(row, setting) or rates(row, setting)
    for size in range(1, len(given)):
        for names in combinations(given, size):
            real, every = (
                {name: given[name] for name in given if (name in names) == inside} for inside in (True, False)
            )
            first, second = common(list(real.values())), common(list(every.values()))
            if STEP in real or first is None or second is None:  # a step takes the time of all its positions
                continue
            share = first / second
            if share.low >= 1 or share.overlaps(Interval(1, 1)):
                continue
            reading = FittedReading(
                "padding",
                setting,
                share.middle,
                share.low,
                min(share.high, 1.0),
                True,
                figures=(*real,),
                others=(*every,),
            )
            if row.padded is False:
                excluded.append(Excluded("padding", "declared", reading=reading))
                continue
            yield reading


def averages(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """Tokens/s of other steps than the one whose time is printed: logs smooth the one and not the other."""
    rate = rates(row, setting)
    if len(rate) < 2 or rate[TOKENS].overlaps(rate[STEP]):
        return
    apart = rate[TOKENS].middle / rate[STEP].middle - 1
    if abs(apart) <= AVERAGE_WITHIN and fits(replace(row, tokens_per_s=None), setting):
        yield FittedReading("average", setting, apart, free=True)


def durations(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    if row.duration_s is None or row.steps is None or fits(row, setting):
        return
    if fits(replace(row, duration_s=None), setting):
        needed = row.duration_s.interval / row.steps
        yield FittedReading("duration", setting, needed.middle * 1e3, needed.low * 1e3, needed.high * 1e3, free=True)
