"""Costs that ended are known by their steps, and those that may come again are not taken for ended."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from harness.explain.policy import ENDED_GAPS_MIN, ENDED_SHARE_MAX, ENDED_STEPS_SHARE_MIN
from harness.explain.unusual_steps import costly_until, ended_costs
from harness.study.run_data import RunData
from tests.harness.explain.test_wall import EXACT
from tests.harness.judge.test_diagnosis import arm_of
from tests.harness.synthetic import build


def steps(long: int, of: int, ms: float = 30.0, after_ms: float = 0.0) -> np.ndarray:
    """Return steps of 1 to 2 ms, the first of which take ``ms`` more, and the others ``after_ms`` more."""
    base = np.random.default_rng(0).uniform(1.0, 2.0, of)
    return base + np.where(np.arange(of) < long, ms, after_ms * (np.arange(of) % 2))


def test_the_steps_of_a_cost_that_ended_are_known() -> None:
    assert costly_until(steps(80, 300)) == (0, 79)
    later = np.concatenate([steps(0, 40), steps(80, 260)])
    assert costly_until(later) == (40, 119)


def test_one_step_that_a_busy_machine_made_long_is_no_return_of_the_cost() -> None:
    values = steps(80, 300)
    values[250] += 20.0
    assert costly_until(values) == (0, 79)


@pytest.mark.parametrize("ends", [True, False])
def test_a_cost_ended_if_little_of_it_is_left_for_long_enough(*, ends: bool) -> None:
    little = 1.0 if ends else 3.0
    assert (costly_until(steps(80, 300, 100.0, 2 * 100.0 * ENDED_SHARE_MAX * little / 2.1)) is not None) == ends
    of = round(80 / (1 - ENDED_STEPS_SHARE_MIN)) + (2 if ends else -2)
    assert (costly_until(steps(80, of)) is not None) == ends


@pytest.mark.parametrize("ends", [True, False])
def test_what_comes_now_and_then_ended_only_after_several_of_its_gaps(*, ends: bool) -> None:
    """An evaluation each 40 steps has not ended 39 steps after the last."""
    values = steps(0, 81 + 40 * ENDED_GAPS_MIN + (2 if ends else -2))
    values[[0, 40, 80]] += 500.0
    assert (costly_until(values) is not None) == ends


def test_what_never_cost_anything_did_not_end() -> None:
    assert costly_until(np.zeros(100)) is None
    assert costly_until(np.zeros(0)) is None
    assert costly_until(steps(300, 300)) is None


def test_the_steps_are_those_of_the_program_over_all_of_its_blocks() -> None:
    """Each of the three blocks has 15 steps, three of them of warm-up."""
    arm = arm_of({"other": 40.0}, facts={})
    _, runs = build([arm], blocks=6, noise=EXACT)
    found = ended_costs([_renumbered(run, number, long=number < 2) for number, run in enumerate(runs)])
    assert (found["other"].first, found["other"].last, found["other"].measured) == (2, 30, 90)
    assert found["other"].from_start
    assert found["other"].ms == pytest.approx(40.0 / 3, rel=0.01)
    assert "forward" not in found


def _renumbered(run: RunData, block: int, *, long: bool) -> RunData:
    """Return a block as a later part of one program. ``long``: its time outside of phases is as it was."""
    columns = run.steps.to_pydict()
    columns["step"] = [one + 15 * block for one in columns["step"]]
    columns["other_ns"] = columns["other_ns"] if long else [20_000] * len(columns["step"])
    return RunData(run.record, pa.table(columns, schema=run.steps.schema), run.spans, run.samples)
