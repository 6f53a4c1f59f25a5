"""Block values: what moves them and what must not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.regress.series import rounds, total_log, typical_log
from tests.harness.regress.tables import run, steps_table

STEPS = np.full((8, 4), 10.0)


def test_a_uniform_slowdown_is_the_value() -> None:
    base, head = (rounds(run("a", 0, steps_table(STEPS * factor))) for factor in (1, 1.03))
    assert typical_log(base, head) == pytest.approx(math.log(1.03), abs=1e-6)
    assert total_log(base, head) == pytest.approx(math.log(1.03), abs=1e-6)


@pytest.mark.parametrize("pause_ms", [200.0, 3000.0])
def test_a_pause_moves_the_total_and_not_the_typical_round(pause_ms: float) -> None:
    paused = STEPS.copy()
    paused[3, 1] += pause_ms
    base, head = (rounds(run("a", 0, steps_table(table))) for table in (STEPS, paused))
    assert typical_log(base, head) == 0
    assert total_log(base, head) == pytest.approx(math.log1p(pause_ms / 320))


def test_a_burst_of_documents_hits_both_sides_and_says_nothing() -> None:
    burst = STEPS.copy()
    burst[::3] *= 7
    base, head = (rounds(run("a", 0, steps_table(burst * factor))) for factor in (1, 0.98))
    assert typical_log(base, head) == pytest.approx(math.log(0.98), abs=1e-6)


def test_only_the_declared_window_counts() -> None:
    """A first step of three seconds, and every warm-up step of a repetition, lie outside of it."""
    base = rounds(run("a", 0, steps_table(STEPS, warmup_ms=10, warmups=2)))
    head = rounds(run("a", 0, steps_table(STEPS, warmup_ms=3000, warmups=2)))
    assert base is not None
    assert len(base.parts["step"]) == 8
    assert typical_log(base, head) == total_log(base, head) == 0


def test_hidden_work_of_a_stage_counts_as_its_work() -> None:
    base = rounds(run("a", 0, steps_table(STEPS, tokenize_ms=2, hidden=True)))
    head = rounds(run("a", 0, steps_table(STEPS, tokenize_ms=3, hidden=True)))
    assert typical_log(base, head, "tokenize") == pytest.approx(math.log(1.5))
    assert typical_log(base, head) == 0


def test_a_run_without_repetitions_is_cut_into_rounds_that_a_pause_cannot_move() -> None:
    flat = np.full((1, 48), 10.0)
    paused = flat.copy()
    paused[0, 7] += 3000
    base, head = (
        rounds(run("a", 0, steps_table(table * factor), interleave="runs"))
        for table, factor in ((flat, 1), (paused, 1.02))
    )
    assert base is not None
    assert len(base.parts["step"]) == 16
    assert not base.alternated
    assert typical_log(base, head) == pytest.approx(math.log(1.02), abs=1e-6)


def test_runs_that_failed_or_measured_nothing_have_no_rounds() -> None:
    assert rounds(run("a", 0, None)) is None
    assert rounds(run("a", 0, steps_table(STEPS), status="failed")) is None
    assert rounds(run("a", 0, steps_table(np.empty((1, 0)), warmup_ms=1, warmups=3))) is None


def test_sides_with_unequal_rounds_are_compared_by_their_own_medians() -> None:
    base, head = rounds(run("a", 0, steps_table(STEPS))), rounds(run("a", 0, steps_table(STEPS[:5] * 1.1)))
    assert typical_log(base, head) == pytest.approx(math.log(1.1), abs=1e-6)


def test_a_control_that_took_the_same_repetitions_counts_as_the_baseline_once_more() -> None:
    """A jump of the machine under one of the two does not move the value; a control of another session is left out."""
    jumped = STEPS.copy()
    jumped[:5] *= 1.7
    base, head, control = (rounds(run("a", 0, steps_table(table))) for table in (jumped, STEPS * 1.03, STEPS))
    elsewhere = rounds(run("a", 0, steps_table(STEPS), session="another"))
    assert typical_log(base, head) == pytest.approx(math.log(1.03 / 1.7), abs=1e-6)
    assert typical_log(base, head, control=control) == pytest.approx(math.log(1.03), abs=1e-6)
    assert typical_log(base, head, control=elsewhere) == typical_log(base, head)
