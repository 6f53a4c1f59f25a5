"""Thresholds of the regression check decide: a figure on either side of each, with nothing taken from the policy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.explain.statistics import Estimate
from harness.regress.across import _alike_losses
from harness.regress.decision import Limits, judge, read_seconds, read_share
from harness.regress.gate import comparisons
from harness.regress.policy import ALTERNATED_WITHIN, APART_WITHIN
from harness.regress.report import markdown
from harness.regress.run import UntilDecided
from harness.regress.series import apart, series_of
from harness.study.store import StudyFolder
from tests.harness.regress.tables import BASE, HEAD, TWIN, recorded, run, steps_table, study
from trainer.errors import InputError


def change(percent: float) -> Estimate:
    """A change that is known to a tenth of a percent."""
    log = math.log1p(percent / 100)
    return Estimate(log, log - 0.001, log + 0.001, 9)


@pytest.mark.parametrize(("within", "percent", "outcome"), [
    (f"{100 * Limits().step} %", 0.7, "same"), (ALTERNATED_WITHIN, 0.7, "same"), (ALTERNATED_WITHIN, 1.3, "slower"),
    (ALTERNATED_WITHIN, -1.5, "faster"), (APART_WITHIN, 4.0, "same"), (APART_WITHIN, 6.0, "slower"),
])  # fmt: skip
def test_what_counts_as_the_same_by_default_and_on_another_day(within: str, percent: float, outcome: str) -> None:
    assert judge(change(percent), read_share(within, "within"), None, 0.95).outcome == outcome


def test_shares_and_times_as_people_write_them() -> None:
    shares = {"3%": 0.03, "0.5 %": 0.005, "100%": 1.0}
    assert {text: read_share(text, "within") for text in shares} == pytest.approx(shares)
    times = {"90s": 90, "10m": 600, "1.5h": 5400, "45": 45, "2 min": 120}
    assert {text: read_seconds(text, "--budget") for text in times} == times
    for text in ("3", "0.03", "-1%", "0%", "200%", "x%", ""):
        with pytest.raises(InputError, match=r"within '.*': allowed: a share such as 3%"):
            read_share(text, "within")
    for text in ("0", "-3s", "10d", "m", ""):
        with pytest.raises(InputError, match=r"--budget '.*': allowed: a time such as 90s"):
            read_seconds(text, "--budget")


def test_losses_of_two_days() -> None:
    assert [_alike_losses(1.0, other) for other in (1.03, 1.08)] == [True, False]


def test_a_question_that_takes_too_many_blocks_is_not_worth_asking() -> None:
    """An interval of ± 4 % from 16 blocks shrinks to ± 1 % in hundreds of blocks, one of ± 11 % in 2,000."""
    worth, hopeless = (judge(Estimate(0.0, -r, r, 16), 0.01, None, 0.95).more_blocks for r in (0.04, 0.11))
    assert (100 < worth < 1000, hopeless) == (True, None)


@pytest.mark.parametrize(("tokenize_ms", "has_line"), [(0.06, False), (0.16, True)])
def test_a_part_below_a_hundredth_of_the_step_has_no_line(tokenize_ms: float, has_line: bool) -> None:
    record, _ = study(0.0)
    table = steps_table(np.full((8, 4), 10.0), tokenize_ms=tokenize_ms, hidden=True)
    (found,) = comparisons(
        record, [run(arm, block, table) for arm in (BASE, TWIN, HEAD) for block in range(4)], Limits()
    )
    assert ("tokenize" in [one.name for one in found.parts]) == has_line


@pytest.mark.parametrize(("blocks", "is_enough"), [(1, False), (2, True)])
def test_a_side_that_failed_in_two_blocks_is_given_up(blocks: int, is_enough: bool, tmp_path: Path) -> None:
    record, runs = study(0.0, blocks=blocks)
    folder = StudyFolder(tmp_path)
    folder.write_study(record)
    for one in runs:
        folder.write_run(recorded(one, status="failed", error="it crashed").record)
    assert UntilDecided(Limits(), 1e6)(folder, record, blocks) == is_enough


def test_times_are_kept_to_nanoseconds() -> None:
    times = series_of(*study(0.0))[BASE].part_ms["step"]
    assert all(ms == round(ms, 6) for ms in times)
    assert any(ms != round(ms, 4) for ms in times)


def test_at_most_five_comparisons_have_a_sentence_each() -> None:
    (found,) = comparisons(*study(0.0), Limits())
    page = markdown([replace(found, name=f"arm {place}") for place in range(7)])
    assert sum(line.startswith("- **") for line in page.splitlines()) == 5


@pytest.mark.parametrize(("hour", "are_apart"), [(4, False), (9, True)])
def test_sessions_of_one_afternoon_are_one(hour: int, are_apart: bool) -> None:
    assert apart("2026-11-28T00:00:00+00:00", f"2026-11-28T{hour:02d}:00:00+00:00") == are_apart
