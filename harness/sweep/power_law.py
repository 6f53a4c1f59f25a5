"""Fits how the optimal learning rate changes with size (parameters or tokens), and projects to a sweep's size.

    log optimum = intercept + slope * log size

Each optimum has its own 95 % interval (``sweep.fit``). One without an interval, or with an open end, is left out.
Intervals of optima are not symmetric, so they are combined end by end, in squares (MOVER: Zou and Donner 2008,
"Construction of confidence intervals about effect measures"); the high end likewise:

    low(size)  = line(size) - sqrt(sum of (what optimum i adds at the end that lowers the line) ** 2 + scatter ** 2)

Only the fraction ``SHARE`` of each half width counts, because the best rate seldom reaches an end, and almost never at
all sizes at once. In simulations (``tests/benchmarks/sweep_intervals.py``, curves of one shape) the interval then
included the best rate in at least 98 % of the lines of every kind; of those narrow enough to name a rate, 95 %.

The line is a random-effects regression. ``tau2``, the variance that the intervals do not explain, is estimated by the
method of moments (DerSimonian and Laird 1986; as a regression, Thompson and Sharp 1999). Each size has the weight
1 / (its own variance + tau2). Student's quantile with (sizes - 2) degrees of freedom scales it, because few sizes
estimate it: 12.7 for three sizes instead of 1.96.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import student_t
from harness.sweep.fit import Edge, LearningRateOptimum, NoOptimum
from harness.sweep.projection import ProjectionPlan, Unit
from trainer.json_types import JsonObject

MIN_SIZES = 3  # number of distinct sizes; any two lie on a line
WIDEST_SLOPE = 1.0  # half width of the slope's interval; above it, ten times the size may mean ten times the rate
MIN_R2 = 0.5  # below it, and with residuals above LARGEST_RESIDUAL, the optima follow no line
LARGEST_RESIDUAL = math.log(1.5)  # root mean square; with smaller residuals, a low R2 only means that the line is level
FARTHEST = 3.0  # distance beyond the sizes, in their own logarithmic range (26M to 105M tokens reaches 6.7B)
WIDEST = 10.0  # ratio of a prediction's bounds; above it the prediction names no learning rate
# Fraction of the distance from an optimum to an end of its interval. In simulations (tests/benchmarks) 0.6 is the
# smallest tenth with at least 95 % coverage.
SHARE = 0.6

_QUANTILE = 1 - (1 - CONFIDENCE) / 2
_NORMAL = NormalDist().inv_cdf(_QUANTILE)
_SMALLEST = 1e-9  # variance of an optimum with an exact fit, in squares of log units


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law: optimal learning rate = exp(``intercept``) * size ** ``slope``."""

    slope: float
    slope_low: float
    slope_high: float  # Upper end of the 95 % interval of the slope
    intercept: float
    r2: float  # Weighted share of the variance of the log optima that the line explains; 1 if all optima are equal.
    residual: float  # Root mean square of log optimum - line, with (sizes - 2) degrees of freedom
    tau2: float
    smallest: float
    largest: float
    sizes: int
    meaningless: Literal["slope", "scatter"] | None  # slope: too wide an interval; scatter: the optima follow no line
    _of_intercept: tuple[float, ...] = ()  # contribution of each optimum to the intercept
    _of_slope: tuple[float, ...] = ()
    _errors: tuple[tuple[float, float], ...] = ()  # (below, above) of each optimum, in log units: see :func:`_errors`

    def reach(self, size: float) -> tuple[float, float]:
        """Return the widths (log units) down and up of the 95 % prediction interval at ``size``."""
        parts = np.array(self._of_intercept) + math.log(size) * np.array(self._of_slope)
        return _reach(parts, np.array(self._errors), self.tau2 * (float(parts @ parts) + 1))


@dataclass(frozen=True)
class NoPowerLaw:
    """Reason why :func:`fit_power_law` fitted no line: fewer than :data:`MIN_SIZES` usable sizes."""

    reason: Literal["too-few-sizes"]
    sizes: int  # Number of distinct sizes whose optimum is inside the tried range and has an interval
    left_out: int  # Number of sizes whose optimum is an end of the tried range, which is only a bound
    unbounded: int = 0  # Number of sizes whose optimum is inside the tried range and whose interval has an open end


