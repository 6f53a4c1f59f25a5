"""What is said of costs: each figure with its unit, the arithmetic on one line, and nothing that is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from harness.explain.statistics import Estimate
from harness.judge.cost import ArmWork, HourlyPrice, PredictedCost, SpendingLimit, Standing, sum_of, training_work
from harness.judge.doubts import doubt
from harness.judge.report_types import ArmTotals
from harness.show import cost as said
from tests.harness.judge.test_cost import EVEN, SAVING

TWO = PredictedCost(
    "training",
    "small",
    (SAVING, replace(EVEN, arm="other", passes_s=(2.0,))),
    (training_work(1001, False, None, 100, None), training_work(101, True, None, None, None)),
    (HourlyPrice(1.5, "option", given_usd=1.29),) * 2,
    SpendingLimit(usd=0.01),
)


def test_the_line_of_an_arm_has_every_part_and_their_sum() -> None:
    assert said.arithmetic(TWO.arms[1]) == (
        "other: 100 steps x 100 ms + step 0 9.00 s + start-up 6.00 s + 1 pass over held-out data 2.00 s "
        "+ ending 4.00 s = 31.0 s"
    )
    assert "11 checkpoints" in said.arithmetic(TWO.arms[0])


def test_long_steps_are_in_the_sum_and_both_worst_cases_are_named() -> None:
    """The table keeps the slowest of the last ten; the note names the slowest of all, which goes into the total."""
    long = replace(EVEN, steps_s=(9.0, *[0.03] * 7, 1.5, *[0.03] * 11))
    found = PredictedCost("training", "x", (long,), (ArmWork(1_000_001),), (None,), SpendingLimit(hours=12))
    assert "(predicted from the first 20 steps of each arm, of 1,000,001)" in said.lines(found)[0]
    assert "1,000,000 steps x 107 ms (mean) + " in said.arithmetic(found.arms[0])
    assert "(mean)" not in said.arithmetic(TWO.arms[1])
    (row,) = [line for line in said.lines(found) if line.startswith("even  ")]
    assert re.split(r"\s{2,}", row)[3] == "30.0 ms (step 10)"
    (note,) = [line for line in said.notes(found) if "some of its steps are long" in line]
    assert "1,000,001 steps are predicted by the mean" in note
    assert "the slowest after the start took 1,500 ms" in note
    assert "worst" not in " ".join((*said.lines(found), *said.notes(found), said.section(found)))
    assert "expected to take 29.8 h" in said.refusal(found)
    assert any("rarer than 1 in 19" in line for line in said.notes(found))


def test_sums_of_money_are_of_each_arm_at_its_own_price() -> None:
    dear = replace(TWO, prices=(HourlyPrice(1.0, "option"), HourlyPrice(100.0, "option")))
    spreads = [one.total for one in dear.arms]
    expected = sum_of([spreads[0].times(1 / 3600), spreads[1].times(100 / 3600)])
    assert dear.total_usd == expected
    assert expected.worst != pytest.approx(dear.usd(dear.total.worst))  # at the average of the two
    (total,) = [re.split(r"\s{2,}", line) for line in said.lines(dear) if line.startswith("sum")]
    assert total[-2:] == [said.money(expected.likely), said.money(expected.worst)]
    assert said.cost_json(dear)["usd"] == {name: getattr(expected, name) for name in ("likely", "low", "high", "worst")}
    section = said.section(replace(dear, spent_s=60.0))
    assert said.money(expected.worst) in section
    assert "the spending is not recorded per arm, and is charged at the average of" in section
    assert "not recorded per arm" not in said.section(replace(TWO, spent_s=60.0))


def test_the_table_has_hours_and_money_by_arm_and_in_all() -> None:
    rows = [re.split(r"\s{2,}", line) for line in said.lines(TWO)]
    (total,) = [row for row in rows if row[0] == "sum"]
    assert total[1] == "1,102"
    assert "rounded up from 1.29" in said.price_line(TWO)
    (other,) = [row for row in rows if row[0] == "other"]
    assert (other[4].partition(" ")[0], other[6]) == ("0.00861", "0.013 USD")  # 31 s
    unpriced = replace(TWO, prices=(None, None), limit=None)
    assert "the price is unknown, so only hours are predicted" in said.price_line(unpriced)
    assert not any("USD  " in line for line in said.lines(unpriced))
    assert said.cost_json(unpriced)["usd"] is None


def test_a_refusal_is_one_line_with_the_arithmetic() -> None:
    line = said.refusal(TWO)
    assert "\n" not in line
    assert line.startswith("budget: 0.01 USD, which is 24.0 s, but it is expected to take ")
    assert "other: 100 steps x 100 ms" in line
    assert "at 1.5 USD an hour" in line
    resumed = said.refusal(replace(TWO, spent_s=20.0), 0.5)
    assert "20.0 s spent + " in resumed


def test_what_the_measuring_took_is_part_of_what_is_spent_and_of_no_prediction() -> None:
    """A budget that the training alone would keep to is exceeded with it, and a refusal says how."""
    alone = replace(TWO, limit=SpendingLimit(hours=TWO.total.likely / 3600))
    assert not alone.exceeds()
    measured = replace(alone, spent_s=12.0, measuring_s=12.0)
    assert measured.exceeds()
    line = said.refusal(measured)
    assert "measuring the first steps, which is spent: 12.0 s; even: 1,000 steps x 100 ms" in line
    assert line.endswith(f"; together {said.duration(12 + TWO.total.likely)}")
    done = replace(measured, spent_s=12.0 + 1.1 * TWO.total.likely, standing="done")
    assert f"actual, including that | {said.duration(done.spent_s)} |" in said.section(done)
    assert "Without the measuring, the actual time differs from the predicted one by +10 %." in said.section(done)
    assert ", 12.0 s of it measuring the first steps (" in said.actual_line(done)
    assert said.cost_json(done)["measuring_s"] == 12.0


def test_the_worst_case_is_warned_of_only_where_it_is_beyond_the_limit() -> None:
    uneven = replace(EVEN, steps_s=(9.0, *[0.1] * 18, 0.3))
    one = PredictedCost("training", "one", (uneven,), (ArmWork(1001),), (None,), SpendingLimit(hours=130 / 3600))
    assert "319 s" not in said.refusal(one)
    assert "if every step is as slow as the slowest" in (said.worst_warning(one) or "")
    assert said.worst_warning(replace(one, limit=SpendingLimit(hours=1))) is None


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        ("done", "The actual time differs from the predicted one by "),
        ("stopped", "It was stopped at its budget: "),
        ("unfinished", "It has not run to its end: "),
    ],
)
def test_predicted_against_actual(standing: Standing, text: str) -> None:
    found = replace(TWO, spent_s=24.0, standing=standing)
    page = said.section(found)
    assert text in page
    assert "100 % of it is spent" in page
    assert "actual | 24.0 s" in page
    json.dumps(said.cost_json(found), allow_nan=False)
    assert said.section(None) == ""


def test_what_makes_a_prediction_unsure_is_noted() -> None:
    h100 = HourlyPrice(2.5, "profile", 1, "h100-sxm")
    assert "not on that device" in said.price_line(replace(TWO, prices=(h100, h100)))
    there = tuple(replace(one, profile="h100-sxm") for one in TWO.measured)
    assert "not on that device" not in said.price_line(replace(TWO, prices=(h100, h100), measured=there))
    emulated = tuple(replace(one, emulated=True, device="emulated gh200") for one in TWO.measured)
    assert sum("is emulated" in line for line in said.notes(replace(TWO, measured=emulated))) == 2
    waited = tuple(replace(one, waiting_share=share) for one, share in zip(TWO.measured, (0.2, 0.01), strict=True))
    (note,) = [line for line in said.notes(replace(TWO, measured=waited)) if "waited for a core" in line]
    assert note.startswith("even: for 20 % of the measured steps' time")
    no_core = said.doubt_json(doubt("no core", "even", share=0.2))
    assert said.cost_json(replace(TWO, measured=waited))["doubts"] == [no_core]
    slower = replace(EVEN, steps_s=(9.0, *(0.1 + 0.002 * step for step in range(19))))
    assert any("% longer than those before" in line for line in said.notes(replace(TWO, measured=(slower, slower))))
    unsure = [replace(TWO, measured=one) for one in (waited, (slower, slower), TWO.measured)]
    assert ["unreliable" in said.lines(one)[0] for one in unsure] == [True, True, False]


def test_the_steps_say_why_a_prediction_was_off() -> None:
    """Where others use the machine, the steps waited for a core."""
    even = Estimate(150.0, 140.0, 160.0, 5)
    totals = {"other": ArmTotals(step_ms=even, contended_ms=45.0), "even": ArmTotals(step_ms=even)}
    assert said.step_lines(TWO, totals) == [
        "even: a step was predicted to take 100 ms and took 150 ms.",
        "other: a step was predicted to take 100 ms and took 150 ms, 45.0 ms of it ready to run without a core "
        "(run-queue delay).",
    ]
    assert "- other: a step was predicted" in said.section(replace(TWO, spent_s=30.0), totals)


@pytest.mark.parametrize(("epoch", "share"), [(None, ""), (400.0, " (5.0 % of an epoch)"), (8.0, " (2.50 epochs)")])
def test_a_cost_names_the_share_of_an_epoch_that_it_measured(epoch: float | None, share: str) -> None:
    found = replace(TWO, measured=tuple(replace(arm, epoch_steps=epoch) for arm in TWO.measured))
    assert f"predicted from the first 20 steps{share} of each arm" in said.lines(found)[0]
