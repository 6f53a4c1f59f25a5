"""The intervals must cover a known truth as often as they claim, and treat baseline and candidate alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.statistics import Estimate, estimate, from_block_values, from_blocks, paired_logs, student_t
from tests.examples import examples

POSITIVE = st.floats(1e-3, 1e6)
VALUES = st.dictionaries(
    st.integers(0, 9), st.dictionaries(st.integers(0, 5), st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=6),
    min_size=1, max_size=8,
)  # fmt: skip


def paired_ratio(
    baseline: dict[int, dict[int, tuple[float, float]]],
    candidate: dict[int, dict[int, tuple[float, float]]],
    alternated: dict[int, bool] | None = None,
) -> Estimate | None:
    return from_blocks(paired_logs(baseline, candidate, alternated))


def simulate(generator, blocks, repetitions, block_noise, repetition_noise, log_ratio):
    """Two arms whose blocks and repetitions scatter around a true ratio: {block: {repetition: value}} for each."""
    baseline, candidate = {}, {}
    for block in range(blocks):
        shift = generator.normal(0, block_noise)
        base = generator.normal(0, 0.3)  # what both arms of a block share (a slow day) must cancel
        noise = generator.normal(0, repetition_noise / math.sqrt(2), (2, repetitions))
        baseline[block] = {
            repetition: (1000 * math.exp(base + noise[0, repetition]), 1.0) for repetition in range(repetitions)
        }
        candidate[block] = {
            repetition: (1000 * math.exp(base + log_ratio + shift + noise[1, repetition]), 1.0)
            for repetition in range(repetitions)
        }
    return baseline, candidate


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)


@pytest.mark.parametrize(
    ("blocks", "block_noise", "repetition_noise"),
    [
        (3, 0.02, 0.02),
        (8, 0.0, 0.02),
        *(
            pytest.param(blocks, *noise, marks=AT_NIGHT)
            for blocks in (3, 5, 8)
            for noise in ((0.02, 0.0), (0.02, 0.02), (0.0, 0.02))
            if (blocks, *noise) not in ((3, 0.02, 0.02), (8, 0.0, 0.02))
        ),
    ],
)
def test_the_interval_covers_the_truth(blocks, block_noise, repetition_noise):
    generator = np.random.default_rng(7)
    covered = []
    for _ in range(200):
        arms = simulate(generator, blocks, 4, block_noise, repetition_noise, log_ratio=-0.05)
        ratio = paired_ratio(*arms, dict.fromkeys(range(blocks), True))
        covered.append(ratio.ci_low <= math.exp(-0.05) <= ratio.ci_high)
    assert np.mean(covered) >= 0.91  # claims 0.95; the standard error of 200 trials is 0.015


def test_pairing_by_repetition_cancels_a_drift_that_pairing_by_block_cannot():
    drift = [1.0, 0.5, 2.0, 0.8]
    baseline = {block: {repetition: (100 * drift[repetition], 1.0) for repetition in range(4)} for block in range(3)}
    # Repetition 3 was lost.
    candidate = {block: {number: (110 * drift[number], 1.0) for number in (0, 1, 2)} for block in range(3)}
    by_repetition = paired_ratio(baseline, candidate, dict.fromkeys(range(3), True))
    assert by_repetition.median == pytest.approx(1.1)
    assert by_repetition.ci_low == pytest.approx(1.1)
    assert paired_ratio(baseline, candidate).median != pytest.approx(1.1, rel=0.01)


@given(VALUES, VALUES, st.booleans())
@examples(25)
def test_swapping_baseline_and_candidate_inverts_the_ratio(first, second, paired):
    by_repetition = dict.fromkeys(range(10), paired)
    ratio, swapped = paired_ratio(first, second, by_repetition), paired_ratio(second, first, by_repetition)
    if ratio is None:
        assert swapped is None
        return
    assert ratio.n == swapped.n
    assert ratio.median == pytest.approx(1 / swapped.median, rel=1e-6)
    assert (ratio.ci_low is None) == (swapped.ci_high is None)
    if ratio.ci_low is not None:
        assert ratio.ci_low == pytest.approx(1 / swapped.ci_high, rel=1e-6)
        assert ratio.ci_high == pytest.approx(1 / swapped.ci_low, rel=1e-6)


@given(VALUES, st.floats(0.01, 100))
@examples(25)
def test_scaling_all_values_scales_the_estimate(values, factor):
    scaled = {
        block: {repetition: (amount * factor, per) for repetition, (amount, per) in repetitions.items()}
        for block, repetitions in values.items()
    }
    first, second = estimate(values), estimate(scaled)
    assert second.median == pytest.approx(first.median * factor)
    if first.ci_low is not None:
        assert second.ci_low == pytest.approx(first.ci_low * factor)
        assert first.ci_low <= first.median <= first.ci_high


def test_two_blocks_give_a_median_but_no_interval():
    assert estimate({0: {0: (2.0, 1.0)}, 1: {0: (8.0, 1.0)}}) == Estimate(pytest.approx(4.0), None, None, 2)
    assert estimate({}) is None
    assert paired_ratio({0: {0: (1.0, 1.0)}}, {1: {0: (1.0, 1.0)}}) is None


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    # published two-sided tables (Abramowitz and Stegun, table 26.10)
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 7, 2.365),
        (0.975, 30, 2.042),
        (0.95, 10, 1.812),
        (0.995, 5, 4.032),
        (0.5, 4, 0.0),
    ],
)
def test_student_quantiles_match_published_tables(probability, freedom, quantile):
    assert student_t(probability, freedom) == pytest.approx(quantile, abs=5e-4)


def test_a_cost_that_comes_in_bursts_counts_in_full():
    """One repetition of eight is nine times as long (a long document): the median repetition would not know of it."""
    steady = {block: dict.fromkeys(range(8), (100.0, 1.0)) for block in range(3)}
    bursty = {
        block: {repetition: (100.0, 9.0 if repetition == block else 1.0) for repetition in range(8)}
        for block in range(3)
    }
    assert paired_ratio(bursty, steady, dict.fromkeys(range(3), True)).median == pytest.approx(2.0)
    assert estimate(bursty).median == pytest.approx(50.0)


SIGNED = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8)


def test_on_a_linear_scale_the_interval_covers_a_truth_of_any_sign():
    generator = np.random.default_rng(5)
    for truth in (-2.0, 0.0):
        found = [from_block_values(list(generator.normal(truth, 0.3, 5))) for _ in range(200)]
        assert np.mean([one.ci_low <= truth <= one.ci_high for one in found]) >= 0.91


@given(SIGNED, st.floats(-50, 50), st.floats(0.01, 50))
@examples(25)
def test_on_a_linear_scale_shift_unit_and_sign_go_through(values, shift, factor):
    def bounds(found):
        return [found.median, *(bound for bound in (found.ci_low, found.ci_high) if bound is not None)]

    plain = bounds(from_block_values(values))
    assert plain[1:] == sorted(plain[1:])
    moved = bounds(from_block_values([factor * value + shift for value in values]))
    assert moved == pytest.approx([factor * bound + shift for bound in plain], rel=1e-6, abs=1e-6 * factor + 1e-6)
    turned = bounds(from_block_values([-value for value in values]))
    assert [turned[0], *reversed(turned[1:])] == pytest.approx([-bound for bound in plain], rel=1e-6, abs=1e-6)


@given(SIGNED.map(lambda values: [value / 100 for value in values]))
@examples(25)
def test_on_a_log_scale_it_is_the_same_interval_of_the_logs(logs):
    of_logs, of_values = from_block_values(logs), from_blocks(logs)
    assert of_values.median == math.exp(of_logs.median)
    assert of_values.n == of_logs.n
    if len(logs) >= 3:
        assert (of_values.ci_low, of_values.ci_high) == (math.exp(of_logs.ci_low), math.exp(of_logs.ci_high))
    assert from_block_values([]) is None
