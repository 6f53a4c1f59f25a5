"""Rounding that neither lies nor drowns."""

from __future__ import annotations

import pytest

from harness.explain.statistics import Estimate
from harness.show.words import count, floor_percent, interval, listing, ms, number, part_of, percent, ratio

NUMBERS = {0: "0.00", 0.044: "0.04", 9.994: "9.99", 9.996: "10.0", 31.04: "31.0", 99.96: "100", 12_345: "12,300"}


def test_numbers():
    assert {value: number(value) for value in NUMBERS} == NUMBERS
    assert [ratio(value) for value in (0.9987, 5.9, 23.44)] == ["0.999x", "5.90x", "23.4x"]
    shares = [percent(value) for value in (0, 0.0001, -0.053, 0.0996, 1.32)]
    assert shares == ["0.0 %", "under 0.1 %", "5.3 %", "10 %", "132 %"]
    assert [ms(value) for value in (0, 0.0031, 0.04, 31.04)] == ["0.00 ms", "3.10 us", "0.04 ms", "31.0 ms"]
    assert [floor_percent(value) for value in (0.05, 1.0, 141.07)] == ["5.0 %", "100 %", "over 100 %"]


@pytest.mark.parametrize(
    ("step_ms", "value", "text"),
    [
        (0.025, 0.00231, "2.31 us"),
        (0.025, 0.025, "25.0 us"),
        (0.9, 0.04, "40.0 us"),
        (0.9, 0.0, "0.00 us"),
        (25.0, 0.00231, "under 0.01 ms"),
        (25.0, 0.0071, "0.01 ms"),
        (25.0, 0.0, "0.00 ms"),
        (25.0, 25.0, "25.0 ms"),
    ],
)
def test_a_step_and_its_parts_have_one_unit(step_ms, value, text):
    assert part_of(step_ms)(value) == text


def test_words():
    assert [count(n, "block") for n in (1, 2)] == ["1 block", "2 blocks"]
    assert [listing(items) for items in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert interval(Estimate(1.0, None, None, 1)) == "no interval from 1 block"