@dataclass(frozen=True)
class Extrapolation:
    """Best learning rate that a power law predicts for ``size``, with its 95 % prediction interval."""

    size: float
    learning_rate: float
    ci_low: float
    ci_high: float  # 95 % prediction interval of the best rate at this size
    beyond: float  # Distance outside of the fitted sizes, in their logarithmic range; 0 within.


@dataclass(frozen=True)
class NoExtrapolation:
    """Reason why :func:`extrapolate` predicts nothing for ``size``, and the figure that is beyond its limit."""

    size: float
    reason: Literal["slope", "scatter", "too-far", "interval"]
    figure: float  # slope: interval's half width; scatter: R2; too-far: distance in fitted ranges; interval: high / low


def fit_power_law(sizes: Sequence[float], optima: Sequence[LearningRateOptimum]) -> PowerLaw | NoPowerLaw:
    """Fit a power law through the optima. ``sizes``: the size of each, in parameters or tokens.

    Optima at an end of the tried rates, or with an open interval, are left out. Raises ValueError for a size <= 0 or
    unequal lengths.
    """
    if len(sizes) != len(optima) or not all(0 < size < math.inf for size in sizes):
        raise ValueError("one size above 0 for each optimum")
    inside = [(size, optimum) for size, optimum in zip(sizes, optima, strict=True) if optimum.at_edge is None]
    kept = [(size, optimum, errors) for size, optimum in inside if (errors := _errors(optimum)) is not None]
    distinct = len({size for size, _, _ in kept})
    if distinct < MIN_SIZES:
        return NoPowerLaw("too-few-sizes", distinct, len(optima) - len(inside), len(inside) - len(kept))
    x = np.log([size for size, _, _ in kept])
    y = np.log([optimum.learning_rate for _, optimum, _ in kept])
    reaches = np.array([errors for _, _, errors in kept])
    variances = (reaches.sum(axis=1) / 2 / _NORMAL) ** 2
    tau2 = _tau2(x, y, variances)
    weights = 1 / (variances + tau2 + _SMALLEST)
    effect = _effect(x, weights)
    intercept, slope = (float(coefficient) for coefficient in effect @ y)
    residuals = y - intercept - slope * x
    spread = float(weights @ (y - float(weights @ y / weights.sum())) ** 2)
    r2 = 1 - float(weights @ residuals**2) / spread if spread > 0 else 1.0
    residual = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    below, above = _reach(effect[1], reaches, tau2 * float(effect[1] @ effect[1]))
    meaningless: Literal["slope", "scatter"] | None = None
    if r2 < MIN_R2 and residual > LARGEST_RESIDUAL:
        meaningless = "scatter"
    elif (below + above) / 2 > WIDEST_SLOPE:
        meaningless = "slope"
    return PowerLaw(
        slope, slope - below, slope + above, intercept, r2, residual, tau2,
        min(size for size, _, _ in kept), max(size for size, _, _ in kept), len(x), meaningless,
        tuple(map(float, effect[0])), tuple(map(float, effect[1])), tuple(errors for _, _, errors in kept),
    )  # fmt: skip


def extrapolate(law: PowerLaw, size: float) -> Extrapolation | NoExtrapolation:
    """Return the best rate at ``size``; NoExtrapolation if the line is too uncertain, or ``size`` too far away."""
    spanned = math.log(law.largest / law.smallest)
    distance = max(0.0, math.log(size / law.largest), math.log(law.smallest / size)) / spanned
    if law.meaningless is not None:
        figure = (law.slope_high - law.slope_low) / 2 if law.meaningless == "slope" else law.r2
        return NoExtrapolation(size, law.meaningless, figure)
    if distance > FARTHEST:
        return NoExtrapolation(size, "too-far", distance)
    below, above = law.reach(size)
    if below + above > math.log(WIDEST):
        return NoExtrapolation(size, "interval", math.exp(min(below + above, 700.0)))
    centre = law.intercept + law.slope * math.log(size)
    return Extrapolation(size, math.exp(centre), math.exp(centre - below), math.exp(centre + above), distance)


