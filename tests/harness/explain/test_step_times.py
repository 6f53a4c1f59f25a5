"""Long runs are thinned, and no outlier is lost."""

from __future__ import annotations

import inspect

import numpy as np
import pyarrow as pa
import pytest

from harness.explain.policy import STEP_OUTLIERS_MAX
from harness.explain.spans import column
from harness.explain.unusual_steps import _evaluating, step_times
from harness.study.run_data import RunData
from tests.harness.synthetic import MS, Arm, build


def long_run(steps: int, slow: set[int]) -> RunData:
    return with_wall([(500 if at in slow else 30) * MS + 1000 * (at % 7) for at in range(steps + 1)])


def with_wall(wall: list[int]) -> RunData:
    """A run whose steps last so long, one of warm-up first; ns."""
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=len(wall) - 1)
    table = run.steps
    return RunData(
        run.record, table.set_column(table.column_names.index("wall_ns"), "wall_ns", pa.array(wall)), None, None
    )


@pytest.mark.parametrize(("slowest_ms", "outliers"), [(324, 0), (326, 1)])
def test_an_outlier_is_three_quartile_ranges_above_the_quartile(slowest_ms: int, outliers: int) -> None:
    """Quartiles of 125 and 175 ms."""
    run = with_wall([(100 + at % 101) * MS for at in range(101 * 5)] + [slowest_ms * MS])
    (found,) = step_times([run])
    assert found.outliers == outliers


def test_a_picture_shows_so_many_steps() -> None:
    assert inspect.signature(step_times).parameters["most"].default == 6_000


def test_every_outlier_of_a_long_run_is_shown() -> None:
    slow = {17, 623, 900}
    (found,) = step_times([long_run(1000, slow)], most=100)
    assert found.steps == 1000
    assert 90 <= len(found.step) <= 110
    assert {step for step, mark in zip(found.step, found.mark, strict=True) if mark == "outlier"} == slow
    assert found.outliers == 3
    assert list(found.start_s) == sorted(found.start_s)
    assert found.start_s[0] == 0.0


def test_of_too_many_outliers_the_slowest_are_shown_and_all_are_counted() -> None:
    slow = set(range(10, 10 + 3 * (STEP_OUTLIERS_MAX + 50), 3))
    (found,) = step_times([long_run(1500, slow)], most=100)
    assert found.outliers == len(slow)
    assert found.mark.count("outlier") == STEP_OUTLIERS_MAX


def test_short_runs_are_shown_whole_and_warmup_and_controls_are_not() -> None:
    arm = Arm("text")
    _, runs = build([arm, *arm.controls("a-a")], blocks=2, repetitions=3, steps=4)
    found = step_times(runs)
    assert [(one.arm, one.block, one.steps, len(one.step)) for one in found] == [
        ("text", 0, 12, 12),
        ("text", 1, 12, 12),
    ]
    assert set(found[0].repetition) == {0, 1, 2}
    assert 0 not in found[0].step  # the first step of a repetition is warm-up


@pytest.mark.parametrize(("count", "places"), [(0, []), (1, [4]), (2, [4, 6]), (3, [1, 4, 6])])
def test_steps_with_an_evaluation_are_shown_and_marked(count: int, places: list[int]) -> None:
    """Warm-up comes before the first measured step, unless an evaluation ran in it."""
    measured = np.array([False, False, True, True, False, True, False, True])
    found = _evaluating(measured, np.ones(8, bool), count)
    assert found.nonzero()[0].tolist() == places


def test_long_steps_outside_of_all_phases_write_checkpoints_where_the_program_saves() -> None:
    run = long_run(60, {20, 40})
    table = run.steps
    other = np.where(column(table, "wall_ns") > 100 * MS, 480 * MS, MS).astype(np.int64)
    place = table.column_names.index("other_ns")
    run = RunData(run.record, table.set_column(place, "other_ns", pa.array(other)), None, None)
    for saving, mark in (((), "outlier"), (("text",), "checkpoint")):
        (found,) = step_times([run], saving)
        assert {step for step, one in zip(found.step, found.mark, strict=True) if one == mark} == {20, 40}
