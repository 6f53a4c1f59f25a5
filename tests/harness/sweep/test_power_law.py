"""Power laws whose truth is known, through optima of simulated curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sweep.fit import LearningRateOptimum, fit_optimum
from harness.sweep.power_law import (
    Extrapolation,
    NoExtrapolation,
    NoPowerLaw,
    PowerLaw,
    extrapolate,
    fit_power_law,
)
from tests.harness.sweep.curves import drawn_projections

SIZES = [26e6, 52e6, 105e6]
TARGET = 420e6


def optimum(rate: float, half: float | None = 0.1) -> LearningRateOptimum:
    """With an interval of a factor of exp(half) to each side."""
    low, high = (None, None) if half is None else (rate * math.exp(-half), rate * math.exp(half))
    return LearningRateOptimum(rate, low, high, 5.0, None, 0.99, 6, low, high)


def law(optima: Sequence[LearningRateOptimum], sizes: Sequence[float] = SIZES) -> PowerLaw:
    found = fit_power_law(sizes, optima)
    assert isinstance(found, PowerLaw), found
    return found


def predicted(found: PowerLaw, size: float = TARGET) -> Extrapolation:
    one = extrapolate(found, size)
    assert isinstance(one, Extrapolation), one
    return one


def true_rate(size: float) -> float:
    return 3e-3 * (size / 26e6) ** -0.4


def test_optima_on_a_line_give_it_back() -> None:
    found = law([optimum(true_rate(size)) for size in SIZES])
    assert found.slope == pytest.approx(-0.4)
    assert found.r2 == pytest.approx(1)
    assert found.tau2 == pytest.approx(0, abs=1e-9)
    ahead = predicted(found)
    assert ahead.learning_rate == pytest.approx(true_rate(TARGET))
    assert ahead.ci_low < ahead.learning_rate < ahead.ci_high
    assert ahead.beyond == pytest.approx(math.log(TARGET / 105e6) / math.log(105e6 / 26e6))


@pytest.mark.parametrize("tau", [0.0, 0.1])
def test_predictions_hold_the_truth_of_curves_with_noise(tau: float) -> None:
    """From trials to the prediction: 300 searches of three sizes; the optimum of a fourth also lies ``tau`` off."""
    generator = np.random.default_rng(3)
    factors = [2.0**k for k in range(-4, 5)]
    held = made = 0
    for _ in range(300):
        optima = []
        *true, ahead = (true_rate(size) * math.exp(tau * generator.standard_normal()) for size in (*SIZES, TARGET))
        for best in true:
            rates = [best * 0.8 * factor for factor in factors]
            noise = 0.01 * generator.standard_normal(len(rates))
            losses = [5 + 0.05 * math.log(rate / best) ** 2 + one for rate, one in zip(rates, noise, strict=True)]
            found = fit_optimum(rates, losses)
            assert isinstance(found, LearningRateOptimum)
            optima.append(found)
        fit = fit_power_law(SIZES, optima)
        assert isinstance(fit, PowerLaw)
        centre, half = fit.intercept + fit.slope * math.log(TARGET), fit.half_width(TARGET)
        made += isinstance(extrapolate(fit, TARGET), Extrapolation)
        held += abs(math.log(ahead) - centre) <= half
    # Of 300: at 0.95 fewer than 276 happens once in 100 times; with a scatter that three sizes rarely show, 0.9 is what
    # the module's head says, and fewer than 255 happens once in 200 times.
    assert held >= (255 if tau else 276)
    assert made > (60 if tau else 150)


def test_of_lopsided_curves_predictions_hold_what_a_search_would_find_and_not_the_best_rate() -> None:
    """What the report and the module's head say the interval is of. True optima lie on a power law exactly."""
    made = held_search = held_best = 0
    for one in drawn_projections("straight sides", 16, 0.1, 150):
        optima = [fit_optimum(sweep.rates, sweep.losses) for sweep in one.sweeps]
        found = [
            (size, fit) for size, fit in zip(one.sizes, optima, strict=True) if isinstance(fit, LearningRateOptimum)
        ]
        line = fit_power_law([size for size, _ in found], [fit for _, fit in found])
        search = fit_optimum(one.searched.rates, one.searched.losses)  # without noise
        assert isinstance(search, LearningRateOptimum)
        if isinstance(line, PowerLaw) and isinstance(ahead := extrapolate(line, one.target), Extrapolation):
            made += 1
            held_search += ahead.ci_low <= search.learning_rate <= ahead.ci_high
            held_best += ahead.ci_low <= one.searched.best <= ahead.ci_high
    assert made > 130
    assert held_search >= 0.95 * made
    assert 0.6 * made < held_best < 0.9 * made


