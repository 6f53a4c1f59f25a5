"""Aligning a clock by marks: right where every sample is punctual, robust where some are late."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.study.traces.py_spy import MARK, align, mark_number, most_agreed
from trainer.errors import InputError

PERIOD = 10_000_000


def sampled(seed, offset, marks, late=lambda _: 0):
    """Samples at random times of another clock, ``offset`` behind; each written down ``late`` after it was taken."""
    rng = random.Random(seed)
    now, found = marks[0][0] - 5 * PERIOD, []
    while now < marks[-1][1] + 5 * PERIOD:
        now += int(rng.expovariate(1 / PERIOD)) + 1
        mark = next((number for number, (start, end) in enumerate(marks) if start <= now < end), None)
        found.append((now + late(rng) - offset, mark))
    return sorted(found)


def twelve_marks(since):
    return [(since + k * 5 * PERIOD, since + k * 5 * PERIOD + 3 * PERIOD) for k in range(12)]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(-(10**15), 10**15))
def test_the_true_offset_is_within_the_error(seed, offset):
    clock = align(sampled(seed, offset, twelve_marks(10**12)), twelve_marks(10**12))
    assert clock.agreeing == clock.edges
    assert clock.late_ns <= 1
    assert abs(clock.offset_ns - offset) <= clock.error_ns + 1


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_many_edges_leave_less_than_a_period(seed):
    assert align(sampled(seed, 0, twelve_marks(10**12)), twelve_marks(10**12)).error_ns < PERIOD


def test_a_few_late_samples_are_outvoted():
    def late(rng):
        return 4 * PERIOD if rng.random() < 0.08 else 0

    for seed in range(50):
        clock = align(sampled(seed, 0, twelve_marks(10**12), late), twelve_marks(10**12))
        assert abs(clock.offset_ns) < 2 * PERIOD
        assert clock.agreeing < clock.edges or clock.late_ns <= 1
        assert clock.late_ns <= 6 * PERIOD


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 30)), min_size=1, max_size=8))
def test_the_range_most_intervals_share(pairs):
    intervals = [(low, low + width) for low, width in pairs]
    low, high, most = most_agreed(intervals)
    depths = {at: sum(a <= at <= b for a, b in intervals) for at in range(-60, 90)}
    assert most == max(depths.values())
    assert all(depths[at] == most for at in range(low, high + 1))


def test_no_mark_is_an_error():
    with pytest.raises(InputError, match="no clock mark was sampled"):
        align([(0, None), (1, None)], [(0, 1)])


def test_a_mark_that_nobody_noted_is_an_error():
    with pytest.raises(InputError, match="clock mark 1 was sampled, but only 1 are noted"):
        align([(0, None), (1, 1)], [(0, 1)])


def test_a_mark_is_known_by_its_name():
    assert mark_number(f"{MARK}12 (probes/py_spy.py:5)") == 12
    assert mark_number("forward (trainer/compute.py:5)") is None
