"""Solve an inconsistent row for a plausible sequence length, or number of devices, that makes it consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, log2, sqrt
from typing import Literal

from harness.audit.checks import MFU, STEP, TFLOPS, TOKENS, Convention, Setting, fits, rates, witnesses
from harness.audit.policy import LENGTH_STEP, SEQUENCE_SHORTEST, VALUES_TRIED_MAX
from harness.audit.table import AuditRow, Interval, common

UnknownKind = Literal[
    "formula", "scale", "sequence", "devices", "total", "unit", "peak", "padding", "average", "duration"
]
SOLVED_ROUNDING = 1e-9  # relative error of binary arithmetic in a solved value


@dataclass(frozen=True)
class NamedPeak:
    """Device whose peak may have been used ("": the declared one doubled); ``sparse``: with 2:4 sparsity."""

    device: str
    dtypes: tuple[str, ...] = ()
    sparse: bool = False


@dataclass(frozen=True)
class FittedReading:
    """A changed declaration (or two) that makes a row consistent. ``free``: would fit any figure, so proves nothing."""

    kind: UnknownKind
    setting: Setting
    value: float | None = None
    low: float | None = None  # ``low`` to ``high``: range of ``value`` that the row's digits allow.
    high: float | None = None
    free: bool = False
    changes: int = 1
    firm: bool = False  # True if neither normal scatter nor the number of tried readings explains the fit
    coverage: float | None = None  # Share of figures, about as far off, that an equally simple reading would fit
    shared: int = 1  # Number of rows that the same change makes consistent
    base: Convention | None = None  # Formula of the other rows, if this reading is a change on top of it
    as_others: bool = False  # True, with two changes, if the formula is that of the other rows, not only of this one
    was: float | None = None  # Declared value instead of ``value``
    figures: tuple[str, ...] = ()  # unit: the figure; padding: those that count real tokens; scale: part of the work
    others: tuple[str, ...] = ()  # "padding": the figures that count all positions.
    among: int = 1  # Number of values of this kind that fit, including this one
    most: float | None = None  # "devices": the largest fitting number.
    peaks: tuple[NamedPeak, ...] = ()  # "peak": known devices with this peak.

    @property
    def gflops_per_token(self) -> float | None:
        flops = self.setting.flops_per_token if self.kind in ("formula", "sequence") else None
        return None if flops is None else flops / 1e9


@dataclass(frozen=True)
class Excluded:
    """Kind of reading that does not explain a row. ``coverage``: share (0 to 1) of random figures that it would fit."""

    kind: UnknownKind
    why: Literal["none fits", "figures disagree", "needed", "agrees", "declared", "unspecific"]
    needed: Interval | None = None
    coverage: float | None = None
    reading: FittedReading | None = None  # Reading that would fit if the declaration were different


def sequences(
    row: AuditRow, setting: Setting, excluded: list[Excluded], powers_only: bool = False
) -> Iterator[FittedReading]:
    """Yield the most plausible other sequence length: a power of two if one fits, else the closest to the middle."""
    intervals = list(_sequence_intervals(row, setting))
    allowed = common(intervals)
    if allowed is None:
        if intervals:
            excluded.append(Excluded("sequence", "figures disagree"))
        return
    lengths = plausible_lengths(allowed, powers_only)
    hits = [length for length in lengths if length != setting.sequence and fits(row, replace(setting, sequence=length))]
    if not hits:
        if not lengths:
            excluded.append(Excluded("sequence", "needed", allowed))
        return
    best = min(hits, key=lambda length: (not log2(length).is_integer(), abs(length - allowed.middle)))
    read = replace(setting, sequence=best)
    yield FittedReading("sequence", read, best, allowed.low, allowed.high, was=setting.sequence, among=len(hits))


def _sequence_intervals(row: AuditRow, setting: Setting) -> Iterator[Interval]:
    """Yield each range of sequence lengths that follows from the row's figures. Each uses other figures."""
    work, convention = _work(row, setting), setting.convention
    rate = rates(row, setting)
    if convention is not None and convention.attention_per_position and work is not None:
        if name := _fixed_rate(row, rate):
            flops = work * setting.devices / rate[name]
            ends = [convention.sequence_length(flops.low), convention.sequence_length(flops.high)]
        elif row.batch_size is not None and row.step_ms is not None:
            # The step's tokens grow with the length too: batch x s x (6 N + a s) = work x step time.
            sample = work * (row.step_ms.interval * 1e-3) / row.batch_size
            n, a = 6.0 * convention.weights, convention.attention_per_position
            ends = [(sqrt(n * n + 4 * a * flops) - n) / (2 * a) for flops in (sample.low, sample.high)]
        else:
            ends = []
        if ends and ends[1] > 0:
            yield Interval(max(ends[0], 1e-9), ends[1])
    if row.tokens_per_step is None and row.batch_size is not None and row.step_ms is not None and TOKENS in rate:
        yield rate[TOKENS] * (row.step_ms.interval * 1e-3) / (row.batch_size * setting.devices)


