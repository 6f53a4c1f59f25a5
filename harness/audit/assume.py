"""Tries readings of an inconsistent row with a parameter that can fit almost any figure; a fit proves little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from harness.audit.checks import MFU, STEP, TOKENS, Setting, fits, rates, witnesses
from harness.audit.figures import Interval, common
from harness.audit.solve import FittedReading, span
from harness.audit.table import AuditRow, Peak
from harness.show.words import listing

AVERAGE_WITHIN = 0.05  # tokens/s further from the step time than this is no matter of averaging over other steps


def peaks_behind(
    row: AuditRow, setting: Setting, peaks: Sequence[Peak], excluded: list[str]
) -> Iterator[FittedReading]:
    """Another peak behind the MFU: solved, then named where a known device has it."""
    given = witnesses(row, setting)
    work = common([interval for name, interval in given.items() if name != MFU])
    if row.mfu_percent is None or setting.peak_flops_per_s is None or len(given) < 2:
        return
    if work is None:
        excluded.append("no other peak (the figures without MFU disagree already)")
        return
    needed = work / (row.mfu_percent.interval * 0.01)
    if needed.holds(setting.peak_flops_per_s):
        excluded.append("no other peak (MFU agrees with the declared one)")
        return
    one = replace(setting, peak_flops_per_s=needed.middle)
    if not fits(row, one):
        return
    names = _devices_with(needed, peaks)
    if needed.holds(2 * setting.peak_flops_per_s):
        names.append("twice the declared peak, as with 2:4 sparsity")
    names += [f"{name} with 2:4 sparsity" for name in _devices_with(needed / 2, peaks)]
    text = f"a peak of {needed.middle / 1e12:,.4g} TFLOP/s instead of {setting.peak_flops_per_s / 1e12:,.4g}"
    text += f": {listing(names)}" if names else " (no known device has it)"
    yield FittedReading("peak", text, one, needed.middle, needed.low, needed.high, free=not names)


def _devices_with(needed: Interval, peaks: Sequence[Peak]) -> list[str]:
    """``gh200 (bf16, fp16)``: known devices with a peak in ``needed``."""
    dtypes: dict[str, list[str]] = {}
    for peak in peaks:
        if needed.holds(peak.flops_per_s):
            dtypes.setdefault(peak.device, []).append(peak.dtype)
    return [f"{device} ({', '.join(found)})" for device, found in dtypes.items()]


def paddings(row: AuditRow, setting: Setting, excluded: list[str]) -> Iterator[FittedReading]:
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
            text = (
                f"{listing(list(real))} counting real tokens alone and {listing(list(every))} all positions, "
                f"{_percent(share)} of them real"
            )
            if row.padded is False:
                excluded.append(f"no padding ({text}: the row is declared free of padding)")
                continue
            yield FittedReading("padding", text, setting, share.middle, share.low, min(share.high, 1.0), free=True)


def averages(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """Tokens/s of other steps than the one whose time is printed: logs smooth the one and not the other."""
    rate = rates(row, setting)
    if len(rate) < 2 or rate[TOKENS].overlaps(rate[STEP]):
        return
    apart = rate[TOKENS].middle / rate[STEP].middle - 1
    if abs(apart) <= AVERAGE_WITHIN and fits(replace(row, tokens_per_s=None), setting):
        text = f"tokens/s averaged over other steps than this step time ({apart:+.2%})".replace("%", " %")
        yield FittedReading("average", text, setting, apart, free=True)


def durations(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    if row.duration_s is None or row.steps is None or fits(row, setting):
        return
    if fits(replace(row, duration_s=None), setting):
        needed = row.duration_s.interval / row.steps
        text = f"a step of {span(needed * 1e3)} ms, or fewer steps (the duration is too short for them)"
        yield FittedReading(
            "duration", text, setting, needed.middle * 1e3, needed.low * 1e3, needed.high * 1e3, free=True
        )


def _percent(share: Interval) -> str:
    low, high = f"{share.low * 100:.2f}", f"{min(share.high, 1) * 100:.2f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
