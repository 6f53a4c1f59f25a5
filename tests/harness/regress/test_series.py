"""Block values: what moves them and what must not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.regress.series import rounds, total_log, typical_log
from tests.harness.regress.tables import run, steps_table

STEPS = np.full((8, 4), 10.0)


def test_what_moves_the_typical_round_and_the_total() -> None:
    paused, burst = STEPS.copy(), STEPS.copy()
    paused[3, 1] += 3000
    burst[::3] *= 7  # of documents: it hits both sides
    for baseline, candidate, typical, total in (
        (STEPS, STEPS * 1.03, 1.03, 1.03),
        (STEPS, paused, 1, 1 + 3000 / 320),
        (burst, burst * 0.98, 0.98, 0.98),
    ):
        base, head = (rounds(run("a", 0, steps_table(table))) for table in (baseline, candidate))
        assert typical_log(base, head) == pytest.approx(math.log(typical), abs=1e-6)
        assert total_log(base, head) == pytest.approx(math.log(total), abs=1e-6)


def test_only_the_declared_window_counts() -> None:
    """A first step of three seconds, and every warm-up step of a repetition, lie outside of it."""
    base = rounds(run("a", 0, steps_table(STEPS, warmup_ms=10, warmups=2)))
    head = rounds(run("a", 0, steps_table(STEPS, warmup_ms=3000, warmups=2)))
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
    assert len(base.parts["step"]) == 16
    assert not base.alternated
    assert typical_log(base, head) == pytest.approx(math.log(1.02), abs=1e-6)


def test_runs_that_failed_or_measured_nothing_have_no_rounds() -> None:
    nothing = steps_table(np.empty((1, 0)), warmup_ms=1, warmups=3)
    failed = run("a", 0, steps_table(STEPS), status="failed")
    assert [rounds(one) for one in (run("a", 0, None), failed, run("a", 0, nothing))] == [None] * 3


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
