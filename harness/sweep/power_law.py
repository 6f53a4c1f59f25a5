"""Fits how the optimal learning rate changes with size (parameters or tokens), and extrapolates where it may.

    log optimum = intercept + slope * log size

Each optimum has an uncertainty of its own (the interval of its curve), and may lie off the line by more than that: the
line is a random-effects regression. ``tau2``, the variance of what the intervals do not explain, is estimated by the
method of moments (DerSimonian and Laird 1986; as a regression, Thompson and Sharp 1999), and each size has the weight
1 / (its own variance + tau2). Where an optimum has no interval, all count alike, and tau2 is the residual variance.

Bounds add both parts in squares: the uncertainties by the normal quantile, as they are known, tau2 by Student's with
(sizes - 2) degrees of freedom, as so few sizes estimate it. With three sizes that is 12.7 in place of 1.96: three
optima that lie on a line within their intervals predict something, three that do not predict next to nothing. Scatter
no larger than the optima's own uncertainty often goes unseen in three sizes: bounds then hold the truth in nine of ten
cases rather than in 95 % (``tests/harness/sweep/test_power_law.py``).

An optimum is the vertex of a quadratic here, with its own interval (``sweep.fit``), and so is what is predicted: the
vertex that the same search would find at the size, but for its noise. A lopsided curve has its minimum beside the
vertex. Where curves of all sizes have one shape, every vertex is off by about the same factor: the slope is right, and
the true optimum of a size lies about that factor off its prediction. No bound counts that. In simulations of lopsided
curves (``tests/benchmarks/sweep_intervals.py``) the interval held the vertex in 96 to 100 % and the true optimum in 72
to 100 % with rates 1.6 times apart. With rates 2.7 times apart where the vertex lies depends on which rates were tried,
too: it was 66 to 99 %, and 21 to 88 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.analysis.statistics import CONFIDENCE, student_t
from harness.sweep.fit import LearningRateOptimum

MIN_SIZES = 3  # distinct: any two lie on a line
WIDEST_SLOPE = 1.0  # half width of its interval: above it, ten times the size may be ten times the rate
MIN_R2 = 0.5  # below it, and with residuals above LARGEST_RESIDUAL, the optima follow no line
LARGEST_RESIDUAL = math.log(1.5)  # root mean square: a line that explains little of a scatter as small as this is level
FARTHEST = 3.0  # how far beyond the sizes, in their own logarithmic range (26M to 105M tokens reaches 6.7B)
WIDEST = 10.0  # ratio of a prediction's bounds: above it the prediction names no learning rate

_QUANTILE = 1 - (1 - CONFIDENCE) / 2
_SMALLEST = 1e-9  # variance of an optimum, in squares of log units: its curve has an exact fit


@dataclass(frozen=True)
class PowerLaw:
    """optimum = exp(intercept) * size ** slope."""

    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    r2: float
    """Weighted share of the variance of the log optima that the line explains; 1 where they are all the same."""
    residual: float
    """Root mean square of log optimum - line, with (sizes - 2) degrees of freedom."""
    tau2: float
    smallest: float
    largest: float
    sizes: int
    meaningless: Literal["slope", "scatter"] | None
    """Why nothing may be extrapolated from it. slope: its interval is too wide; scatter: the optima follow no line."""
    _of_intercept: tuple[float, ...] = ()  # what each optimum adds to the coefficients, and its own variance
    _of_slope: tuple[float, ...] = ()
    _variances: tuple[float, ...] = ()

    def half_width(self, size: float) -> float:
        """Of the 95 % prediction interval of the optimum at ``size``, in log units."""
        parts = np.array(self._of_intercept) + math.log(size) * np.array(self._of_slope)
        known = float(parts**2 @ np.array(self._variances))
        return _half_width(known, self.tau2 * (float(parts @ parts) + 1), self.sizes)


@dataclass(frozen=True)
class NoPowerLaw:
    """Why there is no line at all."""

    reason: Literal["too-few-sizes"]
    sizes: int
    """Distinct sizes with an optimum that lies inside its tried range."""
    left_out: int
    """Sizes whose optimum lies at an end of the tried range: it is a bound, no value."""


@dataclass(frozen=True)
class Extrapolation:
    """The optimum that a power law predicts for a size: the vertex of a quadratic, as the optima are that it is of."""

    size: float
    learning_rate: float
    ci_low: float
    ci_high: float
    """95 % prediction interval of the vertex that the same search would find at this size, but for its noise."""
    beyond: float
    """How far outside of the fitted sizes, in their logarithmic range; 0 within."""


@dataclass(frozen=True)
class NoExtrapolation:
    """Why a power law says nothing about a size, with the figure that says so."""

    size: float
    reason: Literal["slope", "scatter", "too-far", "interval"]
    figure: float
    """slope: half width of its interval; scatter: R2; too-far: how far in fitted ranges; interval: high / low."""


def fit_power_law(sizes: Sequence[float], optima: Sequence[LearningRateOptimum]) -> PowerLaw | NoPowerLaw:
    """The line through log optima; those at an end of the tried range are left out.

    Raises ValueError where a size is not above 0 or the two differ in length.
    """
    if len(sizes) != len(optima) or not all(0 < size < math.inf for size in sizes):
        raise ValueError("one size above 0 for each optimum")
    kept = [(size, one) for size, one in zip(sizes, optima, strict=True) if one.at_edge is None]
    distinct = len({size for size, _ in kept})
    if distinct < MIN_SIZES:
        return NoPowerLaw("too-few-sizes", distinct, len(optima) - len(kept))
    x = np.log([size for size, _ in kept])
    y = np.log([one.learning_rate for _, one in kept])
    variances = _variances([one for _, one in kept])
    tau2 = _tau2(x, y, variances)
    weights = 1 / (variances + tau2 + _SMALLEST)
    effect = _effect(x, weights)
    intercept, slope = (float(one) for one in effect @ y)
    residuals = y - intercept - slope * x
    spread = float(weights @ (y - float(weights @ y / weights.sum())) ** 2)
    r2 = 1 - float(weights @ residuals**2) / spread if spread > 0 else 1.0
    residual = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    half = _half_width(float(effect[1] ** 2 @ variances), tau2 * float(effect[1] @ effect[1]), len(x))
    meaningless: Literal["slope", "scatter"] | None = None
    if r2 < MIN_R2 and residual > LARGEST_RESIDUAL:
        meaningless = "scatter"
    elif half > WIDEST_SLOPE:
        meaningless = "slope"
    return PowerLaw(
        slope, slope - half, slope + half, intercept, r2, residual, tau2,
        min(size for size, _ in kept), max(size for size, _ in kept), len(x), meaningless,
        *(tuple(float(one) for one in values) for values in (effect[0], effect[1], variances)),
    )  # fmt: skip


def extrapolate(law: PowerLaw, size: float) -> Extrapolation | NoExtrapolation:
    """The optimum at ``size`` with its prediction interval, or why the law says nothing about it."""
    spanned = math.log(law.largest / law.smallest)
    beyond = max(0.0, math.log(size / law.largest), math.log(law.smallest / size)) / spanned
    if law.meaningless is not None:
        figure = (law.slope_high - law.slope_low) / 2 if law.meaningless == "slope" else law.r2
        return NoExtrapolation(size, law.meaningless, figure)
    if beyond > FARTHEST:
        return NoExtrapolation(size, "too-far", beyond)
    half = law.half_width(size)
    if 2 * half > math.log(WIDEST):
        return NoExtrapolation(size, "interval", math.exp(min(2 * half, 700.0)))
    centre = law.intercept + law.slope * math.log(size)
    return Extrapolation(size, math.exp(centre), math.exp(centre - half), math.exp(centre + half), beyond)


def _variances(optima: Sequence[LearningRateOptimum]) -> NDArray[np.float64]:
    """Of each log optimum, by its vertex's interval; all 0 where one has none: the scatter alone counts then."""
    found = []
    for one in optima:
        if one.vertex_low is None or one.vertex_high is None:
            return np.zeros(len(optima))
        found.append((math.log(one.vertex_high / one.vertex_low) / 2 / NormalDist().inv_cdf(_QUANTILE)) ** 2)
    return np.array(found)


