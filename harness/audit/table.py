"""Define a published results table as the audit uses it; harness.audit.load documents the keys.

A printed number is the interval of all values that would be printed the same: tolerances follow from digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import Literal

from trainer.model import Shape

FIGURE_ROUNDING = 1e-12  # relative error of binary arithmetic at decimal ends
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_FIGURE = re.compile(rf"(~)?\s*({_NUMBER})(?:\s*(?:-|–|to)\s*({_NUMBER}))?")
SMALLEST, LARGEST = Decimal("1e-30"), Decimal("1e30")
UNITS_S = {"s": 1.0, "min": 60.0, "hour": 3600.0, "hours": 3600.0, "day": 86400.0, "days": 86400.0}


@dataclass(frozen=True)
class Interval:
    """Values that a printed figure may stand for: from ``low`` to ``high``, both included, 0 < low <= high."""

    low: float
    high: float

    def __mul__(self, other: Interval | float) -> Interval:
        factor = _interval(other)
        return Interval(self.low * factor.low, self.high * factor.high)

    def __truediv__(self, other: Interval | float) -> Interval:
        divisor = _interval(other)
        return Interval(self.low / divisor.high, self.high / divisor.low)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def holds(self, value: float) -> bool:
        return self.low * (1 - FIGURE_ROUNDING) <= value <= self.high * (1 + FIGURE_ROUNDING)

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high * (1 + FIGURE_ROUNDING) and other.low <= self.high * (1 + FIGURE_ROUNDING)


def _interval(value: Interval | float) -> Interval:
    return value if isinstance(value, Interval) else Interval(value, value)


def common(intervals: list[Interval]) -> Interval | None:
    """Return the intersection of ``intervals``; None if empty. Pairwise overlap suffices (Helly's theorem)."""
    if not intervals:
        return None
    overlap = reduce(lambda a, b: Interval(max(a.low, b.low), min(a.high, b.high)), intervals)
    if overlap.low > overlap.high * (1 + FIGURE_ROUNDING):
        return None
    return overlap if overlap.low <= overlap.high else Interval(overlap.high, overlap.low)


@dataclass(frozen=True)
class AuditedFigure:
    """A printed number: its ``text``, its value, and the interval of values that would be printed the same."""

    text: str
    value: float
    interval: Interval

    def times(self, factor: float) -> AuditedFigure:
        return AuditedFigure(self.text, self.value * factor, self.interval * factor)


def read_figure(text: str) -> AuditedFigure:
    """Read a printed number. Raise ValueError, with the allowed forms, for other text.

    ``6544.40``: 6544.395 to 6544.405; ``178e3``: 177,500 to 178,500; ``48-49``: 47.5 to 49.5; ``~300``: 250 to 350.
    """
    match = _FIGURE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a figure; allowed: digits as printed (6544.40, 178e3), ~300, 48-49")
    is_approximate = match[1] is not None
    try:
        first, last = Decimal(match[2]), Decimal(match[3] or match[2])
    except ArithmeticError as error:  # The exponent exceeds the range of decimal numbers.
        raise ValueError(f"{text!r:.60}: no such number") from error
    if not SMALLEST <= first <= last <= LARGEST:
        limits = f"from {SMALLEST:.0e} to {LARGEST:.0e}"
        raise ValueError(f"{text!r:.60}: a figure is positive, {limits}, and a range goes upwards")
    low, high = first - _half_unit(first, is_approximate), last + _half_unit(last, is_approximate)
    return AuditedFigure(text.strip(), float((first + last) / 2), Interval(float(low), float(high)))


def read_duration(text: str) -> AuditedFigure:
    """Read a printed duration such as ``94.3 min`` or ``~4 days`` as seconds. Raise ValueError for other text."""
    number, _, unit = text.strip().rpartition(" ")
    if unit not in UNITS_S:
        raise ValueError(f"{text!r} is not a duration; allowed: a figure and s, min, hours or days (94.3 min, ~4 days)")
    figure = read_figure(number).times(UNITS_S[unit])
    return AuditedFigure(text.strip(), figure.value, figure.interval)


def _half_unit(value: Decimal, about: bool) -> Decimal:
    """Return half a unit of the last digit of ``value``; ``about`` (printed with "~"): of its last digit but zeros."""
    exponent = (value.normalize() if about else value).as_tuple().exponent
    assert isinstance(exponent, int)  # the pattern lets neither NaN nor infinity in
    return Decimal(5).scaleb(exponent - 1)


@dataclass(frozen=True)
class Optimizer:
    """Optimizer that a publication declares, with the facts that determine its memory traffic."""

    name: str | None
    fused: bool
    bytes_per_value: int
    gradient_norm: Literal["none", "norm", "clip"]
    memory_bandwidth_bytes_per_s: float | None


@dataclass(frozen=True)
class Declared:
    """Declarations of a publication for all rows. None: not declared, so checks that need it are impossible."""

    shape: Shape | None = None
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    dtype: str | None = None
    optimizer: Optimizer | None = None
    notes: str | None = None


@dataclass(frozen=True)
class AuditRow:
    """One row of a published table: printed figures, and declarations of its own (None: those of the table hold)."""

    name: str
    kind: str | None = None
    data: str | None = None
    batch_size: int | None = None
    tokens_per_step: int | None = None
    sequence_length: int | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    padded: bool | None = None
    tokens_per_s: AuditedFigure | None = None
    mfu_percent: AuditedFigure | None = None
    tflops: AuditedFigure | None = None
    step_ms: AuditedFigure | None = None
    steps: int | None = None
    duration_s: AuditedFigure | None = None
    source: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Noise:
    """Difference between identical runs, as fractions from ``low`` to ``high``. ``source``: where this is published."""

    low: float
    high: float
    source: str


@dataclass(frozen=True)
class Peak:
    """Dense peak (FLOP/s) of a known device at one dtype (number format)."""

    device: str
    dtype: str
    flops_per_s: float


@dataclass(frozen=True)
class Table:
    """A published results table. ``isolated_ms``: by name of the data path, ms per sample if it runs alone."""

    title: str
    source: str
    rows: Sequence[AuditRow]
    declared: Declared = field(default_factory=Declared)
    isolated_ms: dict[str, AuditedFigure] = field(default_factory=dict)
    compare: Sequence[tuple[str, str]] | None = None  # (baseline, candidate); None: by batch sizes and isolated figures
    noise: Noise | None = None  # Noise of identical runs in this publication
    typical_noise: Noise | None = None  # noise of identical runs elsewhere: shown, but decides nothing