def test_a_level_line_is_a_finding() -> None:
    """With mup the optimum does not depend on the width: R2 says nothing then."""
    found = law([optimum(3e-3), optimum(3.05e-3), optimum(2.98e-3)])
    assert found.meaningless is None
    assert found.slope_low < 0 < found.slope_high
    assert predicted(found).learning_rate == pytest.approx(3e-3, rel=0.1)


def test_without_intervals_the_scatter_alone_says_how_sure_it_is() -> None:
    sizes = [1e6, 4e6, 16e6, 64e6]
    rates = [1e-2, 6.1e-3, 3.5e-3, 2.2e-3]
    some = [optimum(rates[0], None), *map(optimum, rates[1:])]
    none = [optimum(rate, None) for rate in rates]
    assert law(some, sizes) == law(none, sizes)
    assert predicted(law(none, sizes), 256e6).ci_low < 1.3e-3 < predicted(law(none, sizes), 256e6).ci_high


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_sizes_are_no_line(count: int) -> None:
    found = fit_power_law(SIZES[:count], [optimum(1e-3)] * count)
    assert found == NoPowerLaw("too-few-sizes", count, 0)
    assert fit_power_law([1e6] * 4, [optimum(1e-3)] * 4) == NoPowerLaw("too-few-sizes", 1, 0)


def test_an_optimum_at_the_end_of_its_range_is_left_out() -> None:
    edge = LearningRateOptimum(1e-2, 5e-3, None, 5.0, "high", 0.9, 5, 5e-3, None)
    assert fit_power_law(SIZES, [optimum(1e-3), optimum(9e-4), edge]) == NoPowerLaw("too-few-sizes", 2, 1)


@pytest.mark.parametrize(
    ("rates", "half", "size", "reason"),
    [
        ([1e-3, 8e-3, 1e-3], 0.1, TARGET, "scatter"),
        ([3e-3, 2e-3, 1.5e-3], 2.0, TARGET, "slope"),
        ([3e-3, 2.3e-3, 1.7e-3], 0.05, 1e12, "too-far"),
        ([3e-3, 2.3e-3, 1.7e-3], 0.5, 3e9, "interval"),
    ],
)
def test_a_meaningless_extrapolation_is_refused(rates: list[float], half: float, size: float, reason: str) -> None:
    found = extrapolate(law([optimum(rate, half) for rate in rates]), size)
    assert isinstance(found, NoExtrapolation)
    assert found.reason == reason


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1, 1e12), st.floats(1e-8, 1e2), st.one_of(st.none(), st.floats(0, 5))),
        max_size=6,
        unique_by=lambda one: round(math.log(one[0]), 1),
    ),
    st.floats(1e-3, 1e15),
)
def test_whatever_is_given_an_answer_is_sound(points: list[tuple[float, float, float | None]], size: float) -> None:
    found = fit_power_law([one for one, _, _ in points], [optimum(rate, half) for _, rate, half in points])
    if isinstance(found, NoPowerLaw):
        assert found.sizes < 3
        return
    assert found.slope_low <= found.slope <= found.slope_high
    assert found.r2 <= 1 + 1e-6
    one = extrapolate(found, size)
    if isinstance(one, Extrapolation):
        assert found.meaningless is None
        assert 0 < one.ci_low <= one.learning_rate <= one.ci_high
        assert one.ci_high / one.ci_low <= 10 * (1 + 1e-9)