def _work(row: AuditRow, setting: Setting) -> Interval | None:
    """Return the FLOP/s of one device that both TFLOP/s and MFU x peak allow; None without any."""
    figures = witnesses(row, setting)
    return common([figures[name] for name in (TFLOPS, MFU) if name in figures])


def _fixed_rate(row: AuditRow, rate: Mapping[str, Interval]) -> str | None:
    """Return the key of a rate in ``rate`` that depends neither on sequence length nor on devices; None without one."""
    if TOKENS in rate:
        return TOKENS
    return STEP if STEP in rate and row.tokens_per_step is not None else None


def plausible_lengths(allowed: Interval, powers_only: bool = False) -> list[int]:
    """Return the powers of two and multiples of LENGTH_STEP in ``allowed``; the shortest VALUES_TRIED_MAX of many."""
    first, last = (
        ceil(log2(max(allowed.low * (1 - SOLVED_ROUNDING), SEQUENCE_SHORTEST))),
        floor(log2(max(allowed.high * (1 + SOLVED_ROUNDING), 1))),
    )
    lengths = {2**power for power in range(first, last + 1)}
    if not powers_only:
        start = ceil(allowed.low * (1 - SOLVED_ROUNDING) / LENGTH_STEP)
        end = min(floor(allowed.high * (1 + SOLVED_ROUNDING) / LENGTH_STEP), start + VALUES_TRIED_MAX)
        lengths |= {LENGTH_STEP * factor for factor in range(max(start, 1), end + 1)}
    return sorted(lengths)


def devices(row: AuditRow, setting: Setting, excluded: list[Excluded]) -> Iterator[FittedReading]:
    """Yield a reading with the smallest other number of devices that fits, and one with TFLOP/s of all devices."""
    rate, work, flops = rates(row, setting), _work(row, setting), setting.flops_per_token
    allowed = []
    if flops is not None and work is not None and (name := _fixed_rate(row, rate)):
        allowed.append(rate[name] * flops / work)
    if row.batch_size and row.tokens_per_step is None and row.step_ms and setting.sequence and TOKENS in rate:
        allowed.append(rate[TOKENS] * (row.step_ms.interval * 1e-3) / (row.batch_size * setting.sequence))
    needed = common(allowed)
    if needed is not None:
        fewest = max(1, ceil(needed.low * (1 - SOLVED_ROUNDING)))
        numbers = range(fewest, min(floor(needed.high * (1 + SOLVED_ROUNDING)), fewest + VALUES_TRIED_MAX) + 1)
        hits = [n for n in numbers if n != setting.devices and fits(row, replace(setting, devices=n))]
        for n in hits[:1]:
            read = replace(setting, devices=n)
            among = len(hits)
            yield FittedReading(
                "devices", read, n, needed.low, needed.high, was=setting.devices, among=among, most=hits[-1]
            )
        if not hits and not numbers:
            excluded.append(Excluded("devices", "needed", needed))
    if setting.devices > 1 and row.tflops is not None:
        total = replace(row, tflops=row.tflops.times(1 / setting.devices))
        if fits(total, setting):
            yield FittedReading("total", setting, was=setting.devices)
