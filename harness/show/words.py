"""Formats numbers with their unit and only the digits that a measurement supports; also names and lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.explain.statistics import Estimate
from harness.judge.controls import ProbeCost
from harness.judge.cost import HOUR_S
from harness.judge.policy import USELESS_FLOOR
from harness.show.policy import LIMIT_DIGITS, SMALLEST_SHARE

MINUTE_S = 60.0
PROBES = {
    "ledger": "step ledger (always on)",
    "torch_profiler": "torch_profiler, while it records",
    "py_spy": "py_spy, while it samples",
}


def ratio(value: float) -> str:
    """Format a ratio: ``1.004x``, ``5.90x``, ``23.4x``."""
    return f"{times(value)}x"


def times(value: float) -> str:
    """Format a ratio as :func:`ratio` does, without the "x"."""
    return f"{value:.{3 if value < 2 else 2 if value < 10 else 1}f}"


def percent(fraction: float) -> str:
    """Format the absolute value of a fraction: ``0.7 %``, ``12 %``; below :data:`SMALLEST_SHARE` ``under 0.1 %``."""
    return f"{_hundredths(fraction)} %"


def floor_percent(noise_floor: float) -> str:
    """Format a noise floor (fraction) as a percentage; above :data:`USELESS_FLOOR` as ``over 100 %``."""
    return percent(noise_floor) if noise_floor <= USELESS_FLOOR else f"over {percent(USELESS_FLOOR)}"


def percent_limit(fraction: float) -> str:
    """Format a fraction as an upper limit, to follow "under"; tiny ones are rounded up to ``0.1 %``."""
    return percent(max(abs(fraction), SMALLEST_SHARE) if fraction else 0.0)


def percent_range(low: float, high: float) -> str:
    """Format a range of fractions as percentages: ``6.2 to 17 %``."""
    return f"{_hundredths(low)} to {percent(high)}"


def _hundredths(fraction: float) -> str:
    value = abs(fraction) * 100
    if 0 < value < 100 * SMALLEST_SHARE:
        return "under 0.1"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def percent_over(fraction: float, limit: float) -> str:
    """Format ``fraction`` with enough digits to show that it exceeds ``limit``: ``10.04 %`` for 10 %."""
    value, bound = abs(fraction) * 100, limit * 100
    if fraction <= limit or round(value, 1 if value < 9.95 else 0) > bound:
        return percent(fraction)
    longer = (f"{value:.{digits}f} %" for digits in range(1, LIMIT_DIGITS) if round(value, digits) > bound)
    return next(longer, percent(fraction))


def number(value: float) -> str:
    """Format with about three significant digits, without an exponent: ``0.04``, ``3.10``, ``31.0``, ``12,300``."""
    size = abs(value)
    if size >= 1000:
        digits = len(f"{size:.0f}") - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


def horizon(blocks: int, steps: int, epoch_steps: float | None) -> str:
    """Format ``7 blocks of 48 steps (3 % of an epoch)``. ``epoch_steps``: steps of an epoch; None if unknown."""
    return f"{count(blocks, 'block')} of {steps_read(steps, epoch_steps)}"


def steps_read(steps: int, epoch_steps: float | None) -> str:
    """Format steps with the data that they read: ``48 steps (3 % of an epoch)``; ``48 steps`` for an unknown epoch."""
    if epoch_steps is None:
        return count(steps, "step")
    share = steps / epoch_steps
    data = f"{percent(share)} of an epoch" if share < 1 else f"{number(share)} epochs"
    return f"{count(steps, 'step')} ({data})"


def duration(seconds: float) -> str:
    """Format seconds in the unit that needs few digits: ``5.20 s``, ``12.3 min``, ``6.40 h``."""
    if seconds < 2 * MINUTE_S:
        return f"{number(seconds)} s"
    return f"{number(seconds / MINUTE_S)} min" if seconds < 2 * HOUR_S else f"{number(seconds / HOUR_S)} h"


def ms(value: float) -> str:
    """Format milliseconds: ``0.04 ms``, ``31.0 ms``; below 10 us as ``3.10 us``, because 0.00 ms shows nothing."""
    return f"{number(value * 1000)} us" if 5e-6 <= abs(value) < 0.01 else f"{number(value)} ms"


def part_of(step_ms: float) -> Callable[[float], str]:
    """Return a formatter of ms in one unit for a step and its parts: ``under 0.01 ms`` beside ``25.0 ms``."""

    def text(value: float) -> str:
        if unit(step_ms) == "ms" and 5e-6 <= abs(value) < 0.005:
            return "under 0.01 ms"
        return f"{amount(value, step_ms)} {unit(step_ms)}"

    return text


def unit(step_ms: float) -> str:
    """Return the unit for parts of a step: us if the step takes under a millisecond, else ms."""
    return "us" if step_ms < 1 else "ms"


def amount(value: float, step_ms: float) -> str:
    """Format ``value`` milliseconds in the unit of a step of ``step_ms``, without writing the unit."""
    return number(value * 1000 if unit(step_ms) == "us" else value)


def interval(estimate: Estimate) -> str:
    """Format the interval of a ratio: ``0.991x to 1.018x``. Without one: ``no interval from 2 blocks``."""
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"no interval from {count(estimate.n, 'block')}"
    return f"{ratio(estimate.ci_low)} to {ratio(estimate.ci_high)}"


def count(n: int, noun: str) -> str:
    """Format a number with its noun: ``1 block``, ``3 blocks``."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def blocks_named(blocks: Sequence[int]) -> str:
    """Format block numbers: ``block 1``, ``blocks 1, 3``."""
    return f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}"


def signed_percent(fraction: float) -> str:
    """Format a fraction with its sign: ``+1.2 %``, ``-3.0 %``; tiny ones as ``under 0.1 %``, without a sign."""
    sign = "" if 0 < abs(fraction) < SMALLEST_SHARE else "+" if fraction >= 0 else "-"
    return f"{sign}{percent(fraction)}"


def listing(items: list[str]) -> str:
    """Join items: ``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def capitalised(text: str) -> str:
    """Return ``text`` with a capital first letter. The rest is unchanged, because it may contain names of arms."""
    return text[:1].upper() + text[1:]


def probes_named(cost: ProbeCost) -> tuple[str, str]:
    """Return the measured probes as text, and what they are compared with: "the ledger" or "no probe at all"."""
    first, *later = cost.probes
    name = f"{first} and {' and '.join(later)} together: every measured run" if later else PROBES.get(first, first)
    return name, "no probe at all" if cost.against == "nothing" else "the ledger"
