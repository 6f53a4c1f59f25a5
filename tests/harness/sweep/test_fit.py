"""Optima of curves whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sweep.fit import LARGEST_LOSS, MIN_RATES, LearningRateOptimum, NoOptimum, fit_optimum
from tests.benchmarks.sweep_intervals import SEARCHES, coverage
from tests.examples import examples
from tests.harness.sweep.curves import CURVES, DrawnSweep, drawn_sweeps

GRID = [1e-4 * 2**k for k in range(10)]  # to 5.1e-2
BEST = GRID[5] * 1.3
SEEDS = 400
# Of 400 intervals that hold the truth with probability 0.95: fewer than 364 or more than 394 happen once in 2,000 times
# together (binomial).
FEWEST, MOST = 364, 394


def curve(rate: float, best: float = BEST, steepness: float = 0.05) -> float:
    return 5 + steepness * math.log(rate / best) ** 2


def fitted(rates: list[float], losses: list[float]) -> LearningRateOptimum:
    found = fit_optimum(rates, losses)
    assert isinstance(found, LearningRateOptimum), found
    return found


def test_without_noise_the_optimum_is_the_curve_s() -> None:
    found = fitted(GRID, [curve(rate) for rate in GRID])
    assert found.learning_rate == pytest.approx(BEST, rel=1e-6)
    assert found.loss == pytest.approx(5)
    assert found.r2 == pytest.approx(1)
    assert (found.at_edge, found.points) == (None, 5)
    assert found.vertex_low == pytest.approx(BEST, rel=1e-3)
    assert found.vertex_high == pytest.approx(BEST, rel=1e-3)
    # Of a loss whose shape is not known no more is known than that: GRID[5] is the lowest.
    assert (found.ci_low, found.ci_high) == (pytest.approx(GRID[4]), pytest.approx(GRID[6]))


DENSE = sorted([*GRID, *[rate * 1.4 for rate in GRID]])


@pytest.mark.parametrize(("noise", "rates"), [(0.003, GRID), (0.01, DENSE), (0.01, sorted(GRID * 2))])
def test_the_vertex_s_intervals_hold_that_of_a_quadratic_as_often_as_they_say(rates: list[float], noise: float) -> None:
    draws = np.random.default_rng(1).standard_normal((SEEDS, len(rates))) * noise
    losses = np.array([curve(rate) for rate in rates]) + draws
    found = [fitted(rates, row.tolist()) for row in losses]
    held = sum((one.vertex_low or 0) <= BEST <= (one.vertex_high or math.inf) for one in found)
    # The reach to the cubic's minimum and the window about a noisy lowest point move it a little: both are allowed for.
    assert FEWEST <= held <= MOST + 3
    assert sum(one.holds(BEST) for one in found) >= held


@pytest.mark.parametrize("curve", CURVES)
def test_without_noise_every_interval_holds_the_minimum_of_any_curve(curve: str) -> None:
    for spacing in (1.5, 2, 3):
        found = coverage(drawn_sweeps(curve, spacing, 0, 50))
        assert (found.held, found.fitted > 40) == (1, True)


def fewest(draws: int, chance: float = 0.95, rarer: float = 1e-3) -> int:
    """Of ``draws`` events of that chance, fewer than so many happen with a probability below ``rarer`` (binomial)."""
    below = 0.0
    for number in range(draws + 1):
        ways = math.lgamma(draws + 1) - math.lgamma(number + 1) - math.lgamma(draws - number + 1)  # a logarithm
        below += math.exp(ways + number * math.log(chance) + (draws - number) * math.log(1 - chance))
        if below >= rarer:
            return number
    raise AssertionError(below)


SWEEPS: dict[str, Callable[[str], Iterator[DrawnSweep]]] = {
    # noise in steps between neighbours
    f"{spacing} apart, noise {noise}": partial(drawn_sweeps, spacing=spacing, noise=noise, draws=300)
    for spacing in (1.5, 2, 3)
    for noise in (0.3, 1, 2)
}
# noise in what a factor of 2 adds
SWEEPS |= {
    f"{name}, noise {noise}": partial(of, noise=noise, draws=200) for name, of in SEARCHES.items() for noise in (0.3, 1)
}
SWEEPS |= {f"{seeds} seeds": partial(drawn_sweeps, spacing=2, noise=4, draws=1100, seeds=seeds) for seeds in (2, 4)}
DAILY = {(curve, "2 apart, noise 1") for curve in CURVES}
DAILY |= {*zip(2 * ["ten times", "exponential"], (f"{name}, noise 0.3" for name in SEARCHES), strict=True)}


@pytest.mark.parametrize(("curve", "sweeps"), [
    pytest.param(curve, sweeps, marks=() if (curve, sweeps) in DAILY else (pytest.mark.slow, pytest.mark.nightly))
    for curve in CURVES
    for sweeps in SWEEPS
    if curve == "exponential" or "seeds" not in sweeps
])  # fmt: skip
def test_intervals_hold_the_minimum_of_any_curve_with_noise_in_95_percent(curve: str, sweeps: str) -> None:
    """An interval of the quadratic's vertex alone holds it in half to three quarters of the lopsided ones.

    Of close rates, one standard error in place of the test of a difference holds too few of the curves ten times as
    steep; a short trial that diverges closes the range, so above it nothing is fitted.
    """
    found = coverage(SWEEPS[sweeps](curve))
    assert found.fitted >= 115
    assert round(found.held * found.fitted) >= fewest(found.fitted)


@pytest.mark.parametrize(
    ("curve", "noise", "most"), [("parabola", 0.3, 2), ("two parabolas", 0.3, 3), ("parabola", 1, 3)]
)
def test_of_six_to_twelve_rates_an_interval_is_two_or_three_spacings(curve: str, noise: float, most: float) -> None:
    """Between the neighbours of the lowest rate lie two. Half the intervals are no wider than ``most``."""
    found = [fit_optimum(one.rates, one.losses) for one in drawn_sweeps(curve, 2, noise, 200)]
    widths = [
        math.log(one.ci_high / one.ci_low, 2)
        for one in found
        if isinstance(one, LearningRateOptimum) and one.ci_low is not None and one.ci_high is not None
    ]
    assert len(widths) > 130
    assert np.median(widths) <= most * (1 + 1e-9)


FIVE = [1e-3 * 2.0**k for k in range(-2, 3)]
NO_CUBIC = [one / math.sqrt(70) for one in (1, -4, 6, -4, 1)]  # residuals of a cubic: their squares add up to 1


@pytest.mark.parametrize(("steepness", "low", "high"), [  # FIVE[2] is the lowest.
    (0.02, FIVE[0], FIVE[4]),  # FIVE[3] is 0.0040 above it, FIVE[1] 0.0120.
    (0.04, FIVE[1], FIVE[4]),  # FIVE[3] 0.0200, FIVE[1] 0.0360
    (0.06, FIVE[1], FIVE[3]),  # FIVE[3] 0.0360
])  # fmt: skip
def test_the_interval_reaches_around_all_rates_that_chance_may_have_put_above_the_lowest(steepness, low, high):
    """The scatter of the trials, of which each rate has one, is that about a cubic: 0.01 (5 - 4 degrees of freedom).

    The difference of two of them has 2 ** 0.5 as much; 1.645 times that is 0.0233.
    """
    losses = [5 + steepness * (k - 0.1) ** 2 + 0.01 * one for k, one in zip(range(-2, 3), NO_CUBIC, strict=True)]
    found = fitted(FIVE, losses)
    assert (found.ci_low, found.ci_high) == (pytest.approx(low), pytest.approx(high))
    assert found.vertex_low > FIVE[1]


@pytest.mark.parametrize(("off", "high"), [(0.0037, FIVE[3]), (0.0038, FIVE[4])])
def test_the_standard_error_is_that_of_means_of_seeds(off: float, high: float) -> None:
    """10 trials lie ``off`` beside a parabola: they scatter by off * (10 / 6) ** 0.5, a difference of means of two too.

    1.645 times that is 2.12 * off. FIVE[3] is 0.008 above FIVE[2], FIVE[1] is 0.012 above it.
    """
    curve_itself = [5 + 0.01 * (k - 0.1) ** 2 for k in range(-2, 3)]
    found = fitted(FIVE * 2, [one + off for one in curve_itself] + [one - off for one in curve_itself])
    assert (found.ci_low, found.ci_high) == (pytest.approx(FIVE[1]), pytest.approx(high))


def test_a_rate_of_more_seeds_is_sooner_above_the_lowest() -> None:
    """Trials lie 0.005 beside a parabola, FIVE[3] 0.008 above FIVE[2].

    Of two seeds each, chance explains 1.645 * 0.005 * (10 / 6) ** 0.5 = 0.0106; where FIVE[3] has eight,
    1.645 * 0.005 * (16 / 12 * (1 / 2 + 1 / 8)) ** 0.5 = 0.0075.
    """
    losses = [5 + 0.01 * (k - 0.1) ** 2 + off for k in range(-2, 3) for off in (0.005, -0.005)]
    rates = [rate for rate in FIVE for _ in range(2)]
    assert fitted(rates, losses).ci_high == pytest.approx(FIVE[4])
    assert fitted(rates + 6 * [FIVE[3]], losses + 3 * losses[6:8]).ci_high == pytest.approx(FIVE[3])


def test_an_end_is_open_where_the_last_rate_may_be_the_lowest() -> None:
    """FIVE[1] is the lowest, and FIVE[0] within its standard error; the fitted vertex lies between the two."""
    losses = [5 + 0.01 * (k + 1.4) ** 2 + 0.01 * one for k, one in zip(range(-2, 3), NO_CUBIC, strict=True)]
    found = fitted(FIVE, losses)
    assert (found.at_edge, found.ci_low) == (None, None)
    assert found.ci_high is not None
    mirrored = fitted([1e-6 / rate for rate in FIVE], losses)
    assert (mirrored.at_edge, mirrored.ci_high) == (None, None)
    assert mirrored.ci_low == pytest.approx(1e-6 / found.ci_high)


def test_a_lopsided_curve_widens_the_interval() -> None:
    """Its own minimum is 10 to 20 % above the vertex: the cubic says so."""
    rates = [1e-4 * 1.5**k for k in range(16)]
    losses = [curve(rate) if rate < BEST else curve(rate) + 0.05 * math.log(rate / BEST) ** 3 for rate in rates]
    found = fitted(rates, losses)
    assert 0.8 < found.learning_rate / BEST < 1
    assert found.vertex_high > 0.95 * BEST  # 0.92 of the quadratic alone
    # The sweep tiniest: a lowest trial below the fitted minimum is never outside of it.
    rates = [1e-4 * 10 ** (k / 3) for k in range(10)]
    losses = [5.0503, 4.5779, 4.0853, 3.7131, 3.4573, 3.1969, 3.1173, 3.5913, 3.6859, 4.9072]
    found = fitted(rates, losses)
    assert found.ci_low <= rates[5] < found.learning_rate < rates[6]
    assert found.ci_high == pytest.approx(rates[7])


def test_what_bounds_an_optimum_and_its_interval() -> None:
    high = fitted(GRID[:5], [curve(rate, best=1) for rate in GRID[:5]])
    assert (high.at_edge, high.learning_rate, high.ci_high) == ("high", pytest.approx(GRID[4]), None)
    low = fitted(GRID[5:], [curve(rate, best=1e-5) for rate in GRID[5:]])
    assert (low.at_edge, low.learning_rate, low.ci_low) == ("low", pytest.approx(GRID[5]), None)
    # Losses of 8 rates still fall at the last one, above which training diverges: the optimum is between the two.
    found = fitted(GRID, [curve(rate, best=1) for rate in GRID[:8]] + [math.nan, math.inf])
    ends = (pytest.approx(GRID[7]), pytest.approx(GRID[8]))
    assert (found.at_edge, found.learning_rate, found.ci_high) == (None, *ends)
    # A loss that is unknown, as it ended early, is in no fit, but worse than the lowest.
    found = fitted(GRID, [math.inf if k in (3, 4) else curve(rate) for k, rate in enumerate(GRID)])
    assert (found.ci_low, found.ci_high) == (pytest.approx(GRID[4]), pytest.approx(GRID[6]))


def test_a_cliff_next_to_the_optimum_does_not_move_it() -> None:
    losses = [curve(rate) for rate in GRID]
    losses[7] = 9.0  # not yet diverged
    found = fitted(GRID, losses)
    assert found.learning_rate == pytest.approx(BEST, rel=0.01)
    assert found.points == 4


def test_what_has_no_optimum_is_refused() -> None:
    few = ([], [5.0], [5.0, 4.9, 5.1], [math.nan] * 6, [5.0, 4.0, math.inf, math.nan, 4.5])
    for losses, reason in (
        *((losses, "too-few") for losses in few), ([5.0] * 6, "flat"), ([5.0, 5.2, 5.3, 5.2, 5.0], "not-convex"),
    ):  # fmt: skip
        found = fit_optimum(GRID[: len(losses)], losses)
        assert (type(found), found.reason) == (NoOptimum, reason)
    with pytest.raises(ValueError, match="above 0"):
        fit_optimum([1e-3, 0.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="2 learning rates, 1 losses"):
        fit_optimum([1e-3, 1e-2], [1.0])


rates_and_losses = st.lists(
    st.tuples(st.floats(1e-12, 1e6), st.one_of(st.none(), st.floats(), st.floats(0, 20), st.integers(0, 3).map(float))),
    max_size=14,
)


@examples(300)
@given(rates_and_losses)
def test_whatever_is_given_an_answer_is_sound(trials: list[tuple[float, float | None]]) -> None:
    found = fit_optimum([rate for rate, _ in trials], [loss for _, loss in trials])
    finite = {rate for rate, loss in trials if loss is not None and abs(loss) < LARGEST_LOSS}
    if isinstance(found, NoOptimum):
        assert found.reason != "too-few" or found.rates < MIN_RATES
        assert (found.lowest is None) == (not finite)
        return
    assert min(finite) * (1 - 1e-9) <= found.learning_rate <= max(finite) * (1 + 1e-9)
    assert found.holds(found.learning_rate)
    assert MIN_RATES <= found.points <= len(trials)
    assert found.r2 <= 1 + 1e-9
    assert math.isfinite(found.loss)


@examples(50)
@given(st.permutations(range(8)), st.floats(1e-3, 1e3), st.floats(-5, 5), st.floats(0.1, 10))
def test_order_and_units_change_nothing(order: list[int], rate_unit: float, offset: float, loss_unit: float) -> None:
    noise = [0.001, -0.002, 0.0015, 0.0, -0.001, 0.002, -0.0015, 0.0005]
    rates, losses = GRID[:8], [curve(rate) + one for rate, one in zip(GRID, noise, strict=False)]
    plain = fitted(rates, losses)
    changed = fitted([rate_unit * rates[k] for k in order], [offset + loss_unit * losses[k] for k in order])
    assert changed.learning_rate == pytest.approx(rate_unit * plain.learning_rate, rel=1e-6)
    assert changed.ci_low == pytest.approx(rate_unit * (plain.ci_low or 0), rel=1e-6)
    assert changed.loss == pytest.approx(offset + loss_unit * plain.loss)
