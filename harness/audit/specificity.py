"""Measure the evidence of a fit: the share of random figures that some reading of the same kind would fit.

A random figure is up to twice as far off as the printed one. This corrects for the number of tried readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from harness.audit.checks import MFU, STEP, TFLOPS, TOKENS, Setting
from harness.audit.flops import Convention
from harness.audit.policy import AS_FAR_OFF_RATIO, DEVICES_TRIED_MAX, LENGTH_STEP, SEQUENCE_LONGEST, SEQUENCE_SHORTEST
from harness.audit.readings import SCALES, UNITS
from harness.audit.scatter import Relation
from harness.audit.solve import FittedReading
from harness.audit.table import AuditRow, Peak

Shifts = NDArray[np.float64]

USUAL_LENGTHS: Shifts = 2.0 ** np.arange(7, 18, dtype=np.float64)  # 128 to 131,072
USUAL_DEVICES: Shifts = 2.0 ** np.arange(13, dtype=np.float64)  # 1 to 4,096


@dataclass(frozen=True)
class Readings:
    """All readings that could be tried for a row, as shifts (logarithms), to measure how many figures they fit."""

    row: AuditRow
    setting: Setting
    known: Sequence[Convention]
    peaks: Sequence[Peak]
    relation: Relation

    def coverage(self, reading: FittedReading, half: float | None = None) -> float:
        """Return the share of random figures that some reading, at most as complex, would fit. ``half``: rounding."""
        shifts = [self._usual]
        if reading.changes > 1 or not _is_usual(reading):
            shifts.append(self._unusual)
        if reading.changes > 1:
            shifts.append(self._pairs)
        return _covered(np.concatenate(shifts), self.relation, self.relation.half if half is None else half)

    @cached_property
    def _usual(self) -> Shifts:
        """Shifts by common errors: formulas, usual lengths and numbers of devices, peaks, factors, units."""
        declared = self.setting
        parts = [self._by_flops(np.log(list(SCALES.values())))]
        if declared.flops_per_token is not None and declared.sequence is not None:
            flops = [convention.flops_per_token(declared.sequence) for convention in self.known]
            parts.append(self._by_flops(np.log(np.array(flops) / declared.flops_per_token)))
        parts.append(self._by_length(USUAL_LENGTHS, declared.convention))
        parts.append(self._by_devices(USUAL_DEVICES))
        if declared.peak_flops_per_s is not None:
            peaks = [peak.flops_per_s for peak in self.peaks]
            tried_peaks = np.array([2 * declared.peak_flops_per_s, *peaks, *(2 * peak for peak in peaks)])
            parts.append(self._by_peak(np.log(tried_peaks / declared.peak_flops_per_s)))
        parts.append(self._by_unit())
        return np.concatenate(parts)

    @cached_property
    def _unusual(self) -> Shifts:
        """Shifts by any other sequence length (multiples of 64, powers of two) or number of devices."""
        powers = 2.0 ** np.arange(log(SEQUENCE_SHORTEST, 2), log(SEQUENCE_LONGEST, 2) + 1)
        multiples = np.arange(LENGTH_STEP, SEQUENCE_LONGEST + 1.0, LENGTH_STEP)
        lengths = self._by_length(np.concatenate([powers, multiples]), self.setting.convention)
        return np.concatenate([lengths, self._by_devices(np.arange(1.0, DEVICES_TRIED_MAX + 1))])

    @cached_property
    def _pairs(self) -> Shifts:
        """Shifts by another formula together with a power of two as length or another number of devices."""
        powers = 2.0 ** np.arange(log(SEQUENCE_SHORTEST, 2), log(SEQUENCE_LONGEST, 2) + 1)
        declared, parts = self.setting, [np.zeros(0)]
        if declared.sequence is None or declared.flops_per_token is None:
            return parts[0]
        devices = self._by_devices(np.arange(1.0, DEVICES_TRIED_MAX + 1))
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
        """Return the power (1 or -1) of a step's tokens in the relation; 0 if printed or not involved."""
        if not self._of(STEP) or self.row.tokens_per_step is not None or self.row.batch_size is None:
            return 0.0
        return 1.0 if self._of(TFLOPS, MFU) else -1.0

    def _by_flops(self, moved: Shifts) -> Shifts:
        return moved if self._work() else np.zeros(0)

    def _by_length(self, lengths: Shifts, convention: Convention | None) -> Shifts:
        declared = self.setting
        if declared.sequence is None:
            return np.zeros(0)
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

    def _by_peak(self, moved: Shifts) -> Shifts:
        return moved if self._of(MFU) else np.zeros(0)

    def _by_unit(self) -> Shifts:
        units = [factor for name, factors in UNITS.items() if self._of(name) for factor in factors]
        total = [self.setting.devices] if self._of(TFLOPS) and self.setting.devices > 1 else []
        moved = np.log(np.array([*units, *total], dtype=np.float64))
        return np.concatenate([moved, -moved])


def _is_usual(reading: FittedReading) -> bool:
    if reading.kind == "sequence":
        return reading.value in USUAL_LENGTHS
    return reading.kind != "devices" or reading.value in USUAL_DEVICES


def _covered(shifts: Shifts, relation: Relation, half: float) -> float:
    """Return the share of random figures, about as far off as ``relation``, that lie within ``half`` of a shift."""
    window = max(AS_FAR_OFF_RATIO * abs(relation.center), 2 * half)
    # A reading that shifts the relation by t fits a center of -t. The window is symmetric around 0, so signs agree.
    near = np.unique(np.append(shifts[np.abs(shifts) <= window + half], 0.0))
    low, high = np.clip(near - half, -window, window), np.clip(near + half, -window, window)
    previous = np.concatenate([[-window], high[:-1]])
    covered = float(np.maximum(high - np.maximum(low, previous), 0.0).sum())
    return max(covered - 2 * half, 0.0) / (2 * (window - half))
