"""Estimates medians and ratios with intervals, from few blocks of repeated measurements.

Unit: the block, a fresh process of every arm and another order of the documents. Only blocks are resampled (Davison and
Hinkley 1997, section 3.8); repetitions share their block's luck and become one value by their totals, as a median over
them would drop the bursts of data cost that training pays for.

Interval: a percentile bootstrap with two corrections, without which it covers the truth 75 % of the time at 3 blocks:

- smoothed: each draw gets normal noise of variance s^2/n. Resampling n values understates the variance by (n - 1)/n
  (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", Am. Stat. 69:4);
- expanded from normal to Student quantiles: distances from the median are stretched by t/z, as resamples cannot resolve
  Hesterberg's adjusted level at 3 blocks (1e-5).

Drift makes neighbouring blocks alike: the interval is widened by the order of the values (:func:`widening`), in
verdicts by the blocks of all arms together (:class:`Likeness`). Rates and ratios are estimated on logarithms, so a
ratio and its inverse get inverse intervals. Coverage: ``results/reference/verdict-rates``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, stdev

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import CONFIDENCE, INDEPENDENT_BLOCKS, MIN_BLOCKS

RESAMPLES = 2000  # pairs: each draw and its mirror image, so that swapped arms get exactly inverse intervals
RESAMPLING_SEED = 20150401
# Possible lag-1 correlations of dependent blocks, equally likely. With higher ones, a study of 20 blocks has fewer than
# three independent values, and no interval would help.
CORRELATIONS = tuple(round(0.05 * k, 2) for k in range(1, 17))
_ROUNDING = 1e-12  # relative; values that differ by less count as equal

# Values of one arm: {block: {repetition: (amount, per)}}, such as tokens and seconds. A block's value is sum / sum.
Values = Mapping[int, Mapping[int, tuple[float, float]]]


@dataclass(frozen=True)
class Estimate:
    """A median over ``n`` blocks and its interval, usually of 95 %; no bounds below :data:`MIN_BLOCKS` blocks."""

    median: float
    ci_low: float | None
    ci_high: float | None
    n: int

    @property
    def distance(self) -> float | None:
        """For a ratio: largest distance of the interval's ends from 1, as a fraction; None without an interval."""
        if self.ci_low is None or self.ci_high is None:
            return None
        return max(abs(self.ci_low - 1), abs(self.ci_high - 1))


def estimate(values: Values) -> Estimate | None:
    """Return the median over blocks, with its interval, of each block's sum of amounts / sum of denominators.

    ``values``: {block: {repetition: (amount, denominator)}}, such as tokens and seconds. None if no block has both sums
    above 0."""
    return from_blocks(
        [log for _, repetitions in sorted(values.items()) if (log := _block_log(repetitions)) is not None]
    )


def inverse(ratio: Estimate) -> Estimate:
    """Return 1 / ``ratio``, with its interval inverted too."""
    low, high = (None if bound is None else 1 / bound for bound in (ratio.ci_high, ratio.ci_low))
    return Estimate(1 / ratio.median, low, high, ratio.n)


def holding(likely: Estimate, others: Sequence[Estimate]) -> Estimate:
    """Return ``likely`` with an interval widened to include the medians and intervals of all ``others``."""
    if not others:
        return likely
    bounds = [
        bound
        for reading in (likely, *others)
        for bound in (reading.ci_low, reading.median, reading.ci_high)
        if bound is not None
    ]
    return Estimate(likely.median, min(bounds), max(bounds), likely.n)


def paired_logs(baseline: Values, candidate: Values, alternated: Mapping[int, bool] | None = None) -> list[float]:
    """Return log(candidate / baseline) for each block that both have, in block order. ``alternated``: {block: True if
    both arms took their repetitions there in alternation}. In such a block, only repetitions that both have count;
    None: all repetitions count in every block."""
    logs = []
    for block in sorted(set(baseline) & set(candidate)):
        ours, theirs = baseline[block], candidate[block]
        shared = set(ours) & set(theirs)
        if (alternated or {}).get(block) and shared:
            ours, theirs = ({repetition: side[repetition] for repetition in shared} for side in (ours, theirs))
        first, second = _block_log(ours), _block_log(theirs)
        if first is not None and second is not None:
            logs.append(second - first)
    return logs


def from_blocks(
    logs: Sequence[float], confidence: float = CONFIDENCE, alike: Likeness | None = None
) -> Estimate | None:
    """Return median and interval of exp(value); ``logs``: one value per block. None if ``logs`` is empty.

    See :func:`from_block_values`."""
    log_estimate = from_block_values(logs, confidence, alike)
    if log_estimate is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (log_estimate.ci_low, log_estimate.ci_high))
    return Estimate(math.exp(log_estimate.median), low, high, log_estimate.n)


