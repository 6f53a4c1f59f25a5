"""Costs from step times whose truth is known: every figure here is worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.cost import (
    ArmMeasurement,
    ArmWork,
    HourlyPrice,
    PredictedCost,
    SpendingLimit,
    arm_cost,
    cost_of_trials,
    rounded_up,
    training_work,
)
from harness.judge.doubts import barred
from harness.judge.policy import STEPS_AFTER_CHECKPOINT
from tests.examples import examples

EVEN = ArmMeasurement(
    "even", (9.0, *[0.1] * 19), unsettled=1, startup_s=3.0, import_s=2.0, launcher_s=1.0, ending_s=4.0
)
# One checkpoint in step 20: 0.3 s to copy, 2 s to write beside the next steps, two of which take 0.5 s longer.
SAVING = replace(
    EVEN, steps_s=(9.0, *[0.1] * 19, 0.4, 0.6, 0.6, 0.1, 0.1, 0.1), checkpoint=20, saving_s=0.3, writing_s=2.0
)
hours = pytest.approx


def test_a_training_of_even_steps_takes_the_sum_of_its_parts() -> None:
    found = arm_cost(EVEN, training_work(1001, False, None, None, None))
    assert found.total.likely == hours(1 + 2 + 3 + 9 + 1000 * 0.1 + 4)
    assert found.total.low == hours(found.total.likely)
    assert found.total.worst == hours(found.total.likely)
    assert cost_of_trials(EVEN, 7, training_work(11, False, None, None, None)).likely == hours(7 * (6 + 9 + 1 + 4))
    price = HourlyPrice(3.6, "option")
    assert price.of_seconds(found.total.likely) == hours(0.119)


def test_no_worst_case_lies_below_the_upper_end_of_the_interval() -> None:
    """The slowest of the last ten may be faster than what the median may be: the first half was slower."""
    slow_first = replace(EVEN, steps_s=(9.0, *[0.12] * 9, *[0.1] * 9, 0.11))
    step, each = slow_first.step, slow_first.each_of_many
    assert step.worst == 0.11 < step.high  # as the table has it
    assert each == replace(step, worst=step.high)
    found = arm_cost(slow_first, ArmWork(1001))
    assert not found.has_long_steps
    assert found.total.likely <= found.total.high <= found.total.worst


@pytest.mark.parametrize("saves", [False, True])
def test_prefetched_batches_are_left_out_and_the_slowest_of_the_last_ten_steps_is_the_worst(saves: bool) -> None:
    steps = [50.0, *[0.001] * 4, 7.0, *[0.2] * 13, 0.3]
    one = replace(EVEN, steps_s=tuple(steps), unsettled=5)
    if saves:
        one = replace(one, steps_s=(*steps, 5.0, 0.5), checkpoint=20)
    assert len(one.plain_s) == 15
    assert one.step.likely == hours(0.2)
    assert one.step.worst == hours(0.3)  # step 5 took 7 s, before the last ten
    found = arm_cost(one, ArmWork(10))
    assert found.slowest_step == 19
    if not saves:
        assert one.mean_step_s == hours((13 * 0.2 + 0.3) / 14)  # no step was usual before it: starting made it long
        assert found.has_long_steps == (one.mean_step_s > one.step.high)
    plain, waiting = (arm_cost(replace(one, waits=waits), ArmWork(100, most_extra=60)).total for waits in (False, True))
    assert plain == arm_cost(one, ArmWork(100)).total
    # Only the worst case of an arm that waits has extra warm-up steps.
    assert waiting == replace(plain, worst=waiting.worst)
    assert waiting.worst > plain.worst


@pytest.mark.parametrize("place", [3, 8, 17])
def test_where_some_steps_are_long_many_take_the_mean_each(place: int) -> None:
    """A step in 15 takes 1.5 s: a million take 35.6 h, not the 8.3 h of a million medians."""
    usual = [0.03] * 18
    one = replace(EVEN, steps_s=(9.0, *usual[:place], 1.5, *usual[place:]))
    found = arm_cost(one, ArmWork(1_000_001))
    mean = (18 * 0.03 + 1.5) / 19
    assert found.has_long_steps
    assert found.total.likely == hours(6 + 9 + 4 + 1e6 * mean)
    assert found.total.low == hours(19 + 1e6 * found.step.low)
    assert found.total.low < 1e6 * (14 * 0.03 + 1.5) / 15 < found.total.high
    assert found.total.worst == hours(19 + 1e6 * 1.5)  # wherever it was, also before the last ten
    assert found.step.worst == hours(1.5 if place >= 9 else 0.03)
    assert PredictedCost("training", "one", (one,), (found.work,), (None,), SpendingLimit(hours=12)).exceeds()
    assert not arm_cost(EVEN, ArmWork(10)).has_long_steps


@pytest.mark.parametrize(
    ("steps", "every", "passes"), [(100, None, 1), (100, 25, 4), (101, 25, 5), (24, 25, 1), (1, 1, 1)]
)
def test_passes_are_those_that_training_makes(steps: int, every: int | None, passes: int) -> None:
    work = training_work(steps, True, every, None, None)
    assert work.passes == passes
    evaluated = replace(EVEN, passes_s=(3.0, 2.0))
    found = arm_cost(evaluated, work).evaluation
    assert (found.likely, found.worst) == (hours(2.0 * passes), hours(3.0 * passes))


def test_passes_over_questions_are_counted_by_themselves() -> None:
    measured = replace(EVEN, passes_s=(0.2, 0.1), answers_s=(3.0,))
    found = arm_cost(measured, replace(training_work(11, True, 5, None, None), last_checkpoint=False, answers=2))
    assert found.evaluation.likely == hours(3 * 0.1)
    assert found.answering.likely == hours(2 * 3.0)
    assert found.total.likely == hours(3 + 2 + 1 + 9 + 10 * 0.1 + 0.3 + 6 + 4)


def test_a_checkpoint_costs_its_copy_and_what_its_writing_takes_of_the_next_steps() -> None:
    found = SAVING.one_checkpoint(60.0)
    assert found.likely == hours(0.3 + 0.5 + 0.5)
    assert found.worst == hours(0.3 + 2.0)
    assert SAVING.one_checkpoint(0.5).likely == hours(0.3 + 1.5)  # the next one waits for what is not written yet
    waits = replace(SAVING, asynchronous=False, saving_s=2.3)
    assert waits.one_checkpoint(60.0).likely == hours(2.3)
    assert SAVING.last_checkpoint.likely == hours(2.3)
    assert len(SAVING.steps_s) == 20 + 1 + STEPS_AFTER_CHECKPOINT
    assert SAVING.step.likely == hours(0.1)


@pytest.mark.parametrize(("steps", "every", "count"), [(100, 10, 10), (95, 10, 10), (10, 10, 1), (9, 10, 1)])
def test_checkpoints_by_steps(steps: int, every: int, count: int) -> None:
    found = arm_cost(SAVING, training_work(steps, False, None, every, None))
    assert found.checkpoints == count
    each = SAVING.one_checkpoint(every * 0.1).likely
    assert found.saving.likely == hours((count - 1) * each + 2.3)


def test_checkpoints_by_minutes_are_counted_from_the_predicted_time() -> None:
    found = arm_cost(SAVING, training_work(6001, False, None, None, 60.0))
    assert found.checkpoints == 10 + 1  # 609 s of steps
    assert found.saving.likely == hours(10 * 1.3 + 2.3)


@examples(25)
@given(steps=st.integers(1, 10**7), more=st.integers(1, 10**6), walls=st.lists(st.floats(1e-4, 1e3), min_size=20))
def test_more_steps_take_longer_and_bounds_are_in_order(steps: int, more: int, walls: list[float]) -> None:
    one = replace(EVEN, steps_s=tuple(walls))
    fewer, longer = arm_cost(one, ArmWork(steps)).total, arm_cost(one, ArmWork(steps + more)).total
    assert fewer.low <= fewer.likely <= fewer.high
    assert fewer.likely <= fewer.worst
    assert longer.likely > fewer.likely
    assert longer.worst > fewer.worst


@pytest.mark.parametrize(
    ("usd", "to", "rounded"), [(1.29, 0.5, 1.5), (1.5, 0.5, 1.5), (0.3, 0.1, 0.3), (2.01, 1, 3), (1.2, None, 1.2)]
)
def test_prices_are_rounded_up(usd: float, to: float | None, rounded: float) -> None:
    assert rounded_up(HourlyPrice(usd, "option", 8), to).per_hour_usd == hours(8 * rounded)


def test_a_limit_in_dollars_and_hours_is_the_first_that_is_reached() -> None:
    assert SpendingLimit(usd=20).seconds(4.0) == hours(5 * 3600)
    assert SpendingLimit(hours=6).seconds(None) == hours(6 * 3600)
    assert SpendingLimit(usd=20, hours=6).seconds(4.0) == hours(5 * 3600)
    assert SpendingLimit(usd=20, hours=1).seconds(4.0) == hours(3600)
    assert SpendingLimit(usd=20).seconds(None) is None


def test_arms_add_up_and_what_exceeds_the_limit_is_known() -> None:
    dear = replace(EVEN, arm="dear", steps_s=(9.0, *[0.2] * 19))
    price = HourlyPrice(3600.0, "option")  # a dollar a second
    both = PredictedCost(
        "training", "two", (EVEN, dear), (ArmWork(101), ArmWork(101)), (price, price), SpendingLimit(usd=68.0)
    )
    assert both.total.likely == hours(29 + 39)
    assert both.usd(both.total.likely) == hours(68.0)
    assert not replace(both, limit=SpendingLimit(usd=68.001)).exceeds()
    assert replace(both, limit=SpendingLimit(usd=67.9)).exceeds()
    half = replace(both, of="study", spent_s=40.0)
    assert half.exceeds(0.5)  # 40 s spent and 34 s to go
    assert not replace(half, spent_s=33.9).exceeds(0.5)
    resumed = replace(half, of="training")
    assert resumed.left_s(0.5) == hours(2 * (6 + 4) + (68 - 2 * (6 + 4)) / 2)  # each starts and ends once more
    assert resumed.left_s(0.0) == hours(68)
    assert resumed.left_s(1.0) == 0
    assert replace(both, prices=(price, None)).per_hour_usd is None
    mixed = replace(both, prices=(price, HourlyPrice(7200.0, "device", 1, "x")))
    assert mixed.usd(both.total.likely) == hours(29 + 2 * 39)


def test_the_error_is_that_of_what_was_done_whole() -> None:
    done = PredictedCost("training", "one", (EVEN,), (ArmWork(101),), (None,), spent_s=31.9, standing="done")
    assert done.error == hours(0.1)
    assert replace(done, spent_s=36.9, measuring_s=5.0).error == hours(0.1)  # measuring is in no prediction
    assert replace(done, standing="stopped").error is None
    assert replace(done, standing="unfinished").error is None


@pytest.mark.parametrize("slow", [10, 13, 15])
@pytest.mark.parametrize("factor", [2.1, 0.5])
def test_steps_that_change_are_predicted_by_the_last_ones(slow: int, factor: float) -> None:
    """A cold start was predicted to go on: 3.71 min of a training that took 1.3 min."""
    walls = [9.0, *[0.1 * factor] * slow, *[0.1] * (21 - slow)]
    changing = replace(EVEN, steps_s=tuple(walls))
    steady = arm_cost(EVEN, ArmWork(1001)).total.likely
    assert arm_cost(changing, ArmWork(1001)).total.likely == pytest.approx(steady, rel=0.01)
    assert changing.drift == pytest.approx(1 / factor, rel=0.01)
    assert changing.step.worst >= max(walls[-10:])
    (found,) = changing.doubts
    assert (found.kind, found.share) == ("drift", pytest.approx(1 / factor - 1, rel=0.01))


@pytest.mark.parametrize(
    ("steps_s", "waiting", "doubts"),
    [
        ((9.0, *[0.1] * 19), 0.0, []),
        ((9.0, *[0.1] * 19), 0.11, ["no core"]),
        ((9.0, *[0.1] * 19), 0.09, []),
        ((9.0, *[0.1] * 10, 1.0, *[0.1] * 8), 0.0, ["rare long steps"]),
        ((9.0, *(0.1 + 0.002 * step for step in range(19))), 0.0, ["drift"]),
        ((9.0, *(0.1 + 0.0002 * step for step in range(19))), 0.0, []),  # 2 % in all
        ((9.0, *(0.1 + 0.002 * step for step in range(9))), 0.0, []),  # too few steps
    ],
)
def test_a_cost_has_the_doubts_that_a_report_of_these_steps_would_have(
    steps_s: tuple[float, ...], waiting: float, doubts: list[str]
) -> None:
    found = replace(EVEN, steps_s=steps_s, waiting_share=waiting).doubts
    assert [one.kind for one in found] == doubts
    assert (barred(found, "prediction") is not None) == ("no core" in doubts)


def test_steps_that_get_longer_do_not_hide_long_ones_that_recur() -> None:
    """Steps grow by 7 %, and each 10th takes a second more: about half of the true time was predicted."""
    steps_s = tuple(0.1 * (1 + 0.07 * step / 40) + (1.0 if step % 10 == 5 else 0.0) for step in range(40))
    measured = replace(EVEN, steps_s=steps_s)
    assert measured.mean_step_s == pytest.approx(sum(steps_s[1:]) / 39, rel=0.1)
