"""Power laws whose truth is known, through optima of simulated curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sweep.fit import LearningRateOptimum
from harness.sweep.power_law import (
    SHARE,
    Extrapolation,
    NoExtrapolation,
    NoPowerLaw,
    PowerLaw,
    extrapolate,
    fit_power_law,
)
from tests.benchmarks.sweep_intervals import projection_coverage
from tests.examples import examples
from tests.harness.sweep.curves import drawn_projections

SIZES = [26e6, 52e6, 105e6]
TARGET = 420e6


def bounded(low: float | None, rate: float, high: float | None) -> LearningRateOptimum:
    return LearningRateOptimum(rate, low, high, 5.0, None, 0.99, 6, low, high)


def optimum(rate: float, half: float | None = 0.1) -> LearningRateOptimum:
    """With an interval of a factor of exp(half) to each side."""
    return bounded(None, rate, None) if half is None else bounded(rate * math.exp(-half), rate, rate * math.exp(half))


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
    level = law([optimum(3e-3), optimum(3.05e-3), optimum(2.98e-3)])  # as with mup: R2 says nothing then
    assert (level.meaningless, level.slope_low < 0 < level.slope_high) == (None, True)
    assert predicted(level).learning_rate == pytest.approx(3e-3, rel=0.1)
    ahead = predicted(found)
    assert ahead.learning_rate == pytest.approx(true_rate(TARGET))
    assert ahead.ci_low < ahead.learning_rate < ahead.ci_high
    assert ahead.beyond == pytest.approx(math.log(TARGET / 105e6) / math.log(105e6 / 26e6))


def test_optima_that_lie_further_off_the_line_than_their_intervals_widen_it() -> None:
    exact, scattered = (
        law([optimum(true_rate(size) * off) for size, off in zip(SIZES, offs, strict=True)])
        for offs in ((1, 1, 1), (1.3, 1 / 1.3, 1.3))
    )
    assert (exact.tau2, scattered.tau2) == (pytest.approx(0, abs=1e-9), pytest.approx(0.18, abs=0.05))
    assert sum(scattered.reach(TARGET)) > 5 * sum(exact.reach(TARGET))


EVERY_DAY = {("ten times", 24), ("straight sides", 16)}


@pytest.mark.parametrize(("curve", "rates", "noise"), [
    pytest.param(
        *(curve, rates, noise), marks=() if (curve, rates) in EVERY_DAY else (pytest.mark.slow, pytest.mark.nightly)
    )
    for curve in ("two parabolas", "ten times", "cliff", "straight sides")
    for rates, noise in ((16, 0.1), (24, 0.3))
])  # fmt: skip
def test_projections_of_noisy_optima_hold_the_best_rate(curve: str, rates: int, noise: float) -> None:
    """Curves that are steeper on one side, whose best rates follow a power law exactly."""
    found = projection_coverage(drawn_projections(curve, rates, noise, 100))
    assert found.lines > 0.6
    assert found.held >= 0.95


def test_which_optima_are_in_no_line_however_well_they_lie_on_one() -> None:
    """Three optima exactly on a line, as chance has it: one without an interval says nothing of how sure it is."""
    rates = [true_rate(size) for size in SIZES]
    wide = [bounded(1.9e-3, rates[0], 3.7e-2), bounded(None, rates[1], None), bounded(2.7e-4, rates[2], 5.2e-3)]
    edge = LearningRateOptimum(1e-2, 5e-3, None, 5.0, "high", 0.9, 5, 5e-3, None)
    for sizes, optima, left in (
        (SIZES, wide, (2, 0, 1)),
        (SIZES, [bounded(None, rates[0], 3.7e-2), *wide[1:]], (1, 0, 2)),
        (SIZES, [optimum(1e-3), optimum(9e-4), edge], (2, 1, 0)),
        ([1e6] * 4, [optimum(1e-3)] * 4, (1, 0, 0)),
        *((SIZES[:count], [optimum(1e-3)] * count, (count, 0, 0)) for count in range(3)),
    ):
        assert fit_power_law(sizes, optima) == NoPowerLaw("too-few-sizes", *left)


def test_an_interval_adds_those_of_its_optima_whatever_r2_is() -> None:
    """The end of one optimum's interval alone moves the line at the target by its share of the weights."""
    narrow = law([optimum(true_rate(size), 0.05) for size in SIZES])
    wide = law([optimum(true_rate(size), 0.5) for size in SIZES])
    assert narrow.r2 == pytest.approx(1)
    assert wide.r2 == pytest.approx(1)
    for one, half in ((narrow, 0.05), (wide, 0.5)):
        x = np.log(SIZES)
        lever = 1 / 3 + (math.log(TARGET) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
        assert one.reach(TARGET) == pytest.approx((SHARE * half * math.sqrt(lever),) * 2, rel=1e-3)


def test_an_interval_is_as_lopsided_as_those_of_its_optima() -> None:
    found = law([bounded(0.9 * rate, rate, 2 * rate) for rate in map(true_rate, SIZES)])
    below, above = found.reach(52e6)  # every optimum has a positive weight there
    assert above / below == pytest.approx(math.log(2) / math.log(1 / 0.9), rel=0.01)
    far_below, far_above = found.reach(TARGET)  # the smallest size counts against the others
    assert 1 < far_above / far_below < above / below


@pytest.mark.parametrize(("rates", "half", "size", "reason"), [
    ([1e-3, 8e-3, 1e-3], 0.1, TARGET, "scatter"),
    ([3e-3, 2e-3, 1.5e-3], 2.0, TARGET, "slope"),
    ([3e-3, 2.3e-3, 1.7e-3], 0.05, 1e12, "too-far"),
    ([3e-3, 2.3e-3, 1.7e-3], 0.6, 3e9, "interval"),
])  # fmt: skip
def test_a_meaningless_extrapolation_is_refused(rates: list[float], half: float, size: float, reason: str) -> None:
    found = extrapolate(law([optimum(rate, half) for rate in rates]), size)
    assert (type(found), found.reason) == (NoExtrapolation, reason)


@examples(200)
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
