"""Long steps and step kinds: the parts that are told of an arm's steps reproduce their mean, whatever the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.policy import LONG_STEP_FACTOR
from harness.explain.unusual_steps import NO_PHASE, long_steps, longest_phases, step_kinds
from harness.judge.report_types import ArmTotals
from harness.judge.study import analyse
from tests.examples import examples
from tests.harness.show.test_situations import ATTACHED, EXACT, steps_of
from tests.harness.synthetic import Arm, build

TIMES_MS = st.one_of(st.floats(1.0, 2.0), st.floats(1.0, 1000.0), st.sampled_from([5.0, 60.0, 315.0]))
BLOCKS = st.lists(st.lists(TIMES_MS, min_size=1, max_size=60), min_size=1, max_size=8)
PHASES = ("forward", "other")


@given(BLOCKS)
def test_long_steps_and_the_others_reproduce_the_mean(blocks: list[list[float]]) -> None:
    step_ms = np.concatenate(blocks)
    found = long_steps(step_ms, np.zeros(len(step_ms), dtype=np.int8), PHASES, float(np.median(step_ms)))
    if found is None:
        assert step_ms.max() <= LONG_STEP_FACTOR * np.median(step_ms)
        return
    parts_ms = found.steps * found.mean_ms + (found.of - found.steps) * found.others_ms
    assert found.of == len(step_ms)
    assert parts_ms == pytest.approx(step_ms.sum())
    assert found.steps == (step_ms > LONG_STEP_FACTOR * np.median(step_ms)).sum()


@examples(40)
@given(st.lists(st.lists(st.sampled_from([5.0, 5.2, 60.0, 61.0, 315.0]), min_size=40, max_size=80), min_size=2))
def test_both_kinds_of_steps_reproduce_the_mean(blocks: list[list[float]]) -> None:
    found = step_kinds([np.array(block) for block in blocks])
    if found is not None:
        parts_ms = (
            (1 - found.above_share) * found.fast_ms
            + found.slow_share * found.slow_ms
            + found.longest_share * found.longest_ms
        )
        assert parts_ms == pytest.approx(np.concatenate(blocks).mean())


def test_a_block_of_mostly_long_steps_is_not_dropped() -> None:
    """Ten blocks of ten steps: of the first, seven compile a graph. Its own median calls none of them long."""

    def compiling(columns: dict[str, list[Any]]) -> None:
        counted = [row for row, warmup in enumerate(columns["warmup"]) if not warmup]
        for row in counted[:7]:
            for name in ("wall_ns", "forward_ns"):
                columns[name][row] += 300_000_000

    record, runs = build([Arm("script", facts=ATTACHED)], [], steps=10, blocks=10, noise=EXACT, spans=False)
    report = analyse(record, [steps_of(run, compiling) if run.record.block == 0 else run for run in runs])
    totals: ArmTotals = report.arms[0].totals
    long = totals.long_steps
    assert (long.steps, long.of, long.phase) == (7, totals.steps, "forward")
    mean_ms = sum(totals.phase_ms.values())
    assert (long.steps * long.mean_ms + (long.of - long.steps) * long.others_ms) / long.of == pytest.approx(mean_ms)


def test_the_phase_is_the_one_that_lasts_most_above_its_median() -> None:
    times = {"forward": np.array([5.0, 5.0, 5.0, 300.0]), "other": np.array([100.0, 100.0, 100.0, 101.0])}
    assert longest_phases(PHASES, lambda name: times[name]).tolist()[-1] == 0
    unknown = {name: np.full(4, np.nan) for name in PHASES}
    assert longest_phases(PHASES, lambda name: unknown[name]).tolist() == [NO_PHASE] * 4
