"""What bars a verdict, and what would settle it: one cause by one precedence, with a number where there is one."""

from __future__ import annotations

from typing import Any

import pytest

from harness.explain.statistics import Estimate
from harness.judge.comparisons import without_data
from harness.judge.doubts import barred, doubt
from harness.judge.losses import Losses
from harness.judge.policy import ENOUGH_BLOCKS
from harness.judge.verdicts import blocks_to_decide, judge

GAIN = Estimate(1.2, 1.15, 1.25, 5)
NOISY = Estimate(1.225, 0.088, 542.2, 4)
DIVERGED = Losses(3.0, None, ("tokens",))
ALIKE = Estimate(1.0, 0.98, 1.02, 5)
FINISH = {"few_blocks": "finish the study"}
COMPUTED = {"step_time": ALIKE}  # steps are steady, what they hold is not


def ratio(median: float, low: float, high: float) -> Estimate:
    return Estimate(median, low, high, 5)


@pytest.mark.parametrize(
    ("estimate", "floor", "more", "verdict", "resolution"),
    [
        (ratio(1.0, 0.9, 1.05), 0.01, {}, "none", 0.1),  # what goes unnoticed is what interval and floor both leave
        (ratio(1.0, 0.99, 1.005), 0.05, {}, "none", 0.05),
        (ratio(1.0, 1.0, 1.0), 0.0, {}, "none", 0.0),  # alike to the last digit, as on a device on paper
        # No difference is said only where one of ten percent would have shown.
        (ratio(1.0, 0.99, 1.01), 0.101, {}, "too coarse", None),
        (ratio(1.2, 1.188, 1.212), 0.25, {}, "too coarse", None),
        (ratio(0.8, 0.792, 0.808), 0.25, {}, "too coarse", None),
        (ratio(1.0, 0.899, 1.01), 0.01, {}, "too coarse", None),
        (ratio(1.0, 0.901, 1.01), 0.01, {}, "none", 0.099),
        # What batches that lay ready may explain or hide.
        (ratio(1.04, 1.03, 1.05), 0.01, {"used_lead": (0.0, 0.05)}, "lead", None),  # the candidate's may be too fast
        (ratio(1.04, 1.03, 1.05), 0.01, {"used_lead": (0.05, 0.0)}, "gain", None),  # the baseline's were: it is more
        (ratio(1.20, 1.18, 1.22), 0.01, {"used_lead": (0.0, 0.05)}, "gain", None),
        (ratio(0.96, 0.95, 0.97), 0.01, {"used_lead": (0.05, 0.0)}, "lead", None),
        (ratio(0.96, 0.95, 0.97), 0.01, {"used_lead": (0.0, 0.05)}, "loss", None),
        (ratio(1.00, 0.99, 1.01), 0.01, {"used_lead": (0.05, 0.0)}, "lead", None),
        (ratio(1.00, 0.97, 1.03), 0.01, {"used_lead": (0.02, 0.0)}, "none", 0.05),  # of the steps as they go on
        (ratio(1.00, 0.92, 1.08), 0.01, {"used_lead": (0.05, 0.0)}, "lead", None),  # a tenth could not be seen
        (ALIKE, 0.01, {"used_lead": (0.05, 0.05)}, "lead", 0.02),  # keeps the resolution of the measurement
        # An A/A control that is not its arm bars what is not further from 1.
        (GAIN, 0.01, {"same_again": ratio(1.1, 1.05, 1.3)}, "a-a apart", None),
        (GAIN, 0.01, {"same_again": ratio(1.02, 1.01, 1.03)}, "gain", None),
        # A doubt that bars a gain leaves a loss. Steps that hold other work are no noise.
        (ratio(0.8, 0.75, 0.85), 0.01, {"losses": DIVERGED}, "loss", None),
        (ratio(1.0, 0.4, 2.5), 0.01, COMPUTED, "too coarse", None),
        # Of eight comparisons, on an H200: 7.9x (1.8x to 10.2x) alone, 0.5x to 12.8x together.
        (ratio(7.9, 0.497, 12.8), 0.01, {"shown": ratio(7.9, 1.83, 10.2)}, "too coarse", None),
    ],
)
def test_a_verdict_or_what_bars_it(
    estimate: Estimate, floor: float, more: dict[str, Any], verdict: str, resolution: float | None
) -> None:
    found = judge(estimate, floor, **more)
    assert (found.undecided or found.verdict) == verdict
    if resolution is not None:
        assert found.resolution == pytest.approx(resolution)
    assert barred(found.doubts, "ratio") is None