def _errors(one: LearningRateOptimum) -> tuple[float, float] | None:
    """Return :data:`SHARE` of an optimum's distances (natural log) to the ends of its interval; None if one is open."""
    if one.ci_low is None or one.ci_high is None:
        return None
    log = math.log(one.learning_rate)
    return SHARE * (log - math.log(one.ci_low)), SHARE * (math.log(one.ci_high) - log)


def _effect(x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the array (2, points) that maps y values to (intercept, slope) of the line fitted with ``weights``."""
    centre = float(weights @ x / weights.sum())
    off = x - centre
    slope = weights * off / float(weights @ off**2)
    return np.stack([weights / weights.sum() - centre * slope, slope])


def _tau2(x: NDArray[np.float64], y: NDArray[np.float64], variances: NDArray[np.float64]) -> float:
    """Return the variance (at least 0) around the line that ``variances`` do not explain, by the method of moments."""
    weights = 1 / (variances + _SMALLEST)
    weights /= weights.max()
    intercept, slope = _effect(x, weights) @ y
    squares = float(weights @ (y - intercept - slope * x) ** 2)
    design = np.stack([np.ones_like(x), x - x.mean()], axis=1)
    hat = design @ np.linalg.pinv(design.T @ (weights[:, None] * design)) @ (design * weights[:, None]).T
    # Expected squares: the known part is sum of w (1 - h) v, and the factor of tau2 is sum of w (1 - h).
    residual_weights = weights * (1 - np.diag(hat))
    return max(0.0, (squares - float(residual_weights @ variances)) / float(residual_weights.sum()))


def _reach(parts: NDArray[np.float64], errors: NDArray[np.float64], scatter: float) -> tuple[float, float]:
    """Return the widths (log units), below and above, of the 95 % interval of ``parts @ optima``."""
    beyond = student_t(_QUANTILE, len(parts) - 2) ** 2 * scatter
    falls = np.where(parts > 0, errors[:, 0], errors[:, 1]) * parts
    rises = np.where(parts > 0, errors[:, 1], errors[:, 0]) * parts
    return math.sqrt(float(falls @ falls) + beyond), math.sqrt(float(rises @ rises) + beyond)


@dataclass(frozen=True)
class ProjectedPoint:
    """One searched size of a projection. ``optimum``: that of its curve of losses; None before its first trial."""

    group: str
    size: float
    optimum: LearningRateOptimum | NoOptimum | None
    edge: Edge | None = None  # End of the tried rates beyond which the optimum may lie


@dataclass(frozen=True)
class Projection:
    """Result of :func:`project`: the optima of the sizes, the line, and its prediction at ``target``."""

    unit: Unit
    target: float
    points: tuple[ProjectedPoint, ...]
    law: PowerLaw | NoPowerLaw
    prediction: Extrapolation | NoExtrapolation | None  # missing without a line, and always for widths under mup

    mup: JsonObject | None = None  # Section model.mup that the sweep's own model needs, so that the rate is its best

    @property
    def largest(self) -> ProjectedPoint | None:
        """The largest size whose optimum lies inside the tried rates; None if no size has such an optimum."""
        fitted = [point for point in self.points if isinstance(point.optimum, LearningRateOptimum)]
        inside = [point for point in fitted if point.optimum and point.optimum.at_edge is None]
        return max(inside, key=lambda point: point.size, default=None)


def project(
    plan: ProjectionPlan, optima: Mapping[str, tuple[LearningRateOptimum | NoOptimum, Edge | None]]
) -> Projection:
    """Fit a power law through the sizes' optima (by group), and extrapolate it, except over widths (mup)."""
    points = tuple(ProjectedPoint(size.group, size.size, *optima.get(size.group, (None, None))) for size in plan.sizes)
    fitted = [(point.size, point.optimum) for point in points if isinstance(point.optimum, LearningRateOptimum)]
    law = fit_power_law([size for size, _ in fitted], [optimum for _, optimum in fitted])
    prediction = None
    if isinstance(law, PowerLaw) and plan.unit != "width":
        prediction = extrapolate(law, plan.target)
    return Projection(plan.unit, plan.target, points, law, prediction, plan.mup)