def from_block_values(
    values: Sequence[float], confidence: float = CONFIDENCE, alike: Likeness | None = None
) -> Estimate | None:
    """Return the median and interval of ``values``, one per block in block order; None if there are no values. No
    interval below :data:`MIN_BLOCKS` blocks. ``confidence``: level of the interval, which Student's quantile widens if
    blocks are few. ``alike``: similarity of neighbouring blocks, which may widen the interval further."""
    return _of_block_values(tuple(values), confidence, alike) if values else None


@lru_cache(maxsize=4096)  # A report asks for most estimates several times.
def _of_block_values(values: tuple[float, ...], confidence: float, alike: Likeness | None) -> Estimate:
    in_time = np.asarray(values, dtype=np.float64)
    ordered = np.sort(in_time)
    n = len(ordered)
    centre = float(np.median(ordered))
    if n < MIN_BLOCKS:
        return Estimate(centre, None, None, n)
    medians = _medians(ordered)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    # Blocks of this arm alone may be correlated. The interval is at least as wide as they require.
    wider = max(widening(in_time), alike.widening(n) if alike is not None else 1.0)
    stretch = wider * student_t(1 - (1 - confidence) / 2, n - 1) / NormalDist().inv_cdf(1 - tail)
    # min/max: the median of skewed resamples may be a rounding error outside of its own percentiles.
    return Estimate(
        centre,
        min(centre, centre - stretch * (centre - float(low))),
        max(centre, centre + stretch * (float(high) - centre)),
        n,
    )


def trimmed_mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the mean of ``values``, one per block, and its interval (Tukey and McLaughlin 1963).

    The smallest and the largest value are left out. With :data:`MIN_BLOCKS` values or fewer, all count, and there is no
    interval. None if ``values`` is empty.
    Unlike a median, the result moves if several blocks are of another kind. A single such block does not move it.
    """
    if not values:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    inner = ordered[1:-1] if n > MIN_BLOCKS else ordered
    centre = float(inner.mean())
    if n <= MIN_BLOCKS:
        return Estimate(centre, None, None, n)
    spread = float(np.clip(ordered, inner[0], inner[-1]).std(ddof=1))
    reach = student_t(1 - (1 - confidence) / 2, len(inner) - 1) * spread * math.sqrt(n) / len(inner)
    return Estimate(centre, centre - reach, centre + reach, n)


def from_amounts(values: Sequence[float]) -> Estimate | None:
    """Return median and interval of positive amounts by logarithms, else of the plain values; None without values."""
    if not values or min(values) <= 0:
        return from_block_values(values)
    result = from_blocks([math.log(value) for value in values])
    assert result is not None
    centre = float(np.median(values))  # not exp(log(value)), which has rounding errors
    if result.ci_low is None or result.ci_high is None:
        return Estimate(centre, None, None, result.n)
    return Estimate(centre, min(centre, result.ci_low), max(centre, result.ci_high), result.n)


@dataclass(frozen=True)
class Likeness:
    """Probabilities of independent blocks and of each of :data:`CORRELATIONS` between neighbouring blocks."""

    probabilities: tuple[float, ...]

    def widening(self, blocks: int) -> float:
        """Return the factor (1 or more) by which an interval over ``blocks`` blocks widens, as blocks are correlated.

        The factor is the root of the mean of the variance factors of all correlations, weighted by
        :attr:`probabilities`."""
        return math.sqrt(float(_variance_factors(blocks) @ np.array(self.probabilities)))


_RHO = (0.0, *CORRELATIONS)


def likeness(series: Sequence[Sequence[float]], independent: float | None = None) -> Likeness:
    """Return how similar neighbouring blocks are, estimated from several ``series`` of values, each in block order.

    ``independent``: prior of independent blocks (None: :data:`INDEPENDENT_BLOCKS`), as 5 blocks hardly show
    correlation. Likelihood: first-order autoregression with mean and scale integrated out, with the small-sample bias
    of the lag-1 correlation (Kendall 1954).
    """
    log_likelihoods = [
        log_likelihood
        for values in series
        if (log_likelihood := _log_likelihood(np.asarray(values, dtype=np.float64))) is not None
    ]
    return _posterior(np.sum(log_likelihoods, axis=0) if log_likelihoods else np.zeros(len(_RHO)), independent)


def _posterior(log_likelihood: NDArray[np.float64], independent: float | None = None) -> Likeness:
    independent = INDEPENDENT_BLOCKS if independent is None else independent
    prior = np.array([independent, *[(1 - independent) / len(CORRELATIONS)] * len(CORRELATIONS)])
    posterior = prior * np.exp(log_likelihood - log_likelihood.max())
    return Likeness(tuple((posterior / posterior.sum()).tolist()))


def widening(in_time: NDArray[np.float64]) -> float:
    """Return the factor by which the interval of values in order of time must be wider than for independent values."""
    log_likelihood = _log_likelihood(in_time)
    return 1.0 if log_likelihood is None else _posterior(log_likelihood).widening(len(in_time))


def _log_likelihood(in_time: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the log likelihood of each correlation in _RHO between neighbouring blocks, as an array. ``in_time``: one
    value per block, in block order. None for fewer than :data:`MIN_BLOCKS` values, or if all are equal."""
    n = len(in_time)
    if n < MIN_BLOCKS:
        return None
    deviation = in_time - in_time.mean()
    largest = np.abs(deviation).max(initial=0.0)
    if largest <= _ROUNDING * np.abs(in_time).max(initial=0.0):
        return None
    deviation /= largest
    rho = np.array(_RHO)
    # Precision of the sum, and generalised mean, of an autoregression (closed forms: its inverse is tridiagonal).
    weight = (n - (n - 2) * rho) / (1 + rho)
    mean = (deviation[0] + deviation[-1] + (1 - rho) * deviation[1:-1].sum()) / (1 + rho) / weight
    error = deviation[None, :] - mean[:, None]
    squares = error[:, 0] ** 2 + ((error[:, 1:] - rho[:, None] * error[:, :-1]) ** 2).sum(axis=1) / (1 - rho**2)
    log_likelihood: NDArray[np.float64] = -0.5 * (
        (n - 1) * np.log1p(-(rho**2)) + np.log(weight) + (n - 1) * np.log(np.maximum(squares, _ROUNDING))
    )
    return log_likelihood


