"""No part of a step is above its whole, and what data could gain agrees with what it costs: random studies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from tests.examples import examples
from tests.harness.synthetic import Arm, build

ROUNDING = 1e-9
MEANS = 0.05  # of the step: a median over blocks is no further from their mean where blocks are alike


@st.composite
def studies(draw: st.DrawFn) -> StudyReport:
    """A baseline with an ideal-data control on a machine as unquiet as drawn; some runs do not tell what data costs."""
    ms = st.floats(0.0, 30.0)
    base = Arm("base", read=draw(ms), tokenize=draw(ms), workers=draw(st.sampled_from([0, 1])))
    blocks = draw(st.integers(1, 5))
    noise = {name: draw(st.floats(0.0, most)) for name, most in (("day", 1.0), ("block", 0.4), ("step", 0.5))}
    record, runs = build(
        [base, Arm("other"), *base.controls("ideal-data")],
        [("base", "other")],
        blocks=blocks,
        noise=noise,
        repetitions=2,
        steps=3,
        seed=draw(st.integers(0, 2**31)),
    )
    untold = draw(st.sets(st.integers(0, blocks - 1), max_size=blocks - 1))
    told = [replace(run, spans=None) if run.record.block in untold else run for run in runs]
    return analyse(record, told)


@given(studies())
@examples(25)
def test_no_part_is_above_its_whole(report: StudyReport) -> None:
    for c in report.compared:
        for waits in (c.measured.baseline_waits, c.measured.candidate_waits):
            assert waits.waited_ms is not None
            assert sum(waits.exposed_ms.values()) <= waits.waited_ms * (1 + ROUNDING) + ROUNDING
            assert waits.waited_ms <= waits.step_ms * (1 + ROUNDING)
            if waits.uneven is not None:
                assert max(waits.uneven.waited_range_ms) <= waits.uneven.step_ms * (1 + ROUNDING)
    for arm in report.arms:
        step_ms = sum(arm.totals.phase_ms.values())
        assert sum(arm.totals.ledger.values()) == pytest.approx(1.0)
        assert sum(arm.totals.exposed_ms.values()) <= step_ms * (1 + ROUNDING)
    _what_data_could_gain_agrees_with_what_it_costs(report)


def _what_data_could_gain_agrees_with_what_it_costs(report: StudyReport) -> None:
    """One figure is shown only where both witnesses have it; else the range, one end of which is what data costs."""
    (c,) = report.compared
    m, waits = c.measured, c.measured.baseline_waits
    if m.ceiling is None or m.from_waits is None or waits.uneven is not None or m.ratio.ci_low is None:
        return
    assert waits.waited_ms is not None
    low, high = m.ceilings or (m.ceiling.median, m.ceiling.median)
    costs = waits.waited_ms / waits.step_ms
    assert 1 - 1 / low <= costs + MEANS
    assert 1 - 1 / high >= costs - MEANS
