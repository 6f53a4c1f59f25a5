"""Steps that get longer: found where they do, and not after a warm-up, on a slower machine or with larger batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.trend import REST, Trend, trend

Float = NDArray[np.float64]
STEPS = 200
TIME = np.linspace(0.0, 1.0, STEPS)
CONSTANT = np.ones(STEPS)
SCATTER = 1 + 0.05 * np.random.default_rng(0).standard_normal(STEPS)


def found(parts: Mapping[str, Float], work: Float = CONSTANT) -> Trend | None:
    noisy = {name: ms * SCATTER for name, ms in parts.items()}
    phases = {name: ms for name, ms in noisy.items() if name != REST}
    return trend(sum(noisy.values(), np.zeros(len(work))), phases, work)


def split(forward: Float, backward: Float | None = None, rest: Float | None = None) -> dict[str, Float]:
    flat = np.ones(len(forward))
    return {
        "forward": forward,
        "backward": 4 * flat if backward is None else backward,
        REST: flat if rest is None else rest,
    }


GROWING = {
    "even": (split(5 + 10 * TIME), "forward", 5.0),
    "square": (split(5 + 10 * TIME**2), "forward", 10 / 3),
    "outside of all phases": (split(5 * CONSTANT, rest=1 + 8 * TIME), REST, 4.0),
    "from nothing": (split(5 * CONSTANT, 12 * TIME), "backward", 6.0),
}  # parts, the one that grows, mean milliseconds above the beginning


@pytest.mark.parametrize("case", GROWING)
def test_the_part_that_grows_and_its_cost_are_found(case: str) -> None:
    parts, part, ms = GROWING[case]
    one = found(parts)
    assert one.part == part
    assert one.ms == pytest.approx(ms, rel=0.12)
    assert one.low_ms < one.ms < one.high_ms
    assert one.part_share > 0.9


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2])
def test_steps_before_the_measured_ones_have_grown_as_well(share: float) -> None:
    """Found 56 % of a step where it was 75 %: the first measured steps were the beginning."""
    before = round(share * STEPS)
    growth = 0.1 * np.arange(before, before + STEPS)
    one = trend((5 + growth) * SCATTER, {}, CONSTANT, before=before)
    assert one.ms == pytest.approx(growth.mean(), rel=0.1)
    assert one.first_ms == pytest.approx(5, rel=0.1)
    assert one.low_ms < one.ms < one.high_ms


def test_growth_is_not_traced_back_for_longer_than_the_limit() -> None:
    wall_ms = 50 + 0.1 * np.arange(STEPS)
    begins = []
    for before in (policy.TREND_BEFORE_MAX * STEPS, 10 * STEPS):
        one = trend(wall_ms, {}, CONSTANT, before=round(before))
        begins.append(one.first_ms)
    assert begins == pytest.approx([50 - 0.1 * policy.TREND_BEFORE_MAX * STEPS] * 2, abs=0.1)


def test_a_part_that_grows_has_not_been_shorter_than_nothing() -> None:
    one = trend(20 + 0.1 * np.arange(STEPS), {"forward": np.full(STEPS, 19.0)}, CONSTANT, before=50)
    assert one.first_ms >= 19.0


LONG = np.where(np.arange(STEPS) % 40 == 39, 300.0, 0.0)
RATIO = policy.TREND_RATIO_MIN
SILENT = {
    "constant": split(5 * CONSTANT), "a drift below the ratio": split(5 + 10 * (RATIO - 1.05) * TIME),
    "shorter": split(15 - 10 * TIME), "a step up": split(np.where(TIME < 0.3, 5.0, 15.0)),
    "a queue that drains": split(5 + 10 * np.minimum(TIME / 0.4, 1)),
    "a few long steps, more often in the end": split(5 + LONG * (TIME > 0.5)),
    "a slower machine": {name: ms * (1 + TIME) for name, ms in split(5 * CONSTANT).items()},
}  # fmt: skip


@pytest.mark.parametrize("case", SILENT)
def test_no_trend_is_found_where_there_is_none(case: str) -> None:
    assert found(SILENT[case]) is None


def test_larger_batches_explain_longer_steps() -> None:
    parts = split(5 + 10 * TIME)
    ends = (15 + 5) / 10 - 1  # of the whole step
    assert found(parts, 1 + ends * policy.TREND_WORK_MAX * 1.5 * TIME) is None
    assert found(parts, 1 + ends * policy.TREND_WORK_MAX * 0.3 * TIME) is not None


def test_few_steps_show_no_trend() -> None:
    for steps, expected in ((policy.TREND_STEPS_MIN - 1, False), (policy.TREND_STEPS_MIN, True)):
        time = np.linspace(0.0, 1.0, steps)
        parts = split(5 + 20 * time)
        assert (trend(sum(parts.values(), np.zeros(steps)), parts, time * 0) is not None) == expected


def test_a_short_part_does_not_show_whether_all_rise() -> None:
    """A part below the limit that keeps its length does not make a slower machine a trend of the others."""
    whole = 10.0
    for share, expected in ((policy.TREND_PART_MIN * 0.5, False), (policy.TREND_PART_MIN * 1.5, True)):
        short = np.full(STEPS, share * whole)
        parts = {"forward": whole * (1 - share) * (1 + TIME), REST: short}
        # A single part is no comparison: two that rise alike are needed.
        parts = {"backward": parts["forward"] / 2, "forward": parts["forward"] / 2, REST: short}
        assert (found(parts) is not None) == expected


def test_a_quarter_without_a_rise_is_a_warm_up() -> None:
    last = policy.TREND_QUARTER_MIN

    def rising(in_last_quarter: float) -> Float:
        return 5 + 10 * np.interp(TIME, [0, 0.75, 1], [0, 1, 1 + in_last_quarter / 3])

    assert trend(rising(0.3 * last), {}, CONSTANT) is None
    assert trend(rising(0.3 * last), {}, CONSTANT, evident=True) is not None  # hooks grow: the machine is in use
    assert trend(rising(6 * last), {}, CONSTANT) is not None
