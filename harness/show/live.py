"""Lays out a look at a running training for a terminal: its first screen, the last minutes, and its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from harness.show.first_screen import FirstScreen
from harness.show.tables import aligned
from harness.show.terminal import WIDTH, lines
from harness.show.words import number
from harness.study.run_data import Minute

BARS = "▁▂▃▄▅▆▇█"
MINUTES_SHOWN = WIDTH - 40


def look(screen: FirstScreen | None, minutes: Mapping[str, Sequence[Minute]]) -> list[str]:
    """Return the terminal's lines on a running training. ``screen``: first screen of the steps of the last minutes;
    None: no step was measured yet. ``minutes``: the minutes of each arm, for a table with a row per arm.
    """
    text = ["No training step was recorded yet."] if screen is None else lines(screen)
    if rows := [_row(arm, arm_minutes[-MINUTES_SHOWN:]) for arm, arm_minutes in minutes.items() if arm_minutes]:
        text += ["", *aligned([("", "median ms", "p99 ms", "longest ms", "since", "median of each minute"), *rows])]
    return text


def _row(arm: str, minutes: Sequence[Minute]) -> tuple[str, ...]:
    last = minutes[-1]
    since = datetime.fromtimestamp(minutes[0].start_utc_s, UTC)
    return (
        arm,
        number(last.p50_ms),
        number(last.p99_ms),
        number(max(minute.max_ms for minute in minutes)),
        f"{since:%H:%M} UTC",
        sparkline([minute.p50_ms for minute in minutes]),
    )


def sparkline(values: Sequence[float]) -> str:
    """Return one character per value: a bar between zero and the largest value."""
    largest = max(values) or 1.0
    return "".join(BARS[min(int(value / largest * len(BARS)), len(BARS) - 1)] for value in values)
