"""What bars a verdict, and what would settle it: one cause by one precedence, with a number where there is one."""

from __future__ import annotations

import pytest

from harness.explain.statistics import Estimate
from harness.judge.comparisons import without_data
from harness.judge.doubts import barred, doubt
from harness.judge.losses import Losses
from harness.judge.policy import COARSE_RESOLUTION, ENOUGH_BLOCKS
from harness.judge.verdicts import blocks_to_decide, judge

GAIN = Estimate(1.2, 1.15, 1.25, 5)
NOISY = Estimate(1.225, 0.088, 542.2, 4)
DIVERGED = Losses(3.0, None, ("tokens",))


def test_the_cause_is_the_first_doubt_of_the_table_and_the_others_stay_known() -> None:
    found = judge(GAIN, 0.01, DIVERGED, doubts=[doubt("host load", share=0.4)], in_total=0.9)
    assert found.undecided == "diverged"
    assert [one.kind for one in found.doubts] == ["diverged", "long steps", "host load"]
    waited = judge(GAIN, 0.01, DIVERGED, doubts=[doubt("no core", "tokens", share=0.2)])
    assert waited.cause == doubt("no core", "tokens", share=0.2)


def test_a_doubt_that_bars_a_gain_leaves_a_loss() -> None:
    found = judge(Estimate(0.8, 0.75, 0.85, 5), 0.01, DIVERGED)
    assert (found.verdict, found.cause) == ("loss", None)
    assert [one.kind for one in found.doubts] == ["diverged"]


@pytest.mark.parametrize(
    ("ratio", "floor", "kind", "remedy", "blocks"),
    [
        (Estimate(1.2, None, None, 2), 0.01, "too few blocks", "more blocks", ENOUGH_BLOCKS),
        (GAIN, None, "no noise floor", "a-a control", ENOUGH_BLOCKS),
        (Estimate(1.02, 0.9, 1.15, 5), 0.01, "too coarse", "more blocks", 9),
        (Estimate(1.0, 0.55, 1.8, 5), 0.01, "too coarse", "quiet machine", None),
    ],
)
def test_undecided_says_what_would_decide(
    ratio: Estimate, floor: float | None, kind: str, remedy: str, blocks: int | None
) -> None:
    cause = judge(ratio, floor).cause
    assert cause is not None
    assert cause.kind == kind
    assert cause.remedy is not None
    assert (cause.remedy.kind, cause.remedy.blocks) == (remedy, blocks)


def test_an_unfinished_study_is_finished_before_it_gets_more_blocks() -> None:
    cause = judge(Estimate(1.02, 0.9, 1.15, 4), 0.01, few_blocks="finish the study").cause
    assert cause is not None
    assert cause.remedy is not None
    assert (cause.kind, cause.remedy.kind) == ("too coarse", "finish the study")


def test_the_number_of_blocks_is_one_whose_interval_decides() -> None:
    """An interval shrinks as Student's quantile / sqrt(n): 2.484 of 3 blocks, 1.591 of 4, 1.242 of 5, 0.769 of 9."""
    wide = Estimate(1.0, 1 / 1.2, 1.2, 3)
    assert blocks_to_decide(wide, 0.0) == 5  # 1.2 ** (1.242 / 2.484) is below 1.1, and 1.2 ** (1.591 / 2.484) is not
    assert blocks_to_decide(wide, 0.3) == 9  # the floor shrinks as slowly
    assert blocks_to_decide(Estimate(1.0, 0.01, 100.0, 20), 0.0) is None


def test_steady_times_of_unlike_batches_ask_for_more_steps_and_not_for_another_machine() -> None:
    found = judge(Estimate(1.0, 0.7, 1.4, 5), 0.01, step_time=Estimate(1.0, 0.98, 1.02, 5)).cause
    assert found is not None
    assert found.remedy is not None
    assert found.remedy.kind == "more steps a block"


@pytest.mark.parametrize(("ratio", "floor"), [(NOISY, 0.05), (Estimate(1.1, 0.9, 1.3, 5), 141.07)])
def test_what_could_not_show_a_2x_change_is_no_figure(ratio: Estimate, floor: float) -> None:
    found = judge(ratio, floor, cores=(1.6, 2.0))
    assert found.undecided == "too noisy"
    assert barred(found.doubts, "ratio") == found.cause
    assert found.cause is not None
    assert found.cause.cores == (1.6, 2.0)


@pytest.mark.parametrize("ratio", [Estimate(5.0, 2.2, 11.0, 5), Estimate(4.5, 0.88, 6.9, 5), GAIN])
def test_what_a_wide_interval_still_shows_stays_a_figure(ratio: Estimate) -> None:
    """Surely over twice as fast is no noise. Nor is what may be much faster, and is no more than 12 % slower."""
    assert barred(judge(ratio, 0.05).doubts, "ratio") is None


def test_a_wide_interval_for_all_comparisons_together_takes_no_figure_away() -> None:
    """Of eight comparisons, on an H200: 7.9x (1.8x to 10.2x) alone, 0.5x to 12.8x together. It stays undecided."""
    found = judge(Estimate(7.9, 0.497, 12.8, 5), 0.01, shown=Estimate(7.9, 1.83, 10.2, 5))
    assert found.undecided == "too coarse"
    assert barred(found.doubts, "ratio") is None


def test_what_is_known_without_a_noise_floor_stays_known() -> None:
    noisy = judge(NOISY, None, DIVERGED)
    assert (noisy.verdict, noisy.undecided, noisy.resolution) == ("undecided", "no noise floor", None)
    assert {one.kind for one in noisy.doubts} >= {"too noisy", "no noise floor", "diverged"}
    assert barred(noisy.doubts, "ratio") is not None
    clear = judge(GAIN, None, DIVERGED, used_lead=(0.3, 0.3))
    assert (clear.verdict, clear.resolution) == ("undecided", None)
    assert {one.kind for one in clear.doubts} >= {"no noise floor", "diverged", "lead"}


def test_steps_that_hold_other_work_are_no_noise() -> None:
    found = judge(Estimate(1.0, 0.4, 2.5, 5), 0.01, step_time=Estimate(1.0, 0.98, 1.02, 5))
    assert found.undecided == "too coarse"


def test_the_lead_that_hides_a_difference_keeps_the_resolution_of_the_measurement() -> None:
    found = judge(Estimate(1.0, 0.98, 1.02, 5), 0.01, used_lead=(0.05, 0.05))
    assert (found.undecided, found.resolution) == ("lead", pytest.approx(0.02))
    assert (found.resolution or 0) < COARSE_RESOLUTION


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
    found = without_data(Estimate(1.009, 1.008, 1.01, 5), ideal)
    assert found is not None
    assert found.median == median
