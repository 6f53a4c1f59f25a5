"""Data paths alone and in training, from tables whose truth is declared: what a sample costs, and times as fast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.controls import DataPath
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show import numbers
from harness.show.first_screen import first_screen
from harness.show.markdown import page
from harness.show.names import ArmNames
from harness.show.summary import summary
from tests.examples import examples
from tests.harness.synthetic import Arm, build

ROW = {"data.sequence_length": 256}  # 2048 positions in a step: 8 rows
NAIVE = Arm("naive", read=1.0, tokenize=7.0, pack=1.6, config=ROW)
FAST = Arm("fast", read=0.05, tokenize=0.0, pack=0.05, config=ROW)


def study(arms: list[Arm], baseline: str | None = "naive", **noise: Any) -> StudyReport:
    record, runs = build(
        [*arms, *(one for arm in arms for one in arm.controls("data-only")), *arms[0].controls("a-a")],
        [("naive", "fast")],
        blocks=5,
        spans=False,
        **noise,
    )
    asked = {} if baseline is None else {"isolated_baseline": baseline}
    return analyse(replace(record, scenario_text={**record.scenario_text, **asked}), runs)


def by_arm(report: StudyReport) -> dict[str, DataPath]:
    return {one.arm: one for one in report.data_paths}


def test_what_a_sample_costs_alone_and_what_it_is_worth_in_training() -> None:
    report = study([NAIVE, FAST])
    found = by_arm(report)
    naive, fast = found["naive"], found["fast"]
    assert naive.loop_ms is not None
    # 9.6 ms a step of 8 rows, and what the simulated loop takes beside it.
    assert naive.sample_ms.median == pytest.approx((9.6 + naive.loop_ms) / 8, rel=0.15)
    assert naive.tokens_per_s.median == pytest.approx(256e3 / naive.sample_ms.median, rel=1e-6)
    assert fast.times.median == pytest.approx(naive.sample_ms.median / fast.sample_ms.median, rel=0.02)
    assert naive.times.median == pytest.approx(1)
    # 29.7 ms of compute in a step: 39.3 against 29.8 ms.
    assert fast.training_times.median == pytest.approx(39.3 / 29.8, rel=0.03)
    assert (fast.measure, naive.waited_ms) == ("trained tokens/s", pytest.approx(9.6, rel=0.15))
    screen = first_screen(report)
    shown = page(report, screen, ()).markdown
    section = shown.partition("## The data paths alone")[2].partition("\n## ")[0]
    assert "times as fast as naive" in section
    assert "Alone fast is" in section
    assert "; data costs naive " in section
    assert "; trained with, steps take 2" in section
    assert "; by trained tokens/s, which include the size of a step, 1.3" in section
    assert section.count("\n| fast |") == 2
    assert "are the loop around the data path" in section
    read = summary(report, screen)["data_paths"]
    assert isinstance(read, list)
    assert [one["arm"] for one in read if isinstance(one, dict)] == ["naive", "fast"]


@given(
    tokenize=st.floats(0.0, 12.0),
    trained=st.integers(500, 2048),
    block=st.floats(0.0, 0.3),
    day=st.floats(0.0, 0.2),
    seed=st.integers(0, 2**31),
)
@examples(10)
def test_the_time_of_a_step_is_judged_once(tokenize: float, trained: int, block: float, day: float, seed: int) -> None:
    """The page said "steps are 1.082x as fast" of medians that are not paired, and beside it that this is not known."""
    naive, fast = replace(NAIVE, tokenize=tokenize), replace(FAST, trained=trained)
    report = study([naive, fast], noise={"block": block, "day": day}, seed=seed, steps=2, repetitions=2)
    (compared,), found = report.compared, by_arm(report)
    measured = compared.measured
    assert (found["fast"].step_time, found["fast"].steps) == (measured.step_time, measured.steps)
    assert (found["naive"].mean_step_ms, found["naive"].waited_ms) == (
        measured.baseline_waits.step_ms,
        measured.baseline_waits.waited_ms,
    )
    if measured.measured_per_step == 1:  # what each step holds is alike: the verdict is about their time
        assert (measured.steps.verdict, measured.steps.resolution) == (measured.verdict, measured.resolution)


def test_without_a_baseline_nothing_is_said() -> None:
    report = study([NAIVE, FAST], baseline=None)
    assert report.data_paths == ()
    assert "data paths alone" not in page(report, first_screen(report), ()).markdown
    assert "data_paths" not in summary(report, first_screen(report))


def test_at_each_point_of_a_matrix_the_baseline_is_that_point_s() -> None:
    arms = [replace(one, name=f"{one.name}@batch_size={size}") for size in (1, 2) for one in (NAIVE, FAST)]
    found = by_arm(study(arms))
    assert {arm: one.baseline for arm, one in found.items()} == {
        arm.name: f"naive@{arm.name.partition('@')[2]}" for arm in arms
    }
    lines = numbers.data_paths(list(found.values()), ArmNames([arm.name for arm in arms]))
    assert lines.count("Alone fast") == 2
    assert "times as fast as naive" in lines


def test_a_source_of_the_users_own_has_no_samples_and_an_arm_without_control_no_figures() -> None:
    own = replace(FAST, name="own", config={**ROW, "data.source": "mine:make"})
    record, runs = build(
        [NAIVE, own, FAST, *NAIVE.controls("data-only"), *own.controls("data-only")], blocks=3, spans=False
    )
    report = analyse(replace(record, scenario_text={"isolated_baseline": "naive"}), runs)
    found = by_arm(report)
    assert found["own"].sample_ms is None
    assert found["own"].times is not None
    assert found["fast"].times is None
    assert found["fast"].training_times is not None
    assert "| fast | – | – | – | – |" in numbers.data_paths(report.data_paths, ArmNames(["naive", "own", "fast"]))


def test_an_arm_that_was_left_out_is_a_warning_on_the_first_screen() -> None:
    record, runs = build([NAIVE, FAST], [("naive", "fast")], blocks=3, spans=False)
    report = analyse(replace(record, left_out={"odd": ["gigatoken", "fastokens"]}), runs)
    line = "odd was left out: it needs gigatoken and fastokens, missing where the study ran."
    assert line in first_screen(report).beware
