"""Decisions from blocks whose truth is known."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.regress.decision import confidence_at, decide, is_look, looks

LOGS = st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=30)


def drawn(generator: np.random.Generator, change: float, blocks: int, spread: float = 0.008) -> list[float]:
    return list(math.log1p(change) + generator.normal(0, spread, blocks))


def sequential(values: list[float], control: list[float], within: float) -> tuple[str, int]:
    """As a run that stops at the first look that decides."""
    for blocks in (n for n in looks() if n <= len(values)):
        found = decide(values[:blocks], within, control[:blocks]).outcome
        if found != "undecided":
            return found, blocks
        if blocks * 1.5 > len(values):
            break
    return "undecided", len(values)


def test_looks_grow_by_half_and_their_errors_sum_to_the_error_allowed() -> None:
    assert list(islice(looks(), 6)) == [4, 6, 9, 14, 21, 32]
    assert [n for n in range(1, 22) if is_look(n)] == [4, 6, 9, 14, 21]
    spent = [1 - confidence_at(n) for n in islice(looks(), 50)]
    assert sum(spent) == pytest.approx(0.05 * 50 / 51)
    assert confidence_at(7) == confidence_at(9)  # a budget that ends between two looks takes the next one early


@pytest.mark.parametrize(("change", "draws", "outcome"), [(0.03, 40, "slower"), (-0.05, 40, "faster"), (0, 30, "same")])
def test_a_change_is_found_and_no_change_is_called_the_same(change: float, draws: int, outcome: str) -> None:
    generator = np.random.default_rng(1)
    found = [sequential(drawn(generator, change, 48), drawn(generator, 0, 48), 0.01)[0] for _ in range(draws)]
    assert found.count(outcome) >= draws - 2
    assert set(found) <= {outcome, "undecided"}


@pytest.mark.slow
@pytest.mark.nightly
def test_looking_again_and_again_calls_no_change_a_change_in_one_of_twenty_at_most() -> None:
    """At the very edge of what is allowed, where a single look at 95 % would be wrong one time in forty."""
    generator = np.random.default_rng(2)
    outcomes = [sequential(drawn(generator, 0.01, 48), [], 0.01)[0] for _ in range(400)]
    assert max(outcomes.count("slower"), outcomes.count("same")) <= 20


@given(LOGS, LOGS, st.floats(0.001, 0.1))
def test_swapping_the_sides_swaps_the_outcome(values: list[float], control: list[float], within: float) -> None:
    ours = decide(values, within, control)
    theirs = decide([-value for value in values], within, [-value for value in control])
    assert theirs.outcome == {"slower": "faster", "faster": "slower"}.get(ours.outcome, ours.outcome)


@given(LOGS, st.floats(0.001, 0.1), st.integers(0, 29), st.sampled_from([0.7, 5.0]))
def test_one_bad_block_never_turns_a_decision_round(values, within, place, much):
    """A pause that doubles a block's time, or makes it a hundred times as long: at most it takes a decision away."""
    before = decide(values, within)
    hurt = [*values]
    hurt[place % len(values)] += much
    after = decide(hurt, within)
    if before.outcome == "undecided":
        # An interval that ended right at the limit may end within it: a bootstrap's own scatter. Never the other way.
        assert after.outcome in ("undecided", "same")
    elif before.outcome != "slower":
        assert after.outcome in (before.outcome, "undecided")


def test_what_the_aa_control_does_too_is_no_regression() -> None:
    values = [0.030, 0.031, 0.029, 0.0305]
    assert decide(values, 0.01, [0.001, -0.001, 0.0, 0.0005]).outcome == "slower"
    noisy = decide(values, 0.01, [0.05, -0.04, 0.02, 0.03])
    assert noisy.outcome == "undecided"
    assert noisy.why == "within the noise"
    assert noisy.more_blocks > 0


def test_too_few_blocks_decide_nothing_and_say_how_many_would() -> None:
    assert decide([], 0.01).more_blocks == 4
    assert decide([0.5, 0.5], 0.01).outcome == "undecided"
    assert decide([0.5, 0.5], 0.01).more_blocks == 2


def test_the_number_of_blocks_that_would_decide_is_about_right() -> None:
    generator = np.random.default_rng(4)
    right = 0
    for _ in range(50):
        values = drawn(generator, 0.03, 200, spread=0.02)
        first = decide(values[:4], 0.01)
        if first.outcome != "undecided" or first.more_blocks is None:
            continue
        right += decide(values[: (4 + first.more_blocks) * 2], 0.01).outcome == "slower"
    assert right >= 30


@pytest.mark.parametrize(
    ("spread", "seed", "centre", "why"), [(0.01, 5, 0.01, "at the limit"), (3.0, 6, 0, "scattered")]
)
def test_what_more_blocks_would_not_decide(spread: float, seed: int, centre: float, why: str) -> None:
    values = drawn(np.random.default_rng(seed), 0.0, 20 if centre else 9, spread=spread)
    centred = [value - float(np.median(values)) + math.log1p(centre) for value in values]
    found = decide(centred, 0.01)
    assert (found.outcome, found.more_blocks, found.why) == ("undecided", None, why)
    assert found.change.median == pytest.approx(centre, abs=1e-12)
