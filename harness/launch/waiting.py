"""Defines how long the launcher waits for a run, and what ends a study whose time is spent."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# A run that takes its steps sends a sign of life this often at least. It costs one clock reading a step.
BEAT_S = 10.0
LOOK_S = 10.0  # one poll of the launcher; the limit counts timed-out polls, not elapsed time
BEATS_PER_LIMIT = 4  # so that a beat that comes late ends no run
# A run of a state of the code that sends none is given the limit for each of its steps; for a profiled run, this many.
PROFILED_STEPS = 100
KILLED_S = 30.0  # for the kernel to end a killed process; one that waits for a dead disk stays longer


def looks(limit_s: float) -> int:
    """Return the number of polls of a limit: a paused container loses one of them, not a run."""
    return max(1, math.ceil(limit_s / LOOK_S))


class BudgetSpent(Exception):  # noqa: N818 - an outcome, reported and survived
    """The time that the study was given is over, in the middle of a block."""


@dataclass(frozen=True)
class WaitLimits:
    """Limits of the launcher's waits: for a run's start, for its next step, and for the whole study."""

    start_s: float
    silence_s: float
    end_ns: int | None = None
    """CLOCK_MONOTONIC; None: the study may take as long as it takes."""

    @property
    def beat_s(self) -> float:
        """Interval of a run's heartbeat."""
        return min(BEAT_S, self.silence_s / BEATS_PER_LIMIT)

    def within(self, limit_s: float) -> float:
        """Return how long to wait now: ``limit_s``, or less where the study's time ends before."""
        return limit_s if self.end_ns is None else max(min(limit_s, (self.end_ns - time.monotonic_ns()) / 1e9), 0.0)

    @property
    def spent(self) -> bool:
        """True if the study's time is over."""
        return self.end_ns is not None and time.monotonic_ns() >= self.end_ns
