"""A long training over time: spans weigh minutes by their steps, and a long step is divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.explain.policy import SPANS_MAX
from harness.explain.unusual_steps import COLLECTING, OTHER, WAITING, longest_steps, spans
from harness.study.run_data import LongStep, Minute


def minute(number: int, steps: int, mean_ms: float, *long: LongStep) -> Minute:
    return Minute(
        first_step=number * 100,
        start_utc_s=60.0 * number,
        span_s=60.0,
        steps=steps,
        wall_s=steps * mean_ms / 1e3,
        mean_ms=mean_ms,
        p50_ms=mean_ms,
        p90_ms=mean_ms,
        p99_ms=2 * mean_ms,
        max_ms=3 * mean_ms,
        parts_ms={"fetch": mean_ms / 2, "forward": mean_ms / 4},
        waiting_ms=0.0,
        collecting_ms=0.0,
        evaluating_s=0.0,
        tokens=steps * 1000,
        samples=steps,
        memory_bytes=10**6 * number,
        long_steps=long,
    )


@pytest.mark.parametrize("count", [1, SPANS_MAX, SPANS_MAX + 1, 1440])
def test_spans_cover_every_minute_once(count: int) -> None:
    minutes = [minute(number, 100 + number, 10.0) for number in range(count)]
    rows = spans(minutes)
    assert len(rows) == min(count, SPANS_MAX)
    assert sum(row.steps for row in rows) == sum(one.steps for one in minutes)
    assert rows[0].start_utc_s == 0.0
    assert rows[-1].memory_bytes == minutes[-1].memory_bytes
    assert spans([]) == []


def test_a_mean_counts_steps_and_not_minutes() -> None:
    minutes = [minute(number, 1, 100.0) for number in range(SPANS_MAX)] + [
        minute(number, 99, 10.0) for number in range(SPANS_MAX)
    ]
    (first, *_, last) = spans([*minutes[::SPANS_MAX], *minutes[1::SPANS_MAX]][:2] * SPANS_MAX)
    assert (first.steps, last.steps) == (100, 100)
    assert first.mean_ms == pytest.approx((1 * 100 + 99 * 10) / 100)
    assert first.parts_ms["fetch"] == pytest.approx(first.mean_ms / 2)
    assert first.tokens_per_s == pytest.approx(1e6 / first.mean_ms)


def test_a_minute_may_have_no_reading_of_memory() -> None:
    """Readings become rarer, the longer a program runs."""
    minutes = [replace(minute(number, 1, 10.0), memory_bytes=7 if number % 10 == 3 else None) for number in range(240)]
    assert [row.memory_bytes for row in spans(minutes)] == [7] * SPANS_MAX


@pytest.mark.parametrize(
    ("step", "part", "part_ms"),
    [
        (LongStep(7, 0.0, 500.0, {"fetch": 490.0, "forward": 2.5}), "fetch", 485.0),
        (LongStep(7, 0.0, 500.0, {"fetch": 5.0, "forward": 2.5}), OTHER, 490.0),
        (LongStep(7, 0.0, 500.0, {"fetch": 5.0, "forward": 495.0}, collecting_ms=480.0), COLLECTING, 480.0),
        (LongStep(7, 0.0, 500.0, {"fetch": 5.0, "forward": 495.0}, waiting_ms=470.0), WAITING, 470.0),
    ],
)
def test_a_long_step_has_the_part_that_took_longer(step: LongStep, part: str, part_ms: float) -> None:
    (excess,) = longest_steps([minute(0, 100, 10.0, step)], 3)
    assert (excess.part, excess.part_ms) == (part, pytest.approx(part_ms))


def test_the_longest_steps_come_first() -> None:
    steps = [LongStep(number, 0.0, 100.0 * number, {"fetch": 90.0 * number}) for number in range(1, 6)]
    assert [excess.step.step for excess in longest_steps([minute(0, 100, 10.0, *steps)], 2)] == [5, 4]