def test_the_cause_is_the_first_doubt_of_the_table_and_the_others_stay_known() -> None:
    found = judge(GAIN, 0.01, DIVERGED, doubts=[doubt("host load", share=0.4)], in_total=0.9)
    assert found.undecided == "diverged"
    assert [one.kind for one in found.doubts] == ["diverged", "long steps", "host load"]
    waited = judge(GAIN, 0.01, DIVERGED, doubts=[doubt("no core", "tokens", share=0.2)])
    assert waited.cause == doubt("no core", "tokens", share=0.2)


@pytest.mark.parametrize(
    ("estimate", "floor", "more", "kind", "remedy", "blocks"),
    [
        (Estimate(1.2, None, None, 2), 0.01, {}, "too few blocks", "more blocks", ENOUGH_BLOCKS),
        (GAIN, None, {}, "no noise floor", "a-a control", ENOUGH_BLOCKS),
        (Estimate(1.02, 0.9, 1.15, 5), 0.01, {}, "too coarse", "more blocks", 9),
        (Estimate(1.0, 0.55, 1.8, 5), 0.01, {}, "too coarse", "quiet machine", None),
        # An unfinished study is finished before it gets more blocks.
        (
            Estimate(1.02, 0.9, 1.15, 4),
            0.01,
            {"few_blocks": "finish the study"},
            "too coarse",
            "finish the study",
            None,
        ),
        # Steady times of unlike batches ask for more steps and not for another machine.
        (Estimate(1.0, 0.7, 1.4, 5), 0.01, COMPUTED, "too coarse", "more steps a block", None),
    ],
)
def test_undecided_says_what_would_decide(
    estimate: Estimate, floor: float | None, more: dict[str, Any], kind: str, remedy: str, blocks: int | None
) -> None:
    cause = judge(estimate, floor, **more).cause
    assert (cause.kind, cause.remedy.kind) == (kind, remedy)
    assert blocks is None or cause.remedy.blocks == blocks


def test_the_number_of_blocks_is_one_whose_interval_decides() -> None:
    """An interval shrinks as Student's quantile / sqrt(n): 2.484 of 3 blocks, 1.591 of 4, 1.242 of 5, 0.769 of 9."""
    wide = Estimate(1.0, 1 / 1.2, 1.2, 3)
    assert blocks_to_decide(wide, 0.0) == 5  # 1.2 ** (1.242 / 2.484) is below 1.1, and 1.2 ** (1.591 / 2.484) is not
    assert blocks_to_decide(wide, 0.3) == 9  # the floor shrinks as slowly
    assert blocks_to_decide(Estimate(1.0, 0.01, 100.0, 20), 0.0) is None


@pytest.mark.parametrize(
    ("estimate", "floor", "barring"),
    [
        (NOISY, 0.05, True),
        (Estimate(1.1, 0.9, 1.3, 5), 141.07, True),
        # Surely over twice as fast is no noise. Nor is what may be much faster, and is no more than 12 % slower.
        (Estimate(5.0, 2.2, 11.0, 5), 0.05, False),
        (Estimate(4.5, 0.88, 6.9, 5), 0.05, False),
        (GAIN, 0.05, False),
    ],
)
def test_what_could_not_show_a_2x_change_is_no_figure(estimate: Estimate, floor: float, barring: bool) -> None:
    found = judge(estimate, floor, cores=(1.6, 2.0))
    assert (barred(found.doubts, "ratio") is not None) == barring
    if barring:
        assert found.undecided == "too noisy"
        assert barred(found.doubts, "ratio") == found.cause
        assert found.cause.cores == (1.6, 2.0)


def test_what_is_known_without_a_noise_floor_stays_known() -> None:
    noisy = judge(NOISY, None, DIVERGED)
    assert (noisy.verdict, noisy.undecided, noisy.resolution) == ("undecided", "no noise floor", None)
    assert {one.kind for one in noisy.doubts} >= {"too noisy", "no noise floor", "diverged"}
    assert barred(noisy.doubts, "ratio") is not None
    clear = judge(GAIN, None, DIVERGED, used_lead=(0.3, 0.3))
    assert (clear.verdict, clear.resolution) == ("undecided", None)
    assert {one.kind for one in clear.doubts} >= {"no noise floor", "diverged", "lead"}


@pytest.mark.parametrize(
    ("ideal", "median"),
    [
        (Estimate(1.429, 0.8, 2.5, 5), 1.009),
        (Estimate(1.429, 1.2, 2.5, 5), 1.429),  # surely faster than replay says
        (Estimate(1.05, 0.9, 1.2, 5), 1.05),
    ],
)
def test_a_ceiling_is_not_the_noise_of_its_control(ideal: Estimate, median: float) -> None:
    """Data costs 5 of 552 ms by replay: a control that was 0.8 to 2.5 times as fast does not show a gain of 43 %."""
    assert without_data(Estimate(1.009, 1.008, 1.01, 5), ideal).median == median
