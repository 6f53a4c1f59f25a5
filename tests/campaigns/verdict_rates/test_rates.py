"""The simulations in short: seeded, so that a change of the statistics shows, with bounds that a mistake breaks."""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.statistics import likeness
from tests.campaigns.verdict_rates.simulate import (
    alike,
    autoregressive,
    believing,
    checks,
    coverage,
    false_verdicts,
    lasting,
    power,
)

pytestmark = pytest.mark.slow  # simulations


@pytest.mark.parametrize(("comparisons", "blocks"), [(1, 3), pytest.param(7, 5, marks=pytest.mark.nightly)])
def test_identical_arms_seldom_get_a_verdict_however_many_are_compared(comparisons: int, blocks: int) -> None:
    assert false_verdicts(40, comparisons, blocks).wrong <= 0.05


@pytest.mark.nightly
def test_seven_intervals_held_against_1_one_by_one_would_err_more_often() -> None:
    found = false_verdicts(40, 7, 8)
    assert found.wrong <= 0.05 < found.alone


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("studies", "comparisons", "declared", "rho"),
    [(120, 1, None, 0.8), (60, 7, None, 0.6), (120, 1, 1e-4, 0.5)],
)
def test_identical_arms_whose_blocks_are_alike_seldom_get_one_either(
    studies: int, comparisons: int, declared: float | None, rho: float
) -> None:
    """Of 7 comparisons at 0.8 more do (README.md of the reference)."""
    assert false_verdicts(studies, comparisons, 8, alike(rho), seed=4, declared=declared).wrong <= 0.07


def test_several_arms_say_together_that_neighbours_are_alike() -> None:
    generator = np.random.default_rng(1)
    series = [autoregressive(generator, 8, 0.8).tolist() for _ in range(7)]
    alone = [likeness([one]).widening(8) for one in series]
    assert likeness(series).widening(8) > max(alone)
    free = [generator.normal(size=8).tolist() for _ in range(7)]
    assert likeness(free).widening(8) < 1.1


def test_what_is_there_is_found() -> None:
    assert power(20, 1, 8, 0.05) >= 0.8
    assert power(5, 7, 20, 0.03) >= 0.8
    assert power(20, 1, 5, 0.10) >= 0.9
    assert power(60, 1, 5, 0.05) >= 0.65  # caution towards blocks that are alike costs little where they are not


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("blocks", "rho", "least"), [(5, 0.0, 0.95), (8, 0.3, 0.93), (8, 0.6, 0.86), (20, 0.3, 0.93), (20, 0.6, 0.89)]
)
def test_intervals_cover_where_blocks_depend_on_one_another(blocks: int, rho: float, least: float) -> None:
    assert coverage(300, blocks, rho).covered >= least


@pytest.mark.nightly
def test_more_coverage_at_a_strong_correlation_is_paid_by_independent_blocks() -> None:
    free, much = coverage(200, 8, 0.0), coverage(200, 8, 0.6)
    with believing(0.3):
        widened, covered = coverage(200, 8, 0.0), coverage(200, 8, 0.6)
    assert covered.covered > much.covered + 0.02
    assert 1.15 * free.width < widened.width < 1.3 * free.width
    assert coverage(200, 8, 0.0) == free  # and what is believed is as before


def test_independent_blocks_pay_little_for_that() -> None:
    """Student's interval of a mean over 20 blocks is 0.94 standard deviations wide; a median's 1.25 times as wide."""
    assert coverage(100, 20, 0.0).width < 1.15 * 1.25 * 0.94


@pytest.mark.nightly
@pytest.mark.parametrize("sessions", [1, 3, 10])
@pytest.mark.parametrize("blocks", [5, 30])
def test_a_day_is_not_called_slower(sessions: int, blocks: int) -> None:
    found = checks(100, sessions, blocks, 0.08)
    assert found.slower <= 0.05
    assert found.blocks_only > 0.1  # the blocks alone would have called it so


@pytest.mark.nightly
def test_days_that_go_on_into_one_another_are_not_called_slower_either() -> None:
    assert checks(150, 5, 8, 0.08, drift=lasting).slower <= 0.05


def test_on_a_steady_machine_sessions_let_a_check_decide() -> None:
    assert checks(60, 10, 8, 0.01).same >= 0.5
    assert checks(60, 5, 8, 0.01, slower=0.2).slower >= 0.95
    assert checks(60, 1, 8, 0.01, slower=0.2).slower == 0.0  # one session: what days differ by is not known