def _effect(x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each y adds to intercept and slope of the weighted line, (2, sizes)."""
    centre = float(weights @ x / weights.sum())
    off = x - centre
    slope = weights * off / float(weights @ off**2)
    return np.stack([weights / weights.sum() - centre * slope, slope])


def _tau2(x: NDArray[np.float64], y: NDArray[np.float64], variances: NDArray[np.float64]) -> float:
    """Variance of the optima about the line beyond their own, by the method of moments; 0 where they explain it."""
    weights = 1 / (variances + _SMALLEST)
    weights /= weights.max()
    intercept, slope = _effect(x, weights) @ y
    squares = float(weights @ (y - intercept - slope * x) ** 2)
    design = np.stack([np.ones_like(x), x - x.mean()], axis=1)
    hat = design @ np.linalg.pinv(design.T @ (weights[:, None] * design)) @ (design * weights[:, None]).T
    # Expected squares: sum of w (1 - h) v of what is known, and of what is asked for sum of w (1 - h).
    left = weights * (1 - np.diag(hat))
    return max(0.0, (squares - float(left @ variances)) / float(left.sum()))


def _half_width(known: float, scattered: float, sizes: int) -> float:
    """Of a 95 % interval, of a variance that is known and one that ``sizes`` values estimate."""
    normal = NormalDist().inv_cdf(_QUANTILE)
    return math.sqrt(normal**2 * known + student_t(_QUANTILE, sizes - 2) ** 2 * scattered)
