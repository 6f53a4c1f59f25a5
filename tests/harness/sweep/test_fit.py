"""Optima of curves whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sweep.fit import LARGEST_LOSS, MIN_RATES, LearningRateOptimum, NoOptimum, fit_optimum

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


@pytest.mark.parametrize("rates", [GRID, sorted([*GRID, *[rate * 1.4 for rate in GRID]]), sorted(GRID * 2)])
@pytest.mark.parametrize("noise", [0.003, 0.01])
def test_the_vertex_s_intervals_hold_that_of_a_quadratic_as_often_as_they_say(rates: list[float], noise: float) -> None:
    draws = np.random.default_rng(1).standard_normal((SEEDS, len(rates))) * noise
    losses = np.array([curve(rate) for rate in rates]) + draws
    found = [fitted(rates, row.tolist()) for row in losses]
    held = sum((one.vertex_low or 0) <= BEST <= (one.vertex_high or math.inf) for one in found)
    # The reach to the cubic's minimum and the window about a noisy lowest point move it a little: both are allowed for.
    assert FEWEST <= held <= MOST + 3
    assert sum(one.holds(BEST) for one in found) >= held


def lopsided(generator: np.random.Generator) -> Callable[[float], float]:
    """A loss over log(rate / best), lowest at 0: two steepnesses, a cubic or exponential rise on the high side."""
    low, high = 0.05 * 10 ** generator.uniform(-0.5, 0.5, 2)
    bend = generator.uniform(0.8, 2.5)
    vertex = math.log(3 / bend) / bend
    kinds = (
        lambda x: (low if x < 0 else high) * x**2,
        lambda x: low * x**2 + (0.05 * x**3 if x > 0 else 0),
        lambda x: 0.05 * (math.exp(bend * (x + vertex)) - 3 * x) - 0.15 / bend,
    )
    return kinds[generator.integers(len(kinds))]


@pytest.mark.parametrize("noise", [0, 0.003, 0.01])
@pytest.mark.parametrize("spacing", [1.5, 2, 3])
def test_intervals_of_lopsided_curves_hold_their_minimum(spacing: float, noise: float) -> None:
    """An interval of the quadratic's vertex alone holds it in 47 to 76 % of these."""
    generator = np.random.default_rng(5)
    rates = [1e-4 * spacing**k for k in range(10)]
    held = 0
    for _ in range(SEEDS):
        loss = lopsided(generator)
        best = math.exp(generator.uniform(math.log(rates[2]), math.log(rates[-3])))
        losses = [5 + loss(math.log(rate / best)) + noise * generator.standard_normal() for rate in rates]
        held += fitted(rates, [one if one < 7 else math.nan for one in losses]).holds(best)
    assert held >= FEWEST


def test_a_lopsided_curve_widens_the_interval() -> None:
    """Its own minimum is 10 to 20 % above the vertex: the cubic says so."""
    rates = [1e-4 * 1.5**k for k in range(16)]
    losses = [curve(rate) if rate < BEST else curve(rate) + 0.05 * math.log(rate / BEST) ** 3 for rate in rates]
    found = fitted(rates, losses)
    assert 0.8 < found.learning_rate / BEST < 1
    assert found.vertex_high is not None
    assert found.vertex_high > 1.03 * found.learning_rate


def test_a_lowest_trial_below_the_fitted_minimum_is_never_outside_the_interval() -> None:
    """The sweep tiniest, which this happened to: trials at 1.07e-2 and 1.25e-2 had 3.10 and 3.11."""
    rates = [1e-4 * 10 ** (k / 3) for k in range(10)]
    losses = [5.0503, 4.5779, 4.0853, 3.7131, 3.4573, 3.1969, 3.1173, 3.5913, 3.6859, 4.9072]
    found = fitted(rates, losses)
    assert found.learning_rate < rates[6]
    assert found.ci_low is not None
    assert found.ci_low <= rates[5]
    assert found.ci_high == pytest.approx(rates[7])
    assert found.holds(1.25e-2)


def test_a_range_that_excludes_the_optimum_is_said() -> None:
    high = fitted(GRID[:5], [curve(rate, best=1) for rate in GRID[:5]])
    assert (high.at_edge, high.learning_rate, high.ci_high) == ("high", pytest.approx(GRID[4]), None)
    low = fitted(GRID[5:], [curve(rate, best=1e-5) for rate in GRID[5:]])
    assert (low.at_edge, low.learning_rate, low.ci_low) == ("low", pytest.approx(GRID[5]), None)


def test_a_range_that_ends_in_divergence_was_wide_enough() -> None:
    """Losses of 8 rates still fall at the last one, above which training diverges: the optimum is between the two."""
    losses = [curve(rate, best=1) for rate in GRID[:8]] + [math.nan, math.inf]
    found = fitted(GRID, losses)
    assert found.at_edge is None
    assert found.learning_rate == pytest.approx(GRID[7])
    assert found.ci_high == pytest.approx(GRID[8])


def test_a_cliff_next_to_the_optimum_does_not_move_it() -> None:
    losses = [curve(rate) for rate in GRID]
    losses[7] = 9.0  # not yet diverged
    found = fitted(GRID, losses)
    assert found.learning_rate == pytest.approx(BEST, rel=0.01)
    assert found.points == 4


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([], "too-few"),
        ([5.0], "too-few"),
        ([5.0, 4.9, 5.1], "too-few"),
        ([math.nan] * 6, "too-few"),
        ([5.0, 4.0, math.inf, math.nan, 4.5], "too-few"),
        ([5.0] * 6, "flat"),
        ([5.0, 5.2, 5.3, 5.2, 5.0], "not-convex"),
    ],
)
def test_what_has_no_optimum_is_refused(losses: list[float], reason: str) -> None:
    found = fit_optimum(GRID[: len(losses)], losses)
    assert isinstance(found, NoOptimum)
    assert found.reason == reason


def test_wrong_input_is_an_error() -> None:
    with pytest.raises(ValueError, match="above 0"):
        fit_optimum([1e-3, 0.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="2 learning rates, 1 losses"):
        fit_optimum([1e-3, 1e-2], [1.0])


rates_and_losses = st.lists(
    st.tuples(
        st.floats(1e-12, 1e6),
        st.one_of(st.none(), st.floats(), st.floats(0, 20), st.integers(0, 3).map(float)),
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(8)), st.floats(1e-3, 1e3), st.floats(-5, 5), st.floats(0.1, 10))
def test_order_and_units_change_nothing(order: list[int], rate_unit: float, offset: float, loss_unit: float) -> None:
    noise = [0.001, -0.002, 0.0015, 0.0, -0.001, 0.002, -0.0015, 0.0005]
    rates, losses = GRID[:8], [curve(rate) + one for rate, one in zip(GRID, noise, strict=False)]
    plain = fitted(rates, losses)
    changed = fitted([rate_unit * rates[k] for k in order], [offset + loss_unit * losses[k] for k in order])
    assert changed.learning_rate == pytest.approx(rate_unit * plain.learning_rate, rel=1e-6)
    assert changed.ci_low == pytest.approx(rate_unit * (plain.ci_low or 0), rel=1e-6)
    assert changed.loss == pytest.approx(offset + loss_unit * plain.loss)
