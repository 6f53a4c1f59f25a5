"""The clock that every span and step is read from: its source, and what one reading costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, read_text

_READINGS, _BATCHES = 2000, 5  # some milliseconds even where each is a system call


@dataclass(frozen=True)
class Clock:
    source: str | None
    available: tuple[str, ...]
    read_ns: float
    """What ``time.monotonic_ns()`` costs from Python, the least of some batches."""


def read_clock(root: Path = ROOT) -> Clock:
    folder = root / "sys/devices/system/clocksource/clocksource0"
    available = tuple((read_text(folder / "available_clocksource") or "").split())
    return Clock(read_text(folder / "current_clocksource"), available, min(_cost_ns() for _ in range(_BATCHES)))


def _cost_ns() -> float:
    read = time.monotonic_ns
    start = read()
    for _ in range(_READINGS):
        read()
    return (read() - start) / (_READINGS + 1)
