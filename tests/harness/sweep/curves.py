"""Draws sweeps of loss curves whose best learning rate is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from harness.sweep.findings import findings
from harness.sweep.searches import hyperband
from harness.sweep.trials import SearchSpace, Trial
from trainer.config import TrainerConfig

Curve = Callable[[float], float]
"""The rise of the loss above its minimum over log(rate / best)."""

STEEPNESS = 0.05  # nats per squared log unit: that of the middle of the curves
DIVERGED = 2.0  # nats above the minimum: such a trial counts as diverged
FEWEST_RATES, MOST_RATES = 6, 12
LOWEST, SPAN = 1e-5, 1000.0  # of the rates of dense grids and of Hyperband: 1e-5 to 1e-2
MARGIN = 0.1  # share of the span, in logarithms, at either end of it, that no best rate lies in
SIZES, TARGET = (1.0, 2.0, 4.0), 16.0  # of a projection
MIDDLE_SIZE = 4.0  # of these, in logarithms
DRIFT = 0.3  # the best rate of trials of a share of the steps is higher, by up to this power of the share


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


def ten_times(generator: np.random.Generator) -> Curve:
    """Ten times as steep on one side; in four of five cases that is the high one."""
    side = -1 if generator.uniform() < 0.2 else 1
    return lambda x: STEEPNESS * (10**-0.5 if side * x < 0 else 10**0.5) * x**2


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
    one.__name__.replace("_", " "): one
    for one in (parabola, two_parabolas, ten_times, cubic, exponential, cliff, straight_sides)
}


CONFIG = TrainerConfig()


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
        yield _trained(rates * seeds, best, rise, noise * step, generator)


def drawn_grids(curve: str, count: int, noise: float, draws: int) -> Iterator[DrawnSweep]:
    """Each has ``count`` rates, evenly spaced over a factor of SPAN. ``noise`` is in octaves: see :func:`_drawn`."""
    for rise, best, scatter, generator in _drawn(curve, noise, draws):
        yield _trained(_evenly_spaced(count), best, rise, scatter, generator)


def drawn_hyperbands(curve: str, most_steps: int, noise: float, draws: int) -> Iterator[DrawnSweep]:
    """Each is Hyperband's own search over a factor of SPAN: the rates of its full trials, and those that diverged.

    ``noise`` is in octaves (:func:`_drawn`), for trials of any length. Shorter ones have a higher best rate (DRIFT).
    """
    for number, (rise, best, scatter, generator) in enumerate(_drawn(curve, noise, draws)):
        space = SearchSpace(LOWEST, LOWEST * SPAN, (0,), number, CONFIG, lambda _: most_steps)
        drift = generator.uniform(0, DRIFT)
        asking, trials = hyperband(space, most_steps, 3), list[Trial]()
        plan = next(asking, None)
        while plan is not None:
            place = math.log(plan.learning_rate / best) - drift * math.log(most_steps / plan.steps)
            one = rise(place) + scatter * generator.standard_normal()
            done = Trial(len(trials), plan, "done", 5 + one)
            trials.append(done if one < DIVERGED else replace(done, status="diverged", loss=None))
            try:
                plan = asking.send(trials[-1])
            except StopIteration:
                plan = None
        found = findings(trials).curves[0]
        rates = [rate for rate, _ in found.points] + list(found.diverged)
        yield DrawnSweep(rates, [loss for _, loss in found.points] + [math.nan] * len(found.diverged), best)


@dataclass(frozen=True)
class DrawnProjection:
    """Sweeps of several sizes, whose best rates follow a power law exactly, and the best rate of a larger size."""

    sizes: tuple[float, ...]
    sweeps: tuple[DrawnSweep, ...]
    target: float
    best: float
    """At the target."""


def drawn_projections(curve: str, count: int, noise: float, draws: int) -> Iterator[DrawnProjection]:
    """Grids of ``count`` rates over a factor of SPAN; curves of all sizes have one shape. ``noise``: :func:`_drawn`."""
    rates = _evenly_spaced(count)
    for rise, middle, scatter, generator in _drawn(curve, noise, draws):
        power = generator.uniform(-0.5, 0)
        bests = [middle * (size / MIDDLE_SIZE) ** power for size in (*SIZES, TARGET)]
        sweeps = tuple(_trained(rates, best, rise, scatter, generator) for best in bests[:-1])
        yield DrawnProjection(SIZES, sweeps, TARGET, bests[-1])


def _evenly_spaced(count: int) -> list[float]:
    return [LOWEST * SPAN ** (k / (count - 1)) for k in range(count)]


def _trained(
    rates: list[float], best: float, rise: Curve, scatter: float, generator: np.random.Generator
) -> DrawnSweep:
    noises = scatter * generator.standard_normal(len(rates))
    rises = [rise(math.log(rate / best)) + one for rate, one in zip(rates, noises, strict=True)]
    return DrawnSweep(rates, [5 + one if one < DIVERGED else math.nan for one in rises], best)


def _drawn(curve: str, noise: float, draws: int) -> Iterator[tuple[Curve, float, float, np.random.Generator]]:
    """Curves, each with a best rate, the standard deviation of a loss, and what the losses are drawn from.

    ``noise``: that standard deviation, in octaves: what a factor of two off the best rate adds to the loss, as a mean
    of both sides. So grids of more rates are not less noisy.
    """
    generator = np.random.default_rng(5)
    for _ in range(draws):
        rise = CURVES[curve](generator)
        best = LOWEST * SPAN ** generator.uniform(MARGIN, 1 - MARGIN)
        yield rise, best, noise * (rise(math.log(2)) + rise(-math.log(2))) / 2, generator
