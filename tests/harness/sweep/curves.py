"""Draws sweeps of loss curves whose best learning rate is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Curve = Callable[[float], float]
"""The rise of the loss above its minimum over log(rate / best)."""

STEEPNESS = 0.05  # nats per squared log unit: that of the middle of the curves
DIVERGED = 2.0  # nats above the minimum: such a trial counts as diverged
FEWEST_RATES, MOST_RATES = 6, 12


def _steepness(generator: np.random.Generator) -> float:
    return float(STEEPNESS * 10 ** generator.uniform(-0.5, 0.5))


def parabola(generator: np.random.Generator) -> Curve:
    one = _steepness(generator)
    return lambda x: one * x**2


def two_parabolas(generator: np.random.Generator) -> Curve:
    """Steeper on one side, by up to 10 times; in four of five cases that is the high one."""
    low, high = sorted((_steepness(generator), _steepness(generator)))
    if generator.uniform() < 0.2:
        low, high = high, low
    return lambda x: (low if x < 0 else high) * x**2


def cubic(generator: np.random.Generator) -> Curve:
    low = _steepness(generator)
    return lambda x: low * x**2 + STEEPNESS * max(x, 0.0) ** 3


def exponential(generator: np.random.Generator) -> Curve:
    """Rises exponentially on the high side, and nearly in a line on the low one."""
    bend = generator.uniform(0.8, 2.5)
    vertex = math.log(3 / bend) / bend
    return lambda x: STEEPNESS * (math.exp(min(bend * (x + vertex), 50.0)) - 3 * x) - 3 * STEEPNESS / bend


def cliff(generator: np.random.Generator) -> Curve:
    """Two parabolas, and a jump of 0.3 to 2 nats at 1.3 to 7 times the best rate."""
    low, high = _steepness(generator), _steepness(generator)
    edge, jump = generator.uniform(0.3, 2), generator.uniform(0.3, 2)
    return lambda x: (low if x < 0 else high) * x**2 + (jump if x > edge else 0.0)


def straight_sides(generator: np.random.Generator) -> Curve:
    """A parabola at the minimum, straight further out, steeper on one side."""
    low, high = _steepness(generator), _steepness(generator)
    return lambda x: (low if x < 0 else high) * 4 * (math.sqrt(1 + x**2 / 2) - 1)


CURVES: dict[str, Callable[[np.random.Generator], Curve]] = {
    one.__name__.replace("_", " "): one for one in (parabola, two_parabolas, cubic, exponential, cliff, straight_sides)
}


@dataclass(frozen=True)
class DrawnSweep:
    """The trials of one sweep: rates as often as there are seeds; a loss is nan where training diverged."""

    rates: list[float]
    losses: list[float]
    best: float


def drawn_sweeps(curve: str, spacing: float, noise: float, draws: int, seeds: int = 1) -> Iterator[DrawnSweep]:
    """Each has 6 to 12 rates, ``spacing`` times apart, and its best rate anywhere but in the outermost two gaps.

    ``noise``: standard deviation of a loss, in steps: what one spacing off the best rate adds to the loss, as a mean
    of both sides.
    """
    generator = np.random.default_rng(5)
    for _ in range(draws):
        rise = CURVES[curve](generator)
        rates = [1e-4 * spacing**k for k in range(generator.integers(FEWEST_RATES, MOST_RATES + 1))]
        best = math.exp(generator.uniform(math.log(rates[1]), math.log(rates[-2])))
        step = (rise(math.log(spacing)) + rise(-math.log(spacing))) / 2
        tried = rates * seeds
        noises = noise * step * generator.standard_normal(len(tried))
        rises = [rise(math.log(rate / best)) + one for rate, one in zip(tried, noises, strict=True)]
        yield DrawnSweep(tried, [5 + one if one < DIVERGED else math.nan for one in rises], best)
