"""Read the source of the clock behind every span and step, and measure the cost of one reading."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, read_text

_READINGS, _BATCHES = 2000, 5  # some milliseconds even if each reading is a system call


@dataclass(frozen=True)
class Clock:
    """The system's clock source, the alternatives that the kernel offers, and the cost of a reading.

    Read by :func:`read_clock`.
    """

    source: str | None
    available: tuple[str, ...]
    read_ns: float
    """Cost of ``time.monotonic_ns()`` from Python: the minimum over several batches."""


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
