"""Find readings (single changes of declared values, else pairs) that make a row consistent, and weigh their fit.

Changes with a free parameter fit almost any figure, so they do not count. The evidence of a fit is the share of random
figures, up to twice as far off, that some reading of the kind would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import log

import numpy as np
from numpy.typing import NDArray

from harness.audit import policy
from harness.audit.checks import MFU, STEP, TFLOPS, TOKENS, Convention, Setting, fits, rates, witnesses
from harness.audit.scatter import Relation
from harness.audit.solve import Excluded, FittedReading, NamedPeak, devices, sequences
from harness.audit.table import AuditedFigure, AuditRow, Interval, Peak, common

# Factors on the FLOPs if a publication counts only a part of the work, or more than the model needs.
SCALES = {"forward": 1 / 3, "backward": 2 / 3, "recomputation": 4 / 3, "fused": 1 / 2, "twice": 2.0}
FIELDS = {TOKENS: "tokens_per_s", TFLOPS: "tflops", MFU: "mfu_percent", STEP: "step_ms"}
UNITS = {TOKENS: (1e3, 1e-3), TFLOPS: (1e3, 1e-3), MFU: (1e2, 1e-2), STEP: (1e3, 1e-3)}


@dataclass(frozen=True)
class Search:
    """Result of :func:`search`: readings that make a row consistent, and kinds of readings that were tried in vain."""

    fits: list[FittedReading]
    excluded: list[Excluded]


def search(row: AuditRow, setting: Setting, known: Sequence[Convention], peaks: Sequence[Peak]) -> Search:
    """Return the readings that make ``row`` consistent, and excluded kinds; pairs if only those with a free parameter
    fit.
    """
    excluded: list[Excluded] = []
    fitting = [
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
    if all(reading.free for reading in fitting):
        fitting += _pairs(row, setting, known)
    return Search(fitting, list(dict.fromkeys(excluded)))


def _formulas(
    row: AuditRow, setting: Setting, known: Sequence[Convention], excluded: list[Excluded]
) -> Iterator[FittedReading]:
    tried = [replace(setting, convention=formula) for formula in known if formula != setting.convention]
    if setting.sequence is None or not tried:
        return
    hits = [candidate for candidate in tried if fits(row, candidate)]
    if not hits:
        excluded.append(Excluded("formula", "none fits"))
    yield from (FittedReading("formula", hit) for hit in hits)


def _scales(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """Yield readings in which the publication counts a fixed part or multiple of the FLOPs (:data:`SCALES`)."""
    if setting.flops_per_token is None:
        return
    for part, scale in SCALES.items():
        scaled = replace(setting, scale=scale)
        if fits(row, scaled):
            yield FittedReading("scale", scaled, figures=(part,))


def _units(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """Yield readings in which one figure has another unit than its column."""
    for name, factors in UNITS.items():
        for factor in factors:
            if (converted := in_unit(row, name, factor)) is not None and fits(converted, setting):
                yield FittedReading("unit", setting, factor, figures=(name,))


def in_unit(row: AuditRow, name: str, factor: float) -> AuditRow | None:
    """Return ``row`` with its figure ``name`` multiplied by ``factor``; None if the row does not give it."""
    field = FIELDS[name]
    figure: AuditedFigure | None = getattr(row, field)
    return None if figure is None else replace(row, **{field: figure.times(factor)})  # type: ignore[arg-type]


def _pairs(row: AuditRow, setting: Setting, known: Sequence[Convention]) -> Iterator[FittedReading]:
    """Yield readings that change the formula and also sequence length (powers of two), devices, or averaged steps."""
    for formula in known:
        if formula == setting.convention:
            continue
        base, ignored = replace(setting, convention=formula), list[Excluded]()
        for second in (
            *sequences(row, base, ignored, powers_only=True),
            *devices(row, base, ignored),
            *averages(row, base),
        ):
            yield replace(second, changes=2)


def peaks_behind(
    row: AuditRow, setting: Setting, peaks: Sequence[Peak], excluded: list[Excluded]
) -> Iterator[FittedReading]:
    """Yield the reading that MFU is relative to another peak, and the devices that have it; else fill ``excluded``."""
    figures = witnesses(row, setting)
    work = common([interval for name, interval in figures.items() if name != MFU])
    if row.mfu_percent is None or setting.peak_flops_per_s is None or len(figures) < 2:
        return
    if work is None:
        excluded.append(Excluded("peak", "figures disagree"))
        return
    needed = work / (row.mfu_percent.interval * 0.01)
    if needed.holds(setting.peak_flops_per_s):
        excluded.append(Excluded("peak", "agrees"))
        return
    with_peak = replace(setting, peak_flops_per_s=needed.middle)
    if not fits(row, with_peak):
        return
    names = _devices_with(needed, peaks)
    if needed.holds(2 * setting.peak_flops_per_s):
        names.append(NamedPeak("", sparse=True))
    names += _devices_with(needed / 2, peaks, sparse=True)
    declared_peak = setting.peak_flops_per_s
    yield FittedReading(
        "peak", with_peak, needed.middle, needed.low, needed.high, free=not names, was=declared_peak, peaks=tuple(names)
    )


def _devices_with(needed: Interval, peaks: Sequence[Peak], sparse: bool = False) -> list[NamedPeak]:
    """Return the known devices with a peak within ``needed`` (FLOP/s). ``sparse``: True for peaks with 2:4 sparsity."""
    dtypes: dict[str, list[str]] = {}
    for peak in peaks:
        if needed.holds(peak.flops_per_s):
            dtypes.setdefault(peak.device, []).append(peak.dtype)
    return [NamedPeak(device, tuple(matching), sparse) for device, matching in dtypes.items()]


def paddings(row: AuditRow, setting: Setting, excluded: list[Excluded]) -> Iterator[FittedReading]:
    """Yield readings in which some figures count real tokens only; told to ``excluded`` if the row declares none."""
    figures = witnesses(row, setting) or rates(row, setting)
    for size in range(1, len(figures)):
        for names in combinations(figures, size):
            real, all_positions = (
                {name: figures[name] for name in figures if (name in names) == is_named} for is_named in (True, False)
            )
            first, second = common(list(real.values())), common(list(all_positions.values()))
            if STEP in real or first is None or second is None:  # The time of a step covers all its positions.
                continue
            share = first / second
            if share.low >= 1 or share.overlaps(Interval(1, 1)):
                continue
            ends = share.middle, share.low, min(share.high, 1.0)
            reading = FittedReading("padding", setting, *ends, True, figures=(*real,), others=(*all_positions,))
            if row.padded is False:
                excluded.append(Excluded("padding", "declared", reading=reading))
                continue
            yield reading


def averages(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    """Yield the reading that tokens/s and step time are of different steps: they differ by AVERAGE_WITHIN at most."""
    rate = rates(row, setting)
    if len(rate) < 2 or rate[TOKENS].overlaps(rate[STEP]):
        return
    difference = rate[TOKENS].middle / rate[STEP].middle - 1
    if abs(difference) <= policy.AVERAGE_WITHIN and fits(replace(row, tokens_per_s=None), setting):
        yield FittedReading("average", setting, difference, free=True)


def durations(row: AuditRow, setting: Setting) -> Iterator[FittedReading]:
    if row.duration_s is None or row.steps is None or fits(row, setting):
        return
    if fits(replace(row, duration_s=None), setting):
        needed = row.duration_s.interval / row.steps
        yield FittedReading("duration", setting, needed.middle * 1e3, needed.low * 1e3, needed.high * 1e3, free=True)


Shifts = NDArray[np.float64]  # logarithms of the factors by which changes move a :class:`Relation`

NONE: Shifts = np.zeros(0)
USUAL_LENGTHS: Shifts = 2.0 ** np.arange(7, 18, dtype=np.float64)  # 128 to 131,072
USUAL_DEVICES: Shifts = 2.0 ** np.arange(13, dtype=np.float64)  # 1 to 4,096


@dataclass(frozen=True)
class Readings:
    """All changes that could be tried for a row, as shifts (logarithms) of the ratio of the figures in ``relation``."""

    row: AuditRow
    setting: Setting
    known: Sequence[Convention]
    peaks: Sequence[Peak]
    relation: Relation

    def coverage(self, reading: FittedReading, half: float | None = None) -> float:
        """Return the share of random figures, as far off, that readings as simple as ``reading`` fit. ``half``:
        rounding.
        """
        shifts = [self._usual]
        if reading.changes > 1 or not _is_usual(reading):
            shifts.append(self._unusual)
        if reading.changes > 1:
            shifts.append(self._pairs)
        return _covered(np.concatenate(shifts), self.relation, self.relation.half if half is None else half)

    @cached_property
    def _usual(self) -> Shifts:
        """Shifts of common errors: formulas, peaks, units, and powers of two as length or number of devices."""
        declared = self.setting
        work = self._work()
        parts = [np.log(list(SCALES.values())) if work else NONE]
        if declared.flops_per_token is not None and declared.sequence is not None:
            flops = [convention.flops_per_token(declared.sequence) for convention in self.known]
            parts.append(np.log(np.array(flops) / declared.flops_per_token) if work else NONE)
        parts.append(self._by_length(USUAL_LENGTHS, declared.convention))
        parts.append(self._by_devices(USUAL_DEVICES))
        if declared.peak_flops_per_s is not None:
            peaks = [peak.flops_per_s for peak in self.peaks]
            tried_peaks = np.array([2 * declared.peak_flops_per_s, *peaks, *(2 * peak for peak in peaks)])
            parts.append(np.log(tried_peaks / declared.peak_flops_per_s) if self._of(MFU) else NONE)
        units = [factor for name, factors in UNITS.items() if self._of(name) for factor in factors]
        total = [declared.devices] if self._of(TFLOPS) and declared.devices > 1 else []
        moved = np.log(np.array([*units, *total], dtype=np.float64))
        return np.concatenate([*parts, moved, -moved])

    @cached_property
    def _unusual(self) -> Shifts:
        """Shifts of all tried sequence lengths (multiples of LENGTH_STEP, powers of two) and all numbers of devices."""
        powers = 2.0 ** np.arange(log(policy.SEQUENCE_SHORTEST, 2), log(policy.SEQUENCE_LONGEST, 2) + 1)
        multiples = np.arange(policy.LENGTH_STEP, policy.SEQUENCE_LONGEST + 1.0, policy.LENGTH_STEP)
        lengths = self._by_length(np.concatenate([powers, multiples]), self.setting.convention)
        return np.concatenate([lengths, self._by_devices(np.arange(1.0, policy.DEVICES_TRIED_MAX + 1))])

    @cached_property
    def _pairs(self) -> Shifts:
        """Shifts of pairs of changes: another formula, and a power of two as length or another number of devices."""
        powers = 2.0 ** np.arange(log(policy.SEQUENCE_SHORTEST, 2), log(policy.SEQUENCE_LONGEST, 2) + 1)
        declared, parts = self.setting, [NONE]
        if declared.sequence is None or declared.flops_per_token is None:
            return parts[0]
        devices = self._by_devices(np.arange(1.0, policy.DEVICES_TRIED_MAX + 1))
        for convention in self.known:
            parts.append(self._by_length(powers, convention))
            moved = log(convention.flops_per_token(declared.sequence) / declared.flops_per_token)
            parts.append(devices + (moved if self._work() else 0.0))
        return np.concatenate(parts)

    def _of(self, *names: str) -> bool:
        return self.relation.first in names or self.relation.second in names

    def _work(self) -> bool:
        """Return True if the relation compares a token rate with FLOP/s, so that it depends on the FLOPs per token."""
        return self._of(TOKENS, STEP) and self._of(TFLOPS, MFU)

    def _per_batch(self) -> float:
        """Return the exponent (1 or -1) with which computed tokens per step enter the ratio; 0: not at all."""
        if not self._of(STEP) or self.row.tokens_per_step is not None or self.row.batch_size is None:
            return 0.0
        return 1.0 if self._of(TFLOPS, MFU) else -1.0

    def _by_length(self, lengths: Shifts, convention: Convention | None) -> Shifts:
        declared = self.setting
        if declared.sequence is None:
            return NONE
        moved: Shifts = self._per_batch() * np.log(lengths / declared.sequence)
        if self._work() and convention is not None and declared.flops_per_token is not None:
            flops = 6.0 * convention.weights + convention.attention_per_position * lengths
            moved = moved + np.log(flops / declared.flops_per_token)
        nonzero: Shifts = moved[moved != 0]
        return nonzero

    def _by_devices(self, numbers: Shifts) -> Shifts:
        moved: Shifts = self._per_batch() * np.log(numbers / self.setting.devices)
        if self._work():
            moved = moved - np.log(numbers / self.setting.devices)
        nonzero: Shifts = moved[moved != 0]
        return nonzero


def _is_usual(reading: FittedReading) -> bool:
    if reading.kind == "sequence":
        return reading.value in USUAL_LENGTHS
    return reading.kind != "devices" or reading.value in USUAL_DEVICES


def _covered(shifts: Shifts, relation: Relation, half: float) -> float:
    """Return the share of random figures, as far off, that a shift brings within ``half``; those that agree do not
    count.
    """
    window = max(policy.AS_FAR_OFF_RATIO * abs(relation.center), 2 * half)
    # A reading that shifts the relation by t fits a center of -t. The window is symmetric around 0, so signs agree.
    near = np.unique(np.append(shifts[np.abs(shifts) <= window + half], 0.0))
    low, high = np.clip(near - half, -window, window), np.clip(near + half, -window, window)
    previous = np.concatenate([[-window], high[:-1]])
    covered = float(np.maximum(high - np.maximum(low, previous), 0.0).sum())
    return max(covered - 2 * half, 0.0) / (2 * (window - half))
