"""Fits the optimum of a U-shaped curve of final loss against learning rate. Numbers only: no clock, no file.

Near its minimum the loss is modelled as a quadratic in the logarithm of the learning rate:

    loss
      |  o                     .  cut: more than 4 times as steep as the others
      |     o              o
      |         o       o
      |             o            lowest: the window reaches from a quarter to four times its rate
      +------------------------ log learning rate

The 95 % interval of the optimum includes:

1. Every rate that may be the lowest. Its mean loss is at most the lowest mean loss + 1.645 s sqrt(1 / n + 1 / m), so
   the two are not distinguishable (one-sided, at 95 %). n and m are the numbers of trials at the lowest rate and at
   this one. s is the scatter of a single trial: the residual standard deviation of a cubic through the trials of the
   window (of a quadratic for 4 rates, because a cubic passes through all of them).
2. The way to the next tried rate on either side. Without noise, the minimum lies between the neighbours of the lowest
   rate, whatever the shape of the curve. An end is open if one of the rates of 1 is the last that was tried.
3. The interval of the vertex (Fieller 1954, "Some problems in interval estimation"): all places where the slope of the
   quadratic is not distinguishable from 0 at 95 %, by Student's t with the residuals' degrees of freedom. It is exact
   for normal errors, and has no end if the curvature could be 0. It is extended to the minimum of a cubic through the
   same points, because real curves are steeper on one side.

In simulations (tests/benchmarks/sweep_intervals.py) the interval included the optimum in at least 96 % of the sweeps of
every kind; the vertex's interval alone missed it in a quarter to a half. An open end excludes nothing. If two thirds of
a kind's sweeps have one, fewer of the other intervals include the optimum: 77 % at the least. No interval covers the
effect of another seed for all trials together, or of another length of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import student_t

Edge = Literal["low", "high"]

MIN_RATES = 4  # distinct learning rates with a loss: a quadratic fits any three
# The fit takes the rates within a factor of 4 of the lowest one, because curves are asymmetric further out. If these
# fail to bound the optimum (noise, or trials close together), it takes those within 8, then 16.
REACHES = (math.log(4), math.log(8), math.log(16))
LEAST_REACH = 2  # minimum number of distinct rates on each side, if there are that many
# An end of the window is a cliff (training begins to diverge) by its curvature: its rise above the lowest loss over the
# square of its distance. The limit is this many times the median. Evenly spaced points of a parabola have at most 2.
CLIFF = 4.0
# Standard errors of a difference. A rate whose mean loss is further above the lowest one is not the best (one-sided).
CHANCE = NormalDist().inv_cdf(CONFIDENCE)
LARGEST_LOSS = 1e30  # nats; a larger loss counts as not finite, so that sums of squares do not overflow


@dataclass(frozen=True)
class LearningRateOptimum:
    """Optimum of a curve, made by :func:`fit_optimum`: the learning rate with the lowest loss by a fitted quadratic."""

    learning_rate: float  # Rate at the vertex, limited to the tried rates
    ci_low: float | None  # 95 %, from the vertex (Fieller's) and the rates that may be the lowest; None: not bounded
    ci_high: float | None
    loss: float  # Loss of the fitted quadratic at ``learning_rate``
    at_edge: Edge | None  # tried end beyond which the optimum may lie; divergence above does not count as one
    r2: float  # Share of the variance of the window's losses that the quadratic explains
    points: int  # Number of fitted trials
    vertex_low: float | None  # Interval of the vertex alone, which shows the effect of noise on the fit
    vertex_high: float | None

    @property
    def is_bounded(self) -> bool:
        """True if the 95 % interval has both ends."""
        return self.ci_low is not None and self.ci_high is not None

    def holds(self, learning_rate: float) -> bool:
        """Return True if the 95 % interval includes ``learning_rate``. A missing end excludes nothing."""
        return (self.ci_low or 0.0) <= learning_rate <= (math.inf if self.ci_high is None else self.ci_high)


@dataclass(frozen=True)
class NoOptimum:
    """Reason why :func:`fit_optimum` found no optimum of a curve."""

    reason: Literal["too-few", "not-convex", "flat"]
    """too-few: fewer than :data:`MIN_RATES` rates with a loss; not-convex: no minimum;
    flat: the losses around the lowest are all alike."""
    rates: int  # Number of distinct learning rates with a finite loss
    lowest: float | None  # Rate of the lowest loss; None without a loss.
    at_edge: Edge | None


def fit_optimum(learning_rates: Sequence[float], losses: Sequence[float | None]) -> LearningRateOptimum | NoOptimum:
    """Fit a quadratic over log learning rate and return its optimum. ``losses``: one per trial; rates may repeat.

    A trial whose loss is None or not finite only bounds the optimum's interval; above the largest rate with a loss, it
    counts as diverged. Raises ValueError for a rate <= 0 or unequal lengths.
    """
    if len(learning_rates) != len(losses):
        raise ValueError(f"{len(learning_rates)} learning rates, {len(losses)} losses")
    if not all(0 < rate < math.inf for rate in learning_rates):
        raise ValueError("learning rates must be above 0 and finite")
    trials = zip(map(math.log, learning_rates), losses, strict=True)
    kept = sorted((rate, loss) for rate, loss in trials if loss is not None and abs(loss) < LARGEST_LOSS)
    x, y = np.array([rate for rate, _ in kept]), np.array([loss for _, loss in kept], dtype=np.float64)
    rates = np.unique(x)
    if not len(rates):
        return NoOptimum("too-few", 0, None, None)
    means = np.array([y[x == rate].mean() for rate in rates])
    trained = np.array([np.count_nonzero(x == rate) for rate in rates])
    lowest = int(means.argmin())
    diverged = min((rate for rate in map(math.log, learning_rates) if rate > rates[-1]), default=None)
    at_edge: Edge | None = None
    # If both losses are the same, the loss does not fall toward the end.
    if lowest == 0 < len(rates) - 1 and means[1] > means[0]:
        at_edge = "low"
    elif lowest == len(rates) - 1 and diverged is None:
        at_edge = "high"
    if len(rates) < MIN_RATES:
        return NoOptimum("too-few", len(rates), math.exp(rates[lowest]), at_edge)
    fits = []
    for reach in REACHES:
        first, last = _window(rates, means, lowest, reach)
        inside = (x >= rates[first]) & (x <= rates[last])
        fits.append((_quadratic(x[inside] - rates[lowest], y[inside]), int(inside.sum())))
        if isinstance(fits[-1][0], _Quadratic) and fits[-1][0].is_bounded:
            break
    else:
        fits = fits[:1]
    fitted, points = fits[-1]
    if isinstance(fitted, str):
        return NoOptimum(fitted, len(rates), math.exp(rates[lowest]), at_edge)
    vertex, low, high = (rates[lowest] + offset for offset in (fitted.vertex, fitted.low, fitted.high))
    if vertex < rates[0]:
        at_edge = "low"
    elif vertex > rates[-1] and diverged is None:
        at_edge = "high"
    clipped = min(max(vertex, rates[0]), rates[-1])
    low, high = min(low, clipped), max(high, clipped)
    if diverged is not None:  # A rate that diverges is not the best.
        high = max(clipped, min(high, diverged))
    standard_errors = fitted.scatter * np.sqrt(1 / trained[lowest] + 1 / trained)
    maybe_lowest = np.flatnonzero(means <= means[lowest] + CHANCE * standard_errors)
    tried = list(map(math.log, learning_rates))
    below = max((rate for rate in tried if rate < rates[maybe_lowest[0]]), default=None)
    above = min((rate for rate in tried if rate > rates[maybe_lowest[-1]]), default=None)
    return LearningRateOptimum(
        math.exp(clipped),
        None if at_edge == "low" or below is None else _rate(min(low, below)),
        None if at_edge == "high" or above is None else _rate(max(high, above)),
        fitted.at(clipped - rates[lowest]),
        at_edge,
        fitted.r2,
        points,
        None if at_edge == "low" else _rate(low),
        None if at_edge == "high" else _rate(high),
    )


def _rate(log: float) -> float | None:
    """Return exp(log); None if a float cannot represent it (0 or infinite)."""
    rate = math.exp(log) if log < 700 else math.inf
    return rate if 0 < rate < math.inf else None


def _window(rates: NDArray[np.float64], means: NDArray[np.float64], lowest: int, reach: float) -> tuple[int, int]:
    """Return the first and last index of ``rates`` (logarithms) to fit: about those within ``reach`` of the one at
    ``lowest``, without ends that rise too steeply (:data:`CLIFF`).
    """
    near = np.flatnonzero(np.abs(rates - rates[lowest]) <= reach * (1 + 1e-9))
    last = min(len(rates) - 1, max(int(near[-1]), lowest + LEAST_REACH, MIN_RATES - 1))
    first = max(0, min(int(near[0]), lowest - LEAST_REACH, len(rates) - MIN_RATES))
    off = np.delete(np.arange(len(rates)), lowest)
    curvature = np.zeros(len(rates))
    curvature[off] = (means[off] - means[lowest]) / (rates[off] - rates[lowest]) ** 2
    limit = CLIFF * float(np.median(curvature[off[(off >= first) & (off <= last)]]))
    while last - first >= MIN_RATES:
        # The neighbours of the lowest stay in the window.
        ends = [end for end in (first, last) if abs(end - lowest) > 1]
        steepest = max(ends, key=lambda end: curvature[end])
        if curvature[steepest] <= limit:
            break
        first, last = (first + 1, last) if steepest == first else (first, last - 1)
    return first, last


def _cubic(design: NDArray[np.float64], rises: NDArray[np.float64]) -> tuple[float | None, float] | None:
    """Fit a cubic to ``rises`` (``design``: columns 1, x, x ** 2). Return (x of its minimum within the points or None,
    sum of squared residuals); None for at most :data:`MIN_RATES` distinct x.
    """
    places = design[:, 1]
    if len(np.unique(places)) <= MIN_RATES:
        return None
    cubic = np.hstack([design, places[:, None] ** 3])
    coefficients = np.linalg.pinv(cubic.T @ cubic) @ cubic.T @ rises
    residuals = rises - cubic @ coefficients
    squares = float(residuals @ residuals)
    _, b, c, d = (float(coefficient) for coefficient in coefficients)
    # Discriminant of b + 2 c v + 3 d v ** 2. The second derivative at the minimum is its root, above 0.
    root = c * c - 3 * b * d
    if root <= 0:
        return None, squares
    minimum = -b / (c + math.sqrt(root))
    return (minimum if places.min() <= minimum <= places.max() else None), squares


@dataclass(frozen=True)
class _Quadratic:
    """A fitted convex quadratic and the interval of its vertex, over log learning rates relative to the lowest's."""

    vertex: float
    low: float
    high: float
    r2: float
    scatter: float  # scatter of a single trial about the curve, in units of the loss
    coefficients: tuple[float, float, float]  # coefficients of (x / scale) ** 0, 1, 2, in units of rise above base
    scale: float
    rise: float
    base: float

    @property
    def is_bounded(self) -> bool:
        """True if the curvature is surely above 0 (95 %), so that the vertex's interval has two ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def at(self, x: float) -> float:
        """Return the fitted loss at ``x`` (log learning rate, relative to that of the lowest loss)."""
        a, b, c = self.coefficients
        place = x / self.scale
        return self.base + self.rise * (a + b * place + c * place**2)


def _quadratic(x: NDArray[np.float64], y: NDArray[np.float64]) -> _Quadratic | Literal["not-convex", "flat"]:
    """Fit a quadratic with Fieller's interval of its vertex; "flat" for equal losses, "not-convex" without minimum."""
    base = float(y.min())
    rise = float(y.max()) - base
    if not rise > 1e-12 * abs(base):
        return "flat"
    scale = float(np.abs(x).max())
    places, rises = x / scale, (y - base) / rise
    design = np.stack([np.ones_like(places), places, places**2], axis=1)
    inverse = np.linalg.pinv(design.T @ design)
    a, b, c = (float(coefficient) for coefficient in inverse @ design.T @ rises)
    if not c > 1e-9:
        return "not-convex"
    residuals = rises - design @ np.array([a, b, c])
    squares = float(residuals @ residuals)
    freedom = len(x) - 3
    covariance = inverse * squares / freedom
    # Places v where (b + 2 c v) ** 2 <= t ** 2 * its variance: p v ** 2 + 2 q v + r <= 0.
    t2 = student_t(1 - (1 - CONFIDENCE) / 2, freedom) ** 2
    p = 4 * (c * c - t2 * float(covariance[2, 2]))
    q = 2 * (b * c - t2 * float(covariance[1, 2]))
    r = b * b - t2 * float(covariance[1, 1])
    low, high = -math.inf, math.inf
    if p > 0:  # The curvature differs from 0 with 95 %: then both roots are real, except for rounding.
        root = math.sqrt(max(0.0, q * q - p * r))
        low, high = (-q - root) / p, (-q + root) / p
    spread = float(((rises - rises.mean()) ** 2).sum())
    vertex = -b / (2 * c)
    cubic, cubic_squares = _cubic(design, rises) or (None, None)
    vertices = (vertex, vertex if cubic is None else cubic)
    ends = min(low, *vertices) * scale, max(high, *vertices) * scale
    scatter = rise * math.sqrt(squares / freedom if cubic_squares is None else cubic_squares / (freedom - 1))
    return _Quadratic(vertex * scale, *ends, 1 - squares / spread, scatter, (a, b, c), scale, rise, base)