@lru_cache(maxsize=256)
def _variance_factors(n: int) -> NDArray[np.float64]:
    """Return a factor for each correlation in _RHO: variance of a mean of n values / its estimate by their scatter."""
    lags = np.arange(1, n)
    mean = np.array([1 + 2 * np.sum((1 - lags / n) * rho**lags) for rho in _RHO])
    factors: NDArray[np.float64] = mean / (1 - (mean - 1) / (n - 1))
    return factors


def reach_of_mean(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean of two or more independent values, by Student's t."""
    return student_t((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


@lru_cache(maxsize=1024)  # few levels and numbers of blocks, requested many times
def student_t(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t for 0.5 <= probability < 1 and whole degrees of freedom, to 1e-9."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        high *= 2
    while high - low > 1e-9 * (1 + low):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _medians(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the medians of smoothed resamples of a sorted sample, (2 * RESAMPLES,)."""
    n = len(ordered)
    chosen, noise = _draws(n)
    width = float(np.std(ordered, ddof=1)) / math.sqrt(n)
    resampled = np.concatenate([ordered[chosen] + width * noise, ordered[n - 1 - chosen] - width * noise])
    resampled.sort(axis=1)  # much faster than np.median on many short rows
    medians: NDArray[np.float64] = (resampled[:, (n - 1) // 2] + resampled[:, n // 2]) / 2
    return medians


def _student_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t) for t >= 0, by the finite series for whole degrees of freedom (Abramowitz, Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = total = 0.0
    if freedom > 1:
        term = total = math.cos(angle) if odd else 1.0
    square = math.cos(angle) ** 2
    for k in range(2 + odd, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    two_sided = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + two_sided) / 2


def _block_log(repetitions: Mapping[int, tuple[float, float]]) -> float | None:
    """Return the log of sum of amounts / sum of denominators of a block's repetitions; None if either is 0."""
    amount = math.fsum(amount for amount, _ in repetitions.values())
    per = math.fsum(per for _, per in repetitions.values())
    return math.log(amount / per) if amount > 0 and per > 0 else None


@lru_cache(maxsize=64)
def _draws(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return resampled indices and standard normal noise, both (RESAMPLES, n), equal for all estimates of n blocks."""
    generator = np.random.default_rng([RESAMPLING_SEED, n])
    return generator.integers(0, n, (RESAMPLES, n)), generator.standard_normal((RESAMPLES, n))


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, ``count`` of ``total`` > 0 (Wilson 1927, also valid near 0 and 1)."""
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
    share = count / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
